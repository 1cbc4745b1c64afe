"""A thread that does one thing over and over until it is told to stop, and survives what goes wrong."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sqlalchemy.exc import OperationalError

log = logging.getLogger("phoenix.service")


class Loop:
    """Calls `work` every `every_s`, and a little later again where it failed."""

    AFTER_FAILURE_S = 1.0

    def __init__(self, name: str, every_s: float, work: Callable[[], None]) -> None:
        self._name = name
        self._every_s = every_s
        self._work = work
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> bool:
        """Returns once it has stopped; whether it had been started."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        return self._thread is not None

    def _loop(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self._work()
            except OperationalError as error:
                log.error("%s failed: %s; trying again in %.1f s", self._name, error.orig, self.AFTER_FAILURE_S)
                log.debug("the database failed", exc_info=error)
                self._stopping.wait(self.AFTER_FAILURE_S)
            except Exception:
                # It may pass, as a full disk or a locked database does; nothing is marked done that was not.
                log.exception("%s failed; trying again in %.1f s", self._name, self.AFTER_FAILURE_S)
                self._stopping.wait(self.AFTER_FAILURE_S)
