"""One rank's part of the protocol: begin, commit, quiesce, restore, resume.

Everything here runs in the training thread, except what says otherwise. The order of a recovery is the order of
the functions `_recover_once` calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore

from phoenix_core import backends, ddp, fsdp, lastwords, late
from phoenix_core.advice import LATE_COLLECTIVE, say_once, tell
from phoenix_core.bandwidth import Throttle
from phoenix_core.between import BetweenSteps
from phoenix_core.communicator import BACKEND, Hub, install
from phoenix_core.control import Control
from phoenix_core.errors import CheckpointDamaged, GenerationSuperseded, PeerLost, SnapshotUnavailable
from phoenix_core.events import EventWriter
from phoenix_core.exchange import Exchange
from phoenix_core.formation import Formation, report
from phoenix_core.gate import Gate
from phoenix_core.hooks import insist, let_signals_in, on_backward
from phoenix_core.inbox import Call, Inbox
from phoenix_core.kept import Payload
from phoenix_core.misuse import Misuse
from phoenix_core.saver import Saver, Written
from phoenix_core.settings import WorkerSettings, for_script
from phoenix_core.shards import BESIDE_TRAINING, ShardGate
from phoenix_core.snapshot import Protected
from phoenix_core.store import connected
from phoenix_core.warm import warm_up


class Rank:
    """The state of this process in the job. `on_call` is called by the control thread at each announcement."""

    def __init__(self, settings: WorkerSettings | None, on_call: Callable[[], None]) -> None:
        self.settings = settings
        self.rank, self.size, self.generation, self.boundary, self.begins_at = 0, 1, 0, 0, 0
        self.live: int | None = None
        self.protected = Protected()
        self._misuse, self._between = Misuse(self.protected), BetweenSteps(self.protected)
        self.inbox = Inbox()
        of = {"worker": settings.worker, "node": settings.node} if settings else {}
        self.events = EventWriter(settings.events if settings else None, forgiving=True, **of)
        self.hub = Hub(partial(connected, settings), settings.address if settings else "127.0.0.1")
        self.hub.formation_done = self.inbox.notify
        self.hub.before_collective = self._before_collective
        self._throttle = Throttle(settings.replica_bandwidth if settings else None)
        self.gate: Gate = Gate(self.protected, self.inbox, self._enter_phase, self._throttle)
        self._on_call = on_call
        self._control: Control | None = None
        self._exchange: Exchange | None = None
        self._call: Call | None = None
        self._early: Formation | None = None
        self._start, self._phase, self._in_loop, self._in_step, self._changing = b"", "", False, False, False
        self._buckets = ddp.Buckets(self.protected.ddp_modules)
        self._saver: Saver | None = None
        if settings is not None and settings.checkpoint is not None:
            self._saver = Saver(settings.checkpoint, settings.worker, self.protected, self._buckets, self._part_written)

    # ---------------------------------------------------------------- joining the job

    def open(self) -> None:
        """Get a rank, waiting for it if this is a spare, and initialise torch.distributed."""
        install(self.hub)
        if self.settings is None:
            self.generation = self.hub.generation = self.hub.announced = 1
            dist.init_process_group(BACKEND, store=PrefixStore("init", HashStore()), rank=0, world_size=1)
            return
        self._control = Control(self.settings.control_fd, self.settings.tripwire_fd, self.settings.heartbeat_s)
        self._exchange = Exchange(self.protected, self.settings.address, self.settings.token)
        self._control.start(self._on_command, self._progress)
        warm_up()
        self._control.send("parked", address=list(self._exchange.address))
        call = self.inbox.wait(lambda: self.inbox.call or (self.inbox.released or None), generation=None)
        if call is True:
            self._control.leave()
            raise SystemExit(0)  # the job ended without a need for this spare
        assert isinstance(call, Call)
        self._take_rank(call)

    def _take_rank(self, call: Call) -> None:
        assert self.settings is not None
        rank = call.world.rank_of(self.settings.worker)
        assert rank is not None
        self.rank, self.size, self.generation = rank, call.world.size, call.generation
        os.environ.update(for_script(rank, call.local_ranks[self.settings.worker], call.nodes))
        self._call, self.begins_at = call, call.boundary
        self.hub.generation = call.generation
        self.hub.local = not call.fresh
        store = PrefixStore(f"{call.generation}/init", self.hub.store_for(call.generation))
        dist.init_process_group(BACKEND, store=store, rank=rank, world_size=self.size)
        if not call.fresh:
            (self._early,) = self.hub.form(call.generation, call.joining)  # while the script builds its model

    def attach(self, before_optimizer: Callable[..., None]) -> None:
        """Hook into the protected objects: phases, interruption points, the instant before an in-place change.

        Raises UsageError for what cannot be restored.
        """
        self.protected.check(self.size)
        self._misuse.at_loop(self.size)
        if self.size > 1 and self.protected.has_own_state(self.size):
            assert self._exchange is not None
            of_rank = (self.protected, self.inbox, self._enter_phase, self._throttle, self._buckets)
            self.gate = ShardGate(*of_rank, self._exchange)
        for optimizer in self.protected.optimizers().values():
            optimizer.register_step_pre_hook(before_optimizer)
        on_backward(self.protected.modules().values(), self._enter_backward)
        let_signals_in(self.protected.parameters())

    def begin(self, limit_s: float) -> None:
        """Enter the loop: everybody together at the start, or by way of a recovery for a spare."""
        self._in_loop = True
        call = self._call
        if call is None or self._control is None:
            self.live = 0
        elif call.fresh:
            self.live = 0
            self._buckets.begin()
            self._open_gate(call)
            if call.boundary and self._saver is not None:
                self._put_back(call.boundary, *self._saver.read(call.boundary, self.rank, whole=self.gate.whole))
            self.gate.begin_loop(self.boundary)
            self._control.send("restored", generation=self.generation)
            try:
                self._wait(lambda: self.inbox.resumed.get(self.generation), self.generation)
            except GenerationSuperseded:
                self.recover(limit_s)  # a rank died just as the others began
        else:
            self._emit("model_built")
            self.recover(limit_s)

    # ---------------------------------------------------------------- a step

    def arrive(self) -> None:
        """The loop comes to its next step: from here on everything that the script does is done again if it breaks."""
        self._between.arrive()
        self._start = self.protected.capture_start()
        self._misuse.at_step()
        if self.size > 1:
            self.gate.arrive(self.boundary)
        if self._saver is not None and self._saver.due(self.boundary):
            self._saver.save(self.boundary, self.rank, self.size, whole=self.gate.whole)
        self._changing, self._in_step = False, True

    def begin_step(self, recorded: Mapping[str, Any]) -> None:
        """`recorded` is filled by the script during the step."""
        self.gate.begin_step(recorded)
        self._enter_phase("forward")

    def commit_step(self, duration_ns: int, recorded: Mapping[str, Any]) -> None:
        """The step is in the live state. Raises UsageError where its gradients wait for another step."""
        if not self._changing and self._phase != "forward":  # in "forward" the script has only left it early
            self._misuse.at_end(self.boundary)
        self.before_optimizer()  # of a step that has none
        self._in_step = False
        self._buckets.committed()
        step = self.boundary
        self.boundary += 1
        self.live, self._phase = self.boundary, ""
        self._between.left()
        stall = self.gate.committed(duration_ns)
        self._emit("step_committed", step=step, duration_ns=duration_ns, **stall, **recorded)
        if self._exchange is not None and (taken := self._exchange.taken(self.gate.own)):
            self._emit("memory_reported", step=step, **taken)

    def _enter_phase(self, phase: str) -> None:
        if phase not in BESIDE_TRAINING:
            self._phase = phase
        self._emit("phase_entered", step=self.boundary, phase=phase)

    def _enter_backward(self, _gradient: torch.Tensor) -> None:
        self.gate.enter_backward()
        if self._phase == "forward":
            self._misuse.at_backward()
            self.protected.gradients.at_backward()
            self._enter_phase("backward")

    def _before_collective(self, name: str, size: int) -> None:
        if self.size == 1 or self.hub.local:
            return
        if not (self._changing and self._in_step):
            self.gate.before_collective(name, everybody=size == self.size)
        elif not self.gate.whole:
            say_once(LATE_COLLECTIVE)

    def before_optimizer(self) -> None:
        """Return only once nothing of this step can be needed that is not safe."""
        self.hub.verify()
        if not self._changing:
            self._misuse.at_optimizer(whole=self.gate.whole)
            self.gate.before_optimizer(self.size)

    def begin_changing(self) -> None:
        """The live state changes from here on; the caller sees to it that nothing interrupts."""
        if not self._changing:
            self._changing, self.live = True, None
            self._enter_phase("optimizer")

    def _open_gate(self, call: Call) -> None:
        holder = self.gate.holder(self.rank, call.nodes)
        token = self.settings.token if self.settings else ""
        self.gate.open(self.rank, call.generation, holder, call.peers, token)

    # ---------------------------------------------------------------- recovery

    def superseded(self) -> bool:
        return self.inbox.newest() > self.generation

    def recover(self, limit_s: float) -> None:
        """Follow the newest generation until one has resumed.

        Raises JobStopped where the coordinator announces none within `limit_s`.
        """
        joining = self._early is not None and self._early.generation == self.inbox.newest()
        while True:
            try:
                if not joining:
                    self._quiesce(self.inbox.expect_news(self.generation, limit_s, self._nobody_failed))
                call = self._call if joining and self._call else self.inbox.next_call(self.generation - 1)
                joining = False
                if call.generation != self.generation:
                    self._quiesce(call.generation)  # the one that was alerted has been superseded already
                self._recover_once(call)
                return
            except GenerationSuperseded:
                continue
            except PeerLost as error:  # who could not give what the plan promised is dying or was superseded itself
                self._tell("script_failed", error=str(error))
            except (SnapshotUnavailable, CheckpointDamaged) as error:
                self._tell("restore_failed", generation=self.generation, reason=str(error))

    def _nobody_failed(self) -> None:
        """And yet a collective broke: the network did, so all shall meet anew, on new connections."""
        self.hub.distrusted = self.generation
        self._tell("collective_broken", generation=self.generation, reason="a connection broke; nobody has failed")

    def _recover_once(self, call: Call) -> None:
        generation, exchange = call.generation, self._exchange
        assert exchange is not None and self._control is not None
        self._send_offer(generation)
        early, self._early = self._early, None
        formations = self.hub.connect(self.hub.form(generation, call.joining, early))
        plan = self._wait(lambda: self.inbox.plans.get(generation), generation)
        (layouts, start, told), source, moved, aside = exchange.own(), "live", 0, False
        if plan.tensors is not None and not self.gate.whole:
            source, aside = f"rank {plan.tensors}", self.live is not None
            layouts, start, told, moved = exchange.fetch_live(call, plan.tensors, plan.boundary, aside=aside)
        kept: Payload | None = None
        if not plan.disk and not (self.gate.whole and self.live == plan.boundary):  # else its live state is what counts
            kept = exchange.kept_of(call, plan, self.rank, self.gate.own, self.gate.kept, whole=self.gate.whole)
            kept = kept if plan.tensors is None else late.taken_over(kept, told.changed)
        for formation in formations:
            self._wait(lambda f=formation: f.done.is_set() or None, generation)  # type: ignore[misc]
        self.hub.install(*formations)
        self._emit("communicator_ready", **report(formations))
        if plan.disk or self.live != plan.boundary:
            self.live = None  # not before all that takes its place is here: it may be the last copy of its boundary
        exchange.take_in()
        if plan.disk and self._saver is not None:
            source = "disk"
            layouts, start, small = self._saver.read(plan.boundary, self.rank, whole=self.gate.whole)
            for states in (self.gate.own, *exchange.held_states):
                states.forget_after(plan.boundary)
            kept = None if self.gate.whole else small
        else:
            layouts, start, small = self.gate.put_back(plan.boundary, layouts, start, kept)
        self._put_back(plan.boundary, layouts, start, small)
        self.gate.hear(told, disk=plan.disk)
        if plan.tensors is not None and plan.boundary > 0 and not self.gate.whole:
            # This rank never ended that step, but the state that it was given has it: say so, with its records.
            self._emit("step_committed", step=plan.boundary - 1, restored=True, **self.gate.recorded)
        self._open_gate(call)
        self.gate.make_safe(plan.boundary, kept)
        self._emit("state_restored", boundary=plan.boundary, source=source, bytes=moved, aside=aside)
        self._control.send("restored", generation=generation)
        self._wait(lambda: self.inbox.resumed.get(generation), generation)
        self.gate.resumed(plan.boundary, exchange.held_states, call.nodes)
        exchange.rise()
        self.hub.bury()

    def _quiesce(self, generation: int) -> None:
        """Leave the old generation, and come to rest in a state that others can be served from."""
        self.generation, self._early = generation, None
        assert self._exchange is not None
        self.hub.localise()
        backends.settle()
        self.gate.settle()
        fsdp.reset(self.protected.modules().values())
        if self._in_step and not self._changing and self._misuse.at_break():
            self.live = None  # others shall not be given this, nor does this rank go on with it
        if self.live is not None:
            if self._in_loop and not (self._in_step or self._between.again or self.gate.whole):
                self.gate.arrive(self.live)  # what the loop changed since the step ended is kept, as if it went on
            start = self._start if self._in_step else self.protected.capture_start()
            layouts, told = self._buckets.of_next_step(), self.gate.told(self.live)
            self._exchange.rest(generation, self.live, layouts, start, told)
        self._emit("worker_quiesced", boundary=self.live, let_go=self.hub.let_go)

    def _send_offer(self, generation: int) -> None:
        assert self._control is not None and self._exchange is not None
        offer = self.gate.offer(self.rank, self.live, *self._exchange.holdings())
        self._control.send("quiesced", generation=generation, offer=offer.to_json())

    def _put_back(self, boundary: int, layouts: Sequence[ddp.Layout], start: bytes, small: bytes) -> None:
        """The state of `boundary`, as if this rank had just come there in the undisturbed run."""
        self._buckets.put_back(layouts)
        self.protected.load_start(start)
        self.gate.restored(self.protected.load_small(small))
        self.boundary = self.live = boundary
        self._changing = self._in_step = False
        self._phase = ""
        self._between.broke(start, small)

    # ---------------------------------------------------------------- the end

    def finish(self) -> None:
        """Wait until every rank has executed its last step. Raises GenerationSuperseded if one failed before."""
        if self._control is None:
            return
        self._control.send("finished", generation=self.generation)
        self._wait(lambda: self.inbox.released or None, self.generation)
        if self._saver is not None and self._saver.due(self.boundary, last=True):
            self._saver.save(self.boundary, self.rank, self.size, whole=self.gate.whole)

    def digest(self) -> str:
        digest, buffers = self.protected.digests()
        self._emit("state_digest", step=self.boundary, digest=digest, buffers=buffers, sharded=self.gate.whole)
        return digest

    def report_failure(self, error: BaseException) -> None:
        """Say so. Does not return where the device failed and somebody can take this rank over."""
        lastwords.say(error, self._emit, self._tell, leaving=self._control is not None)

    def close(self) -> None:
        if self._control is not None:
            self._control.leave()
        if self._saver is not None:
            self._saver.settle()
        self.gate.close()
        if self._exchange is not None:
            self._exchange.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        self.hub.close()
        self.events.close()

    # ---------------------------------------------------------------- other threads

    def _on_command(self, message: dict[str, Any]) -> None:
        """Control thread. The groups are broken here, since the training thread may wait in one."""
        self.inbox.put(message)
        newest = self.inbox.newest()
        if message["op"] in ("world", "alert") and 0 < self.generation < newest:
            self._break_off(newest)
            insist(lambda: self.generation >= newest, lambda: self._break_off(newest))
            if self._exchange is not None:
                self._exchange.interrupt()
            if not self._in_loop and message["op"] == "world":
                self._send_offer(newest)  # still building: it has nothing to give, and says so at once

    def _break_off(self, newest: int) -> None:
        """Get the training thread out of whatever it waits for or computes."""
        self.hub.announce(newest)
        if self._in_loop:
            self._on_call()

    def _progress(self) -> dict[str, object]:
        where = {"boundary": self.boundary, "phase": self._phase, "broken": self.inbox.broken}
        return {**where, "awaits": self.gate.awaits, **self.hub.watermark.told()}

    def _part_written(self, written: Written) -> None:
        """Thread of the saver."""
        fields, lost = asdict(written), f"no checkpoint of step {written.boundary}"
        self._emit("checkpoint_written", step=fields.pop("boundary"), **fields)
        if written.error:
            tell(f"phoenix: {lost} from rank {self.rank}: {written.error}")
            self._tell("advised", about=lost, text=f"{lost}: {written.error}")
        else:
            self._tell("checkpointed", boundary=written.boundary)

    def _wait(self, ready: Callable[[], Any], generation: int) -> Any:
        return self.inbox.wait(ready, generation=generation)

    def _tell(self, op: str, **fields: object) -> None:
        if self._control is not None:
            self._control.send(op, **fields)

    def _emit(self, kind: str, at: int | None = None, **fields: object) -> None:
        self.events.emit(kind, at=at, generation=self.generation, rank=self.rank, **fields)
