"""A simulated process: one training thread that works or waits, and others that act whenever it does not run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from phoenix_core.errors import GenerationSuperseded, PeerLost
from phoenix_core.inbox import Inbox

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

T = TypeVar("T")
Thread = Generator[float, None, T]
"""What a thread yields is either seconds of its own work, or `WAIT` for something that another party does."""
WAIT: Final = -1.0


class Died(BaseException):
    """The process was ended at the very point where its training thread is."""


class Process(ABC):
    """Life and threads; what the training thread does is `main`."""

    def __init__(self, cluster: Cluster, name: str, node: str) -> None:
        self.cluster, self.name, self.node = cluster, name, node
        self.inbox = Inbox()
        self.alive, self.frozen, self.leaving = True, False, False
        self.hang_next = self.stuck = False
        """Whether the training thread hangs from its next own work on, and whether it does."""
        self.generation, self.boundary = 0, 0
        self.phase, self.entered, self.completed = "", 0, 0
        self.awaits: int | None = None
        self.clients: list[Callable[[], None]] = []
        """To be told when this process dies."""
        self._beating = False
        self._waiting = False
        self._turn = 0
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._thread = self.main()

    @abstractmethod
    def main(self) -> Thread[None]:
        """The training thread, from the process's start to its end."""

    def start(self) -> None:
        self._advance()

    def _advance(self, error: BaseException | None = None) -> None:
        self._waiting = False
        self._turn += 1
        try:
            wish = self._thread.throw(error) if error is not None else next(self._thread)
        except (StopIteration, Died):
            return
        self._beat()
        if wish == WAIT:
            self._waiting = True
        elif self.hang_next and wish > 0 and not self.inbox.released:
            self.hang_next, self.stuck = False, True
        else:
            self.cluster.clock.after(wish, self.run, self._worked, self._turn)

    def _worked(self, turn: int) -> None:
        if turn == self._turn:
            self._advance()

    def run(self, action: Callable[..., None], *args: Any) -> None:
        """Something happens inside this process: at once, when it is thawed again, or never."""
        if not self.alive:
            return
        if self.frozen:
            self._backlog.append((action, args))
        else:
            action(*args)

    def poke(self) -> None:
        """What the training thread waits for may have come."""
        if self._waiting and self.alive:
            if self.frozen:
                self._backlog.append((self.poke, ()))
            else:
                self._advance()

    def thaw(self) -> None:
        self.frozen = False
        backlog, self._backlog = self._backlog, []
        for action, args in backlog:
            self.run(action, *args)

    def die(self) -> None:
        self.alive = False
        self._turn += 1
        self._waiting = False
        for told in self.clients:
            self.cluster.clock.after(self.cluster.rng.random() * 0.005, told)

    def _point(self, name: str) -> None:
        """A place in the protocol at which a fault may be planned to strike."""
        self.phase = name
        if self.cluster.traps:
            self.cluster.reached(name, self.name)
            if not self.alive:
                raise Died

    # ---------------------------------------------------------------- control thread

    def send(self, op: str, **fields: object) -> None:
        self.cluster.from_worker(self, {"op": op, **fields})

    def _beat(self) -> None:
        """A heartbeat is planned where there is something new: one that repeats the last changes nothing."""
        if not self._beating and self.generation:
            self._beating = True
            self.cluster.clock.after(self.cluster.rng.random() * self.cluster.heartbeat_s, self.run, self._heartbeat)

    def _heartbeat(self) -> None:
        self._beating = False
        if not self.leaving:
            over = self.entered if self.inbox.broken else self.completed  # one that ended with an error is over
            progress = {"phase": self.phase, "streams": {"world": (self.entered, over)}, "broken": self.inbox.broken}
            self.send("progress", boundary=self.boundary, doing={}, awaits=self.awaits, **progress)

    def wait(self, ready: Callable[[], T | None], generation: int | None, limit_s: float | None = None) -> Thread[T]:
        """Inbox.wait, in virtual time."""
        clock = self.cluster.clock
        deadline = clock.now + limit_s if limit_s is not None else None
        if limit_s is not None:
            clock.after(limit_s + 1e-6, self.poke)
        while True:
            if generation is not None and self.inbox.newest() > generation:
                raise GenerationSuperseded(f"{self.inbox.newest()} follows {generation}")
            value = ready()
            if value is not None:
                return value
            if deadline is not None and clock.now > deadline:
                raise PeerLost("no word from the coordinator")
            yield WAIT
