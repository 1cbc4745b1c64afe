"""The building of the inner groups of one generation, beside whatever else a recovery does meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final, Protocol

from phoenix_core.device_errors import of_exception
from phoenix_core.errors import GenerationSuperseded, PeerLost

FORMING_TIMEOUT: Final = timedelta(seconds=20)
"""For members that announced themselves and died before they connected; the others wait in the store."""

NAME_LENGTH: Final = 60
"""Of a group in an event: the names of large ones list their members."""


class Formable(Protocol):
    """A group whose inside can be built away from it, and put in place later."""

    logical_name: str

    def keep_inner(self, generation: int, joining: Collection[int]) -> Any | None: ...

    def make_inner(self, generation: int) -> Any: ...

    def install(self, inner: Any, generation: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Built:
    """How one group came to its inside."""

    group: str
    kept: bool
    seconds: float


class Formation:
    """The building of the inner groups of one generation, in a thread of its own.

    A thread, since gloo's constructor blocks where no signal reaches; one that was superseded is left behind and ends
    by itself, but must have ended before the process does.
    """

    def __init__(
        self, groups: Sequence[Formable], generation: int, joining: Collection[int], on_done: Callable[[], None]
    ) -> None:
        """`joining` are the ranks that are new in `generation`; `on_done` is called by the thread."""
        self.generation = generation
        self._joining = joining
        self.built: list[Built] = []
        self._groups = groups
        self._made: dict[Formable, Any] = {}
        self._new: list[Any] = []
        self._error: BaseException | None = None
        self._installed = False
        self.finished_ns = 0
        self.done = threading.Event()
        self._on_done = on_done
        self._thread = threading.Thread(target=self._run, name=f"phoenix-form-{generation}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Return once the thread has ended: a process that exits before is aborted by gloo.

        One that waits for a member that died ends with its timeout. Its sockets cannot be told from those that the
        script has opened meanwhile, so they are left alone.
        """
        self._thread.join(2 * FORMING_TIMEOUT.total_seconds())
        for inner in self.left_over():
            inner.end()

    def _build(self) -> None:
        for group in self._groups:
            began = time.monotonic()
            kept = group.keep_inner(self.generation, self._joining)
            self._made[group] = group.make_inner(self.generation) if kept is None else kept
            if kept is None:
                self._new.append(self._made[group])
            took = time.monotonic() - began
            self.built.append(Built(group=group.logical_name[:NAME_LENGTH], kept=kept is not None, seconds=took))

    def _run(self) -> None:
        try:
            self._build()
        except BaseException as error:
            self._error = error  # whatever it was, nobody may train on what was not formed
        finally:
            self.finished_ns = time.monotonic_ns()
            self.done.set()
            self._on_done()

    def builds(self, group: Formable) -> bool:
        return group in self._groups

    def new(self) -> list[Any]:
        """The insides that were built, in order of their groups, without those that were kept; call after `done`."""
        return list(self._new)

    def left_over(self) -> list[Any]:
        """Those that were built and never installed; from now on they are the caller's to end."""
        left = [] if self._installed else self.new()
        self._made.clear()
        self._new.clear()
        return left

    def install(self) -> None:
        """Put the new insides in place. Call after `done`; raises what the building raised."""
        if self._error is not None:
            if isinstance(self._error, GenerationSuperseded) or of_exception(self._error) is not None:
                raise self._error  # an error of the device is this rank's own
            raise PeerLost(f"the groups of generation {self.generation} could not be formed: {self._error}")
        assert set(self._made) == set(self._groups)
        self._installed = True
        for group, inner in self._made.items():
            group.install(inner, self.generation)


class Connection(Formation):
    """After `before`: reach the peers on `device` too, by the groups that were built there."""

    def __init__(self, before: Sequence[Formation], generation: int, device: Any, on_done: Callable[[], None]) -> None:
        self._before, self._device = tuple(before), device
        super().__init__([], generation, (), on_done)

    def _build(self) -> None:
        for formation in self._before:
            formation.done.wait()
            for inner in formation.new():
                inner.connect(self._device)


def report(formations: Sequence[Formation]) -> dict[str, Any]:
    """What the event of the groups' readiness says of those that made them."""
    built = [asdict(group) for formation in formations for group in formation.built]
    at = max(formation.finished_ns for formation in formations)
    return {"at": at, "groups": len(built), "kept": sum(group["kept"] for group in built), "built": built}
