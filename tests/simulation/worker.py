"""One worker: the rank's side of the protocol, as phoenix_core's recovery, exchange, gate and training do it.

Inbox and KeptStates are the production classes; the rest cannot be, since it holds tensors and real sockets.
Where production has a thread of its own, here is a method that the network calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from phoenix_core.errors import GenerationSuperseded, JobStopped, PeerLost, PhoenixError, SnapshotUnavailable
from phoenix_core.inbox import NOBODY_FAILED_S, Call
from phoenix_core.kept import KeptStates
from phoenix_core.placement import Offer
from tests.simulation.gates import Gate, ShardGate
from tests.simulation.groups import Formation, Group
from tests.simulation.peers import Answer
from tests.simulation.process import WAIT, Process, Thread
from tests.simulation.truth import gradient, small_after, tensors_after

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

ANNOUNCEMENT_LIMIT_S: Final = 60.0
"""As in phoenix_core.training, which imports torch."""


class Interrupted(BaseException):
    """StepInterrupted of phoenix_core.training: the signal that gets the training thread out of its step."""


class Broken(Exception):
    """A collective's connection ended (torch's bare RuntimeError)."""


class ScriptError(Exception):
    """The training script raised."""


HEALED = (Interrupted, Broken, GenerationSuperseded, PeerLost)


class Worker(Process):
    def __init__(self, cluster: Cluster, name: str, node: str) -> None:
        super().__init__(cluster, name, node)
        self.held = KeptStates()
        self.gate = ShardGate(self) if cluster.plan.sharded else Gate(self)
        self.rank, self.size = -1, 0
        self.live: int | None = None
        self.tensors, self.small = 0, 0
        self.whole: int | None = None
        """The boundary of which `tensors` is the whole state, whatever `live` says; for the invariants."""
        self.parked = self.in_loop = self.interruptible = False
        self.exchanged_at = 0.0
        """When the last rank entered the collective that ended last here."""
        self.fetching: Answer[Any] | None = None
        self._call: Call | None = None
        self._early: Formation | None = None
        self._early_generation = 0
        self._serving: tuple[int, int] | None = None
        self._group: Group | None = None
        self._broken, self._announced, self._hub_generation, self._local = False, 0, 0, False
        self._ended_early: set[int] = set()

    def die(self) -> None:
        super().die()
        if self._group is not None and not self._broken:
            self._group.break_off(self)

    # ---------------------------------------------------------------- control thread

    def on_command(self, message: dict[str, Any]) -> None:
        self.inbox.put(message)
        newest = self.inbox.newest()
        if message["op"] in ("world", "alert") and 0 < self.generation < newest:
            self._announced = newest
            self._break_group()
            if self.fetching is not None:
                self.fetching.finish(PeerLost("a newer generation has made the transfer void"))
            if self.in_loop:
                self.cluster.clock.after(self.cluster.rng.random() * 0.004, self.run, self._on_signal)
            elif message["op"] == "world":
                self._send_offer(newest)
        if message["op"] == "resume":
            self._beat()
        self.poke()

    def _on_signal(self) -> None:
        """Handled at the next bytecode: never inside of a collective, which its broken sockets end."""
        if self.interruptible and not self._waiting:
            self.interruptible = False
            if self.stuck and self.cluster.deaf_hangs:
                return
            self.stuck = False
            self._advance(Interrupted())

    # ---------------------------------------------------------------- the process's life

    def main(self) -> Thread[None]:
        code = 0
        try:
            call = yield from self._open()
            if call is not None:
                yield from self._build(call)
                yield from self._begin()
                yield from self._loop()
                self._point("epilogue")
                yield self.cluster.work_s("epilogue")
        except (ScriptError, PhoenixError, Broken) as error:
            self.send("script_failed", error=f"{type(error).__name__}: {error}")
            code = 1
        self.leaving = True
        self.send("leaving")
        yield self.cluster.work_s("exit")
        self.cluster.process_ended(self, code)

    def _open(self) -> Thread[Call | None]:
        self._point("start")
        yield self.cluster.work_s("start")
        self.send("parked", address=[self.name, 0])
        self.parked = True
        self._point("parked")
        call = yield from self.wait(lambda: self.inbox.call or (self.inbox.released or None), None)
        return None if call is True else cast("Call", call)

    def _build(self, call: Call) -> Thread[None]:
        rank = call.world.rank_of(self.name)
        assert rank is not None, f"{self.name} was given no rank in {call.world}"
        self.rank, self.size, self.generation = rank, call.world.size, call.generation
        self._call = call
        self._hub_generation, self._local = call.generation, not call.fresh
        group = self.cluster.group(call.generation, call.world)
        formation = group.form(rank, self)
        if call.fresh:
            yield from self._formed(formation)
            self._install(group)
        else:
            self._early, self._early_generation = formation, call.generation
        self._point("build")
        yield self.cluster.work_s("build")
        self._raise_if_planned("build")
        self.small = self.cluster.truth.small[0][rank]

    def _begin(self) -> Thread[None]:
        self.in_loop = True
        call = self._call
        assert call is not None
        if not call.fresh:
            yield from self.recover()
            return
        self.live = self.whole = 0
        self.gate.open(call)
        yield from self.gate.begin_loop()
        self.send("restored", generation=self.generation)
        try:
            yield from self.wait(lambda: self.inbox.resumed.get(self.generation), self.generation)
        except GenerationSuperseded:
            yield from self.recover()

    def _loop(self) -> Thread[None]:
        """Session.steps."""
        while True:
            while self.boundary < self.cluster.steps:
                if self.inbox.newest() > self.generation:
                    yield from self.recover()
                    continue
                try:
                    yield from self._step_block()
                except HEALED:
                    yield from self.recover()
            try:
                self._point("finished")
                self.send("finished", generation=self.generation)
                yield from self.wait(lambda: self.inbox.released or None, self.generation)
                return
            except GenerationSuperseded:
                yield from self.recover()

    # ---------------------------------------------------------------- a step

    def _step_block(self) -> Thread[None]:
        try:
            yield from self._step()
        finally:
            self.interruptible = False

    def _step(self) -> Thread[None]:
        cluster, boundary = self.cluster, self.boundary
        self.gate.begin_step(boundary)
        self.interruptible = True
        self._point("forward")
        yield cluster.work_s("forward")
        self._raise_if_planned("forward")
        self.small = small_after(self.small, self.rank)
        self._point("backward")
        yield cluster.work_s("backward")
        self.gate.capture()
        self._point("gradient_sync")
        first = self._enter(gradient(self.tensors, self.small))
        if cluster.buckets > 1:
            yield cluster.work_s("backward")
            yield from self.gate.wait_safe(self.gate.needed())
            second = self._enter(0)
            reduced = yield from self._end_of(first)
            yield from self._end_of(second)
        else:
            reduced = yield from self._end_of(first)
            yield from self.gate.wait_safe(self.gate.needed())
            yield from self._end_of(self._enter(0))
        yield from self.gate.copied()
        yield from self._shield()
        self.whole = None
        self._point("optimizer")
        yield cluster.work_s("optimizer")
        self.tensors = tensors_after(self.tensors, reduced)
        self._point("commit")
        self.boundary = boundary + 1
        self.live = self.whole = self.boundary
        cluster.checks.committed(self, boundary)

    def _shield(self) -> Thread[None]:
        """From here to the end of the step there is no interruption and no way back."""
        self.interruptible = False
        self.live = None
        yield from ()

    def _raise_if_planned(self, where: str) -> None:
        if self.cluster.script_raises(where, self):
            raise ScriptError(f"a deliberate mistake in {where}")

    def _enter(self, value: int) -> int:
        if self._group is None or (self._announced > self._hub_generation and not self._local):
            raise GenerationSuperseded("a collective of an old generation")
        index = self.entered
        self.entered += 1
        self._group.enter(self.rank, index, value)
        return index

    def _end_of(self, index: int) -> Thread[int]:
        group = self._group
        assert group is not None
        while self.completed <= index:
            if self._broken:
                raise Broken("the connection was closed")
            yield WAIT
        return group.results[index]

    def collective_ended(self, group: Group, index: int) -> None:
        self.run(self._collective_ended, group, index)

    def _collective_ended(self, group: Group, index: int) -> None:
        if group is self._group and not self._broken:
            if index == self.completed:
                self.completed += 1
                while self.completed in self._ended_early:
                    self._ended_early.discard(self.completed)
                    self.completed += 1
                self.exchanged_at = group.full_at[index]
                self.poke()
            else:
                self._ended_early.add(index)

    def connection_broke(self, group: Group) -> None:
        self.run(self._connection_broke, group)

    def _connection_broke(self, group: Group) -> None:
        if group is self._group:
            self._broken = True
            self.poke()

    def connections_reset(self) -> None:
        """The network breaks this rank's connections: every rank has one of them, and some notice late."""
        if self._group is not None:
            self._group.reset(self)

    def _break_group(self) -> None:
        if self._group is not None and not self._broken:
            self._broken = True
            self._group.break_off(self)

    def _install(self, group: Group) -> None:
        self._group, self._broken, self._local = group, False, False
        self._hub_generation = group.generation
        self.entered = self.completed = 0
        self._ended_early.clear()

    # ---------------------------------------------------------------- recovery

    def recover(self) -> Thread[None]:
        joining = self._early is not None and self._early_generation == self.inbox.newest()
        while True:
            try:
                if not joining:
                    self._quiesce((yield from self._expect_news()))
                after = self.generation - 1
                call = (
                    self._call if joining else (yield from self.wait(lambda after=after: self._call_after(after), None))  # type: ignore[misc]
                )
                joining = False
                assert call is not None
                if call.generation != self.generation:
                    self._quiesce(call.generation)
                yield from self._recover_once(call)
                return
            except GenerationSuperseded:
                continue
            except (PeerLost, SnapshotUnavailable) as error:
                self.send("script_failed", error=str(error))

    def _call_after(self, generation: int) -> Call | None:
        return self.inbox.call if self.inbox.call is not None and self.inbox.call.generation > generation else None

    def _expect_news(self) -> Thread[int]:
        self.inbox.broken = True
        try:
            return (yield from self._news_after(self.generation))
        finally:
            self.inbox.broken = False

    def _news_after(self, generation: int) -> Thread[int]:
        def newer() -> int | None:
            return self.inbox.newest() if self.inbox.newest() > generation else None

        try:
            return (yield from self.wait(newer, None, NOBODY_FAILED_S))
        except PeerLost:
            self.send("collective_broken", generation=generation, reason="nobody has failed")
        try:
            return (yield from self.wait(newer, None, ANNOUNCEMENT_LIMIT_S))
        except PeerLost:
            raise JobStopped("a collective broke and no new generation was announced") from None

    def _quiesce(self, generation: int) -> None:
        self.generation = generation
        self._early = None
        self._local = True
        if self._group is not None:
            self._break_group()
            self._group = None
        if self.live is not None:
            self._serving = (generation, self.live)
        self._point("quiesce")

    def _send_offer(self, generation: int) -> None:
        number = self.cluster.checks.offered(self, generation)
        own, held = self.gate.own.boundaries().get(self.rank, ()), self.held.boundaries()
        offer = Offer(live=self.live, own=own, whole=self.gate.whole and self.in_loop, held=held)
        self.send("quiesced", generation=generation, offer=offer.to_json(), number=number)

    def _recover_once(self, call: Call) -> Thread[None]:
        cluster, generation = self.cluster, call.generation
        self._send_offer(generation)
        self._point("offered")
        group = cluster.group(generation, call.world)
        early, self._early = self._early, None
        formation = early if early is not None and self._early_generation == generation else group.form(self.rank, self)
        plan = yield from self.wait(lambda: self.inbox.plans.get(generation), generation)
        self._point("planned")
        small, tensors = yield from self.gate.fetch(call, plan)
        self._point("fetched")
        yield from self._formed(formation)
        self._install(group)
        if self.live != plan.boundary:
            self.live = self.whole = None
        self.small, self.tensors = small, tensors
        self.boundary = plan.boundary
        yield cluster.work_s("put_back")
        self.live = self.whole = plan.boundary
        self.gate.open(call)
        yield from self.gate.make_safe(plan.boundary)
        cluster.checks.restored(self, plan.boundary)
        self.send("restored", generation=generation)
        self._point("restored")
        yield from self.wait(lambda: self.inbox.resumed.get(generation), generation)
        self.gate.resumed(call)
        self._serving = None
        self._point("resumed")

    def _formed(self, formation: Formation) -> Thread[None]:
        yield from self.wait(lambda: formation.done or None, self.generation)
        if formation.failed:
            raise GenerationSuperseded("the group could not be formed")

    def serve_live(self, wanted: tuple[int, int]) -> int:
        if self._serving != wanted:
            raise SnapshotUnavailable(f"{self.name} does not rest at {wanted}")
        return self.tensors
