"""The membership as a state machine: each rule of the protocol by itself, without time or processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from phoenix_core.inbox import NOBODY_FAILED_S
from phoenix_core.membership import RECOVERY_LIMIT_S, Membership
from phoenix_core.narrator import Narrator
from phoenix_core.placement import Offer
from phoenix_core.protocol import (
    Alert,
    Announce,
    CollectiveBroken,
    Decision,
    DeviceFailed,
    End,
    GpuFailed,
    Input,
    Kill,
    LoopFinished,
    NodeLost,
    Probe,
    Probed,
    Progress,
    Progressed,
    Quiesced,
    Record,
    Release,
    Restored,
    RestoreFailed,
    Resume,
    ScriptFailed,
    SendPlan,
    Spawn,
    Tick,
    WorkerExited,
    WorkerParked,
    WorkerSuspected,
)
from phoenix_core.roster import Job, Phase, State
from phoenix_core.xids import Action

D = TypeVar("D")


def only(decisions: Sequence[Decision], kind: type[D]) -> list[D]:
    return [decision for decision in decisions if isinstance(decision, kind)]


def at(boundary: int, phase: str, entered: int, completed: int) -> Progress:
    """A rank of a job with one group."""
    return Progress(boundary=boundary, phase=phase, streams={"world": (entered, completed)})


class Drive:
    """A membership and the shortest way to the states that the tests begin in."""

    def __init__(self, ranks: int = 4, spares: int = 1, max_restarts: int = 3) -> None:
        nodes = tuple(f"n{rank}" for rank in range(ranks))
        extra = tuple(f"s{spare}" for spare in range(spares))
        self.membership = Membership(Job(rank_nodes=nodes, spare_nodes=extra, max_restarts=max_restarts))
        self.now = 0.0
        self.spawned = [decision.worker for decision in only(self.membership.start(), Spawn)]

    def tell(self, event: Input) -> list[Decision]:
        self.now += 0.01
        return self.membership.handle(event, self.now)

    def park(self, *workers: str) -> list[Decision]:
        return [d for w in workers for d in self.tell(WorkerParked(worker=w, address=("127.0.0.1", 1)))]

    def restore_all(self) -> list[Decision]:
        generation = self.membership.generation
        return [d for w in self.membership.ranks for d in self.tell(Restored(worker=w, generation=generation))]

    def run(self) -> Drive:
        """Everybody parked, formed, built and resumed."""
        self.park(*self.spawned)
        self.restore_all()
        assert self.membership.phase is Phase.RUNNING
        return self

    def tick(self, cut: Sequence[str] = ()) -> list[Decision]:
        """Ticks until nothing more is asked of the nodes, of which those in `cut` reach no other one."""
        decisions = self.tell(Tick())
        while asked := only(decisions, Probe):
            assert len(asked) == 1
            for node in asked[0].addresses:
                others = [other for other in asked[0].addresses if other != node and (node in cut or other in cut)]
                self.tell(Probed(node=node, number=asked[0].number, unreached=tuple(others)))
            decisions = self.tell(Tick())
        return decisions

    def offer_all(self, boundary: int, *, lost: int) -> list[Decision]:
        """Every survivor offers `boundary` and holds the small state of rank `lost`."""
        offer = Offer(live=boundary, own=(boundary,), held={lost: (boundary,)})
        generation = self.membership.generation
        return [
            d
            for rank, worker in enumerate(self.membership.ranks)
            if rank != lost
            for d in self.tell(Quiesced(worker=worker, generation=generation, offer=offer))
        ]

    def step(self, boundary: int) -> list[Decision]:
        progress = at(boundary, "forward", boundary, boundary)
        return [d for w in self.membership.ranks for d in self.tell(Progressed(worker=w, progress=progress))]


def test_the_first_world_forms_once_all_ranks_are_warm_and_does_not_wait_for_spares() -> None:
    drive = Drive()
    assert not only(drive.park("w0", "w1", "w2"), Announce)
    (announced,) = only(drive.park("w3"), Announce)
    assert announced.world.ranks == ("w0", "w1", "w2", "w3") and announced.fresh and announced.joining == ()
    (resumed,) = only(drive.restore_all(), Resume)
    assert (resumed.generation, resumed.boundary) == (1, 0)


def test_a_dead_rank_goes_to_the_spare_and_everybody_resumes_at_the_common_step() -> None:
    drive = Drive().run()
    decisions = drive.tell(WorkerExited(worker="w2", code=-9))
    assert only(decisions, Record)[0].kind == "failure_detected"
    (announced,) = only(decisions, Announce)
    assert announced.world.ranks == ("w0", "w1", "w4", "w3") and announced.joining == (2,) and not announced.fresh
    (planned,) = only(drive.offer_all(7, lost=2), SendPlan)
    assert planned.plan.boundary == 7 and set(planned.plan.sources) == {2}
    (resumed,) = only(drive.restore_all(), Resume)
    assert (resumed.generation, resumed.boundary) == (2, 7)


def test_the_replacement_starts_only_after_the_new_world_has_a_step_of_its_own() -> None:
    drive = Drive().run()
    drive.tell(WorkerExited(worker="w2", code=-9))
    drive.offer_all(7, lost=2)
    assert not only(drive.restore_all(), Spawn)
    assert not only(drive.step(7), Spawn)
    (spawned,) = only(drive.step(8), Spawn)
    assert spawned.node == "n2"


def test_without_a_spare_survivors_are_alerted_and_a_new_worker_is_waited_for() -> None:
    drive = Drive(spares=0).run()
    decisions = drive.tell(WorkerExited(worker="w1", code=-9))
    assert only(decisions, Alert)[0].generation == 2
    (spawned,) = only(decisions, Spawn)
    (announced,) = only(drive.park(spawned.worker), Announce)
    assert announced.world.ranks[1] == spawned.worker


def test_a_second_failure_during_recovery_leads_to_the_next_generation() -> None:
    drive = Drive(spares=2).run()
    drive.tell(WorkerExited(worker="w2", code=-9))
    (announced,) = only(drive.tell(WorkerExited(worker="w0", code=-9)), Announce)
    assert announced.world.generation == 3
    # Rank 2's spare has no state yet, so it still joins.
    assert announced.joining == (0, 2)
    stale = Quiesced(worker="w1", generation=2, offer=Offer(live=7))
    assert drive.tell(stale) == []


def test_the_spare_in_use_may_die_too() -> None:
    drive = Drive(spares=2).run()
    drive.tell(WorkerExited(worker="w2", code=-9))
    (announced,) = only(drive.tell(WorkerExited(worker="w4", code=-9)), Announce)
    assert announced.world.ranks[2] == "w5"


def test_a_parked_spare_that_dies_is_replaced_without_a_new_generation() -> None:
    drive = Drive().run()
    decisions = drive.tell(WorkerExited(worker="w4", code=-9))
    assert not only(decisions, Announce)
    assert only(decisions, Spawn)[0].node == "s0"
    assert only(decisions, Record)[0].fields["rank"] is None


def test_a_stopped_worker_is_fenced() -> None:
    drive = Drive().run()
    decisions = drive.tell(WorkerSuspected(worker="w1", cause="stopped"))
    assert only(decisions, Kill)[0].worker == "w1"
    assert drive.tell(WorkerExited(worker="w1", code=-9)) == []  # its end is no second failure


def test_a_lost_node_takes_all_its_workers_and_starts_none_there() -> None:
    drive = Drive(ranks=2, spares=2).run()
    decisions = drive.tell(NodeLost(node="n0"))
    assert only(decisions, Announce)[0].world.ranks[0] == "w2"
    drive.offer_all(3, lost=0)
    drive.restore_all()
    assert not only(drive.step(4), Spawn)


def test_a_failure_before_training_stops_the_job_with_the_scripts_own_error() -> None:
    drive = Drive()
    drive.park("w0")
    drive.tell(ScriptFailed(worker="w1", error="FileNotFoundError: no corpus"))
    (end,) = only(drive.tell(WorkerExited(worker="w1", code=1)), End)
    assert end.outcome == "failed" and "FileNotFoundError: no corpus" in end.reason


def test_a_script_that_fails_again_and_again_is_given_up() -> None:
    drive = Drive(spares=4, max_restarts=2).run()
    for _ in range(2):
        assert not only(drive.tell(WorkerExited(worker=drive.membership.ranks[2], code=1)), End)
    (end,) = only(drive.tell(WorkerExited(worker=drive.membership.ranks[2], code=1)), End)
    assert end.outcome == "failed" and "--max-restarts 2" in end.reason


def test_progress_forgives_earlier_failures() -> None:
    drive = Drive(spares=6, max_restarts=1).run()
    for boundary in (3, 6, 9):
        assert not only(drive.tell(WorkerExited(worker=drive.membership.ranks[2], code=1)), End)
        drive.offer_all(boundary, lost=2)
        drive.restore_all()
        drive.step(boundary)
        drive.step(boundary + 1)


def test_state_that_nobody_has_ends_the_job_and_is_named() -> None:
    drive = Drive(ranks=2).run()
    drive.tell(WorkerExited(worker="w0", code=-9))
    (end,) = only(drive.tell(Quiesced(worker="w1", generation=2, offer=Offer(live=5))), End)
    assert end.outcome == "failed" and "small state of rank 0" in end.reason


def test_where_the_plan_cannot_be_kept_another_round_offers_what_is_left() -> None:
    drive = Drive(ranks=2).run()
    drive.step(1)
    drive.tell(WorkerExited(worker="w0", code=-9))
    both = Offer(live=None, own=(4, 5), whole=True, held={0: (4, 5)})
    (sent,) = only(drive.tell(Quiesced(worker="w1", generation=2, offer=both)), SendPlan)
    assert sent.plan.boundary == 5
    joined = drive.membership.ranks[0]
    decisions = drive.tell(RestoreFailed(worker=joined, generation=2, reason="damaged"))
    (announced,) = only(decisions, Announce)
    assert announced.world.generation == 3 and announced.joining == (0,)
    assert drive.tell(RestoreFailed(worker=joined, generation=2, reason="damaged")) == []
    drive.tell(Quiesced(worker=joined, generation=3, offer=Offer(live=None, whole=True)))
    left = Offer(live=None, own=(4, 5), whole=True, held={0: (4,)})
    (sent,) = only(drive.tell(Quiesced(worker="w1", generation=3, offer=left)), SendPlan)
    assert sent.plan.boundary == 4


def test_where_a_connection_broke_and_nobody_failed_the_same_ranks_meet_anew() -> None:
    drive = Drive().run()
    drive.step(1)
    broken = CollectiveBroken(worker="w1", generation=1, reason="reset")
    decisions = drive.tell(broken)
    (announced,) = only(decisions, Announce)
    assert announced.world.generation == 2 and announced.joining == ()
    assert announced.world.ranks == ("w0", "w1", "w2", "w3")
    assert [record.kind for record in only(decisions, Record)] == ["collective_broken", "world_formed"]
    assert drive.tell(broken) == []  # the other ranks say the same, of a generation that is over
    assert drive.tell(CollectiveBroken(worker="w2", generation=2, reason="reset")) == []  # while they meet


def test_a_rank_that_has_met_a_broken_connection_is_not_taken_for_hung() -> None:
    """It waits to hear who has failed for longer than a hang may last, while the others wait for it."""
    drive = Drive().run()
    drive.step(1)
    drive.step(2)
    for worker in ("w0", "w2", "w3"):
        drive.tell(Progressed(worker=worker, progress=at(2, "gradient_sync", 9, 8)))
    drive.tell(Progressed(worker="w1", progress=replace(at(2, "gradient_sync", 8, 8), broken=True)))
    assert drive.membership.watch.pace.hang_limit_s() < NOBODY_FAILED_S
    drive.now += NOBODY_FAILED_S
    assert drive.tick() == []
    (announced,) = only(drive.tell(CollectiveBroken(worker="w1", generation=1, reason="reset")), Announce)
    assert announced.world.ranks == ("w0", "w1", "w2", "w3")


def test_a_rank_that_hangs_is_blamed_although_another_has_met_a_broken_connection() -> None:
    drive = Drive().run()
    drive.step(1)
    drive.step(2)
    for worker in ("w0", "w3"):
        drive.tell(Progressed(worker=worker, progress=at(2, "gradient_sync", 9, 8)))
    drive.tell(Progressed(worker="w1", progress=replace(at(2, "gradient_sync", 8, 8), broken=True)))
    drive.tell(Progressed(worker="w2", progress=at(2, "forward", 7, 7)))
    drive.now += drive.membership.watch.pace.hang_limit_s() + 1
    (detected, *_) = only(drive.tick(), Record)
    assert (detected.fields["worker"], detected.fields["cause"]) == ("w2", "no_progress")


def test_connections_that_always_break_end_the_job() -> None:
    drive = Drive(max_restarts=2).run()
    ended: list[End] = []
    while not ended:
        ended = only(drive.tell(CollectiveBroken(worker="w1", generation=drive.membership.generation, reason="r")), End)
        if not ended:
            drive.offer_all(1, lost=-1)
            drive.restore_all()
    assert drive.membership.generation == 3 and "--max-restarts 2" in ended[0].reason


def test_a_plan_that_can_never_be_kept_ends_the_job() -> None:
    drive = Drive(ranks=2).run()
    drive.step(1)
    drive.tell(WorkerExited(worker="w0", code=-9))
    whole = Offer(live=None, own=(5,), whole=True, held={0: (5,)})
    ended: list[End] = []
    while not ended:
        generation = drive.membership.generation
        for worker in drive.membership.ranks:
            drive.tell(Quiesced(worker=worker, generation=generation, offer=whole))
        failed = RestoreFailed(worker=drive.membership.ranks[0], generation=generation, reason="rot")
        ended = only(drive.tell(failed), End)
    assert "rot" in ended[0].reason and "--max-restarts" in ended[0].reason


def test_the_rank_that_does_not_enter_the_collective_is_blamed() -> None:
    drive = Drive().run()
    drive.step(1)
    drive.step(2)
    for worker in ("w0", "w2", "w3"):
        drive.tell(Progressed(worker=worker, progress=at(2, "gradient_sync", 9, 8)))
    drive.tell(Progressed(worker="w1", progress=at(2, "forward", 8, 8)))
    assert drive.tell(Tick()) == []
    drive.now += drive.membership.watch.pace.hang_limit_s() + 1
    detected = only(drive.tick(), Record)[0]
    assert detected.fields["worker"] == "w1" and detected.fields["cause"] == "no_progress"


def test_a_rank_that_saves_or_evaluates_between_two_steps_is_given_more_time() -> None:
    drive = Drive().run()
    drive.step(1)
    drive.step(2)
    waiting = at(2, "gradient_sync", 9, 8)
    for worker in ("w1", "w2", "w3"):
        drive.tell(Progressed(worker=worker, progress=waiting))
    drive.tell(Progressed(worker="w0", progress=at(2, "", 8, 8)))
    drive.now += drive.membership.watch.pace.hang_limit_s() + 1
    assert drive.tick() == []
    drive.now += drive.membership.job.detection.between_steps_s
    detected = only(drive.tick(), Record)[0]
    assert detected.fields["worker"] == "w0" and detected.fields["cause"] == "no_progress"


def test_nobody_is_blamed_while_anybody_moves() -> None:
    drive = Drive().run()
    drive.step(1)
    drive.step(2)
    for worker in ("w0", "w2", "w3"):
        drive.tell(Progressed(worker=worker, progress=at(2, "gradient_sync", 9, 8)))
    drive.now += drive.membership.watch.pace.hang_limit_s() + 1
    drive.tell(Progressed(worker="w1", progress=at(2, "backward", 8, 8)))
    assert drive.tell(Tick()) == []


def test_a_survivor_that_never_quiesces_is_taken_for_failed() -> None:
    drive = Drive(spares=2).run()
    drive.tell(WorkerExited(worker="w2", code=-9))
    offer = Offer(live=7, own=(7,), held={2: (7,)})
    for worker in ("w0", "w1"):
        drive.tell(Quiesced(worker=worker, generation=2, offer=offer))
    drive.now += RECOVERY_LIMIT_S + 1
    detected = only(drive.tell(Tick()), Record)[0]
    assert detected.fields["worker"] == "w3"


def test_all_leave_together_and_the_job_completes_with_the_last() -> None:
    drive = Drive().run()
    decisions = [d for w in ("w0", "w1", "w2", "w3") for d in drive.tell(LoopFinished(worker=w, generation=1))]
    assert only(decisions, Release)
    ends = [only(drive.tell(WorkerExited(worker=w, code=0)), End) for w in ("w4", "w0", "w1", "w2", "w3")]
    assert ends[:4] == [[], [], [], []] and ends[4][0].outcome == "completed"


def test_a_failure_in_the_last_step_calls_finished_ranks_back() -> None:
    drive = Drive().run()
    drive.tell(LoopFinished(worker="w0", generation=1))
    drive.tell(WorkerExited(worker="w2", code=-9))
    drive.offer_all(9, lost=2)
    drive.restore_all()
    decisions = [d for w in drive.membership.ranks for d in drive.tell(LoopFinished(worker=w, generation=2))]
    assert only(decisions, Release)


def test_a_script_that_fails_after_the_loop_fails_the_job() -> None:
    drive = Drive().run()
    for worker in drive.membership.ranks:
        drive.tell(LoopFinished(worker=worker, generation=1))
    (end,) = only(drive.tell(WorkerExited(worker="w1", code=1)), End)
    assert end.outcome == "failed" and "after the last step" in end.reason


@pytest.mark.parametrize("spares", [1, 3])
def test_two_ranks_at_once(spares: int) -> None:
    drive = Drive(spares=spares).run()
    drive.tell(WorkerExited(worker="w1", code=-9))
    decisions = drive.tell(WorkerExited(worker="w2", code=-9))
    if spares == 1:
        (spawned,) = only(decisions, Spawn)
        decisions = drive.park(spawned.worker)
    (announced,) = only(decisions, Announce)
    assert announced.joining == (1, 2)


def test_many_ranks_at_once_are_one_misfortune_and_not_a_crash_loop() -> None:
    drive = Drive(ranks=6, spares=5, max_restarts=1).run()
    decisions = [d for w in ("w0", "w1", "w2", "w3", "w4") for d in drive.tell(WorkerExited(worker=w, code=-9))]
    assert not only(decisions, End)
    assert only(decisions, Announce)[-1].joining == (0, 1, 2, 3, 4)


def _lose_spares(drive: Drive, spare: str, times: int) -> list[Decision]:
    """Each spare fails as it starts, and so does the next one; the last decisions."""
    decisions: list[Decision] = []
    for _ in range(times):
        decisions = drive.tell(WorkerExited(worker=spare, code=1))
        spare = next((spawned.worker for spawned in only(decisions, Spawn)), "")
    return decisions


def test_spares_that_cannot_start_are_not_started_for_ever_and_training_goes_on() -> None:
    drive = Drive(max_restarts=2).run()
    decisions = _lose_spares(drive, "w4", times=3)
    assert not only(decisions, End) and not only(decisions, Spawn)
    (given_up,) = [record for record in only(decisions, Record) if record.kind == "spares_given_up"]
    assert "a spare failed 3 times" in str(given_up.fields["reason"])


def test_where_spares_were_given_up_a_dead_rank_has_as_many_chances_as_ever_first_on_its_own_node() -> None:
    drive = Drive(max_restarts=2).run()
    _lose_spares(drive, "w4", times=3)
    decisions, nodes = drive.tell(WorkerExited(worker="w1", code=-9)), []
    for _ in range(3):
        (started,) = only(decisions, Spawn)
        nodes.append(started.node)
        decisions = drive.tell(WorkerExited(worker=started.worker, code=1))
    assert nodes[:2] == ["n1", drive.membership.members["w4"].node]
    (end,) = only(decisions, End)
    assert "a spare failed 3 times" in end.reason


def test_spares_that_fail_end_no_recovery_that_needs_none_of_them() -> None:
    drive = Drive(spares=4, max_restarts=1).run()
    _lose_spares(drive, "w4", times=2)
    (announced,) = only(drive.tell(WorkerExited(worker="w1", code=-9)), Announce)
    assert announced.world.ranks[1] == "w5"
    told = [drive.tell(WorkerExited(worker=spare, code=-9)) for spare in ("w6", "w7")]
    assert [record.kind for record in only(told[1], Record)] == ["failure_detected", "spares_given_up"]
    assert not only([*told[0], *told[1]], End)


def test_a_spare_that_dies_with_a_rank_is_not_why_a_job_ends() -> None:
    drive = Drive(spares=3, max_restarts=1).run()
    _lose_spares(drive, "w4", times=2)
    drive.membership.members["w6"].node = "n1"  # as where a node has several workers
    decisions = drive.tell(NodeLost(node="n1"))
    assert not only(decisions, End) and only(decisions, Announce)


def test_when_the_script_fails_on_all_ranks_its_error_is_named() -> None:
    drive = Drive(ranks=2, spares=2).run()
    for worker in ("w0", "w1"):
        drive.tell(ScriptFailed(worker=worker, error="ValueError: bad batch"))
        drive.tell(WorkerExited(worker=worker, code=1))
    decisions = drive.tell(Quiesced(worker="w2", generation=3, offer=Offer(live=None)))
    (end,) = only(decisions, End)
    assert "ValueError: bad batch" in end.reason


def test_a_replacement_that_fails_on_its_way_is_replaced() -> None:
    drive = Drive(spares=0).run()
    (first,) = only(drive.tell(WorkerExited(worker="w1", code=-9)), Spawn)
    (second,) = only(drive.tell(WorkerExited(worker=first.worker, code=1)), Spawn)
    (announced,) = only(drive.park(second.worker), Announce)
    assert announced.world.ranks[1] == second.worker


def test_a_replacement_whose_node_is_lost_ends_the_job_where_nobody_else_can_come() -> None:
    drive = Drive(spares=0).run()
    drive.tell(WorkerExited(worker="w1", code=-9))
    (end,) = only(drive.tell(NodeLost(node="n1")), End)
    assert "no spare is left for rank 1" in end.reason


def test_nothing_is_started_on_a_node_that_was_lost_meanwhile() -> None:
    drive = Drive(spares=2).run()
    drive.tell(WorkerExited(worker="w2", code=-9))  # its node owes a worker, and pays once there is progress
    drive.tell(NodeLost(node="n2"))
    drive.offer_all(7, lost=2)
    drive.restore_all()
    assert not only(drive.step(8), Spawn)


def test_a_worker_that_never_parks_is_given_up() -> None:
    drive = Drive(spares=0).run()
    (spawned,) = only(drive.tell(WorkerExited(worker="w1", code=-9)), Spawn)
    assert drive.tell(Tick()) == []
    drive.now += drive.membership.job.detection.first_step_s + 1
    decisions = drive.tell(Tick())
    assert only(decisions, Record)[0].fields["worker"] == spawned.worker
    assert len(only(decisions, Kill)) == 1
    assert len(only(decisions, Spawn)) == 1


def test_those_who_are_through_find_a_rank_that_hangs_after_its_last_collective() -> None:
    drive = Drive().run()
    for boundary in (1, 2):
        drive.step(boundary)
    for worker in ("w0", "w2", "w3"):
        drive.tell(LoopFinished(worker=worker, generation=1))
    drive.now += drive.membership.watch.pace.hang_limit_s() + 1
    (detected,) = [r for r in only(drive.tick(), Record) if r.kind == "failure_detected"]
    assert detected.fields["worker"] == "w1"


def test_a_rank_that_waits_in_its_last_collective_is_not_blamed_by_those_who_are_through() -> None:
    drive = Drive().run()
    drive.step(1)
    waiting = at(1, "gradient_sync", 2, 1)
    through = at(2, "", 2, 2)
    for worker in drive.membership.ranks:
        drive.tell(Progressed(worker=worker, progress=waiting if worker == "w1" else through))
    drive.tell(LoopFinished(worker="w0", generation=1))
    drive.now += drive.membership.job.detection.first_step_s + 1
    detected = [r.fields["worker"] for r in only(drive.tick(), Record) if r.kind == "failure_detected"]
    assert "w1" not in detected


def test_those_who_wait_for_a_rank_that_builds_its_model_are_not_blamed() -> None:
    drive = Drive(spares=3).run()
    drive.tell(WorkerExited(worker="w2", code=-9))
    drive.tell(WorkerExited(worker="w0", code=-9))
    # Rank 2 builds on: it offers nothing, and nobody can form a group without it.
    drive.tell(Quiesced(worker="w4", generation=3, offer=Offer(live=None)))
    offer = Offer(live=7, own=(7,), held={0: (7,), 2: (7,)})
    for worker in ("w1", "w3"):
        drive.tell(Quiesced(worker=worker, generation=3, offer=offer))
    drive.now += RECOVERY_LIMIT_S + 1
    detected = [r.fields["worker"] for r in only(drive.tell(Tick()), Record) if r.kind == "failure_detected"]
    assert detected == ["w5", "w4"]


def test_a_step_that_is_only_executed_again_forgives_nothing() -> None:
    """State without live twins goes back to its last safe snapshot: step 7 is executed anew, and rank 2 fails anew."""
    drive = Drive(spares=6, max_restarts=2).run()
    drive.step(8)
    ends: list[End] = []
    for _ in range(3):
        ends += only(drive.tell(WorkerExited(worker=drive.membership.ranks[2], code=1)), End)
        drive.offer_all(7, lost=2)
        drive.restore_all()
        drive.step(8)
    assert len(ends) == 1 and "--max-restarts 2" in ends[0].reason


def device_failed(worker: str, action: Action) -> DeviceFailed:
    return DeviceFailed(
        worker=worker, error="AcceleratorError: CUDA error: ...", code=700, xids=(13, 31), action=action
    )


def test_an_error_of_a_device_is_the_failure_of_its_rank() -> None:
    drive = Drive().run()
    decisions = drive.tell(device_failed("w2", Action.RESPAWN))
    detected = only(decisions, Record)[0]
    assert detected.kind == "failure_detected" and detected.fields["rank"] == 2
    assert (detected.fields["cause"], detected.fields["code"]) == ("device_error", 700)
    assert only(decisions, Kill)[0].worker == "w2" and only(decisions, Announce)[0].world.ranks[2] == "w4"
    assert not drive.tell(WorkerExited(worker="w2", code=1)), "the same death must not count twice"
    drive.offer_all(7, lost=2)
    drive.restore_all()
    assert [spawned.node for spawned in only(drive.step(8), Spawn)] == ["n2"]


def test_what_a_fenced_worker_says_of_its_device_repeats_no_decision() -> None:
    drive = Drive(spares=0).run()
    assert only(drive.tell(device_failed("w2", Action.RESPAWN)), Alert)
    assert not drive.tell(device_failed("w2", Action.RESPAWN))


@pytest.mark.parametrize("action", [Action.QUARANTINE_GPU, Action.QUARANTINE_NODE])
def test_a_node_whose_gpu_cannot_be_used_gets_no_worker_any_more(action: Action) -> None:
    drive = Drive().run()
    decisions = drive.tell(device_failed("w2", action))
    assert [record.fields["node"] for record in only(decisions, Record) if record.kind == "node_quarantined"] == ["n2"]
    drive.offer_all(7, lost=2)
    drive.restore_all()
    assert not only(drive.step(8), Spawn)


def test_the_spares_of_a_quarantined_node_get_no_rank() -> None:
    membership = Membership(Job(rank_nodes=("n0", "n1"), spare_nodes=("n1", "n2")))
    spawned = only(membership.start(), Spawn)
    for now, one in enumerate(spawned):
        membership.handle(WorkerParked(worker=one.worker, address=("127.0.0.1", 1)), float(now))
    for worker in ("w0", "w1"):
        membership.handle(Restored(worker=worker, generation=1), 9.0)
    decisions = membership.handle(device_failed("w1", Action.QUARANTINE_GPU), 10.0)
    assert {kill.worker for kill in only(decisions, Kill)} == {"w1", "w2"}
    assert only(decisions, Announce)[0].world.ranks == ("w0", "w3")


def test_a_worker_on_its_way_to_a_rank_is_ended_with_its_nodes_quarantine() -> None:
    membership = Membership(Job(rank_nodes=("n0", "n1", "n1")))
    for now, one in enumerate(only(membership.start(), Spawn)):
        membership.handle(WorkerParked(worker=one.worker, address=("127.0.0.1", 1)), float(now))
    for worker in ("w0", "w1", "w2"):
        membership.handle(Restored(worker=worker, generation=1), 9.0)
    (coming,) = only(membership.handle(device_failed("w1", Action.RESPAWN), 10.0), Spawn)
    decisions = membership.handle(device_failed("w2", Action.QUARANTINE_GPU), 10.1)
    assert coming.worker in {kill.worker for kill in only(decisions, Kill)}
    assert "no spare is left for rank 1, 2" in only(decisions, End)[0].reason


def test_a_node_with_many_device_errors_is_left_alone_however_harmless_each_looked() -> None:
    drive = Drive(spares=0).run()
    for number in (1, 2, 3):
        boundary = 10 * number
        decisions = drive.tell(device_failed(drive.membership.ranks[1], Action.RESPAWN))
        if number == 3:
            break
        (spawned,) = only(decisions, Spawn)
        assert spawned.node == "n1"
        drive.park(spawned.worker)
        drive.offer_all(boundary, lost=1)
        drive.restore_all()
        drive.step(boundary + 1)
    (end,) = only(decisions, End)
    assert "no node can start one; n1: in quarantine after errors of a GPU" in end.reason


def test_a_device_error_of_who_has_failed_already_says_nothing_new() -> None:
    drive = Drive().run()
    drive.tell(WorkerExited(worker="w2", code=-9))
    assert drive.tell(device_failed("w2", Action.QUARANTINE_NODE)) == []


def in_the_same_collective(drive: Drive) -> None:
    """All wait in it, and have done so for longer than a hang may last."""
    for boundary in (1, 2):
        drive.step(boundary)
    for worker in drive.membership.ranks:
        drive.tell(Progressed(worker=worker, progress=at(2, "gradient_sync", 3, 2)))
    drive.now += drive.membership.watch.pace.hang_limit_s() + 1


def test_a_node_that_the_others_do_not_reach_is_replaced_and_gets_no_worker_any_more() -> None:
    drive = Drive().run()
    in_the_same_collective(drive)
    decisions = drive.tick(cut=["n1"])
    kinds = [record.kind for record in only(decisions, Record)]
    assert kinds[:3] == ["nodes_cut_off", "node_quarantined", "failure_detected"]
    detected = only(decisions, Record)[2].fields
    assert (detected["worker"], detected["node"], detected["cause"]) == ("w1", "n1", "cut_off")
    (announced,) = only(decisions, Announce)
    assert announced.world.ranks == ("w0", "w4", "w2", "w3")
    drive.offer_all(2, lost=1)
    drive.restore_all()
    assert not only(drive.step(3), Spawn)


def test_without_a_spare_a_cut_is_waited_out() -> None:
    drive = Drive(spares=0).run()
    in_the_same_collective(drive)
    (told,) = drive.tick(cut=["n1"])
    assert isinstance(told, Record) and told.kind == "nodes_cut_off" and told.fields["waits"]
    drive.step(3)
    assert drive.tell(Tick()) == []


def test_where_all_wait_for_each_other_and_nobody_is_to_blame_the_same_ranks_meet_anew() -> None:
    drive = Drive().run()
    in_the_same_collective(drive)
    assert not only(drive.tick(), Record)
    drive.now += drive.membership.job.detection.between_steps_s
    decisions = drive.tick()
    assert [record.kind for record in only(decisions, Record)] == ["collective_broken", "world_formed"]
    (announced,) = only(decisions, Announce)
    assert announced.world.ranks == ("w0", "w1", "w2", "w3") and not announced.joining


def test_nobody_is_stuck_while_somebody_is_at_work() -> None:
    """A rank that has joined compiles for longer than any other may keep the others waiting."""
    drive = Drive().run()
    in_the_same_collective(drive)
    drive.tell(WorkerExited(worker="w2", code=-9))
    drive.offer_all(2, lost=2)
    drive.restore_all()
    for worker in ("w0", "w1", "w3"):
        drive.tell(Progressed(worker=worker, progress=at(2, "gradient_sync", 1, 0)))
    drive.tell(Progressed(worker="w4", progress=at(2, "backward", 0, 0)))
    drive.membership.watch.pace._slowest_first_s = 200.0
    drive.now += drive.membership.job.detection.between_steps_s + 1
    assert not only(drive.tick(), Record)


def test_where_no_rank_moves_and_none_waits_it_is_said_once_and_nobody_is_blamed() -> None:
    drive = Drive().run()
    limit_s = drive.membership.job.detection.between_steps_s
    for worker in drive.membership.ranks:
        drive.tell(Progressed(worker=worker, progress=at(3, "forward", 3, 3)))
    drive.now += limit_s - 1
    assert not only(drive.tell(Tick()), Record)
    drive.now += 2
    (told,) = only(drive.tell(Tick()), Record)
    assert told.kind == "standstill_noticed" and told.fields == {"seconds": limit_s + 1}
    assert (line := Narrator().line(told, drive.now)) and f"for {limit_s + 1:.0f} s" in line
    drive.now += limit_s
    assert not only(drive.tick(), Record)
    assert drive.membership.ranks == ["w0", "w1", "w2", "w3"]


def passes_slowly(drive: Drive, boundary: int, seconds: int) -> list[Record]:
    """All have come to a step that rank 2 takes `seconds` to compute: what is told until it has or has failed."""
    drive.step(boundary)
    for rank, worker in enumerate(drive.membership.ranks):
        drive.tell(Progressed(worker=worker, progress=at(boundary, "forward", boundary + (rank != 2), boundary)))
    told: list[Record] = []
    for _ in range(seconds):
        drive.now += 1
        told += [record for record in only(drive.tick(), Record) if record.kind == "failure_detected"]
        if told:
            break
    return told


def test_newcomers_that_are_only_slow_are_not_replaced_one_after_another() -> None:
    """A step after each recovery is slow for who was never there. Steps between them succeed: no limit ends that."""
    drive = Drive().run()
    for boundary in (1, 2):
        drive.step(boundary)
    drive.tell(WorkerExited(worker="w2", code=-9))
    lost = []
    for boundary in range(2, 20):
        drive.park(*(m.worker for m in drive.membership.members.values() if m.state is State.STARTING))
        drive.offer_all(boundary, lost=2)
        drive.restore_all()
        drive.step(boundary)
        failed = passes_slowly(drive, boundary + 1, 7)
        if not failed:
            break
        lost += failed
    assert [record.fields["cause"] for record in lost] == ["no_progress", "no_progress"], "of 3 s and of 6 s"
    assert "--hang-timeout sets the limit" in str(lost[0].fields["detail"])
    assert [record.fields["cause"] for record in passes_slowly(drive, boundary + 2, 100)] == ["no_progress"], "a hang"


def test_who_waits_for_a_node_that_is_cut_off_is_not_blamed_for_a_hang() -> None:
    drive = Drive().run()
    in_the_same_collective(drive)
    drive.tell(Progressed(worker="w3", progress=at(2, "backward", 2, 2)))  # it waits for its holder, w1
    drive.now += drive.membership.watch.pace.hang_limit_s() + 1
    failed = [r.fields["worker"] for r in only(drive.tick(cut=["n1"]), Record) if r.kind == "failure_detected"]
    assert failed == ["w1"]


def test_a_worker_that_was_waited_for_and_takes_its_node_into_quarantine_is_made_up_for() -> None:
    drive = Drive(ranks=2, spares=0).run()
    (spawned,) = only(drive.tell(WorkerExited(worker="w1", code=-9)), Spawn)
    decisions = drive.tell(device_failed(spawned.worker, Action.QUARANTINE_NODE))
    (end,) = only(decisions, End)
    assert "no node can start one" in end.reason


def gpu_failed(node: str, *workers: str, action: Action = Action.QUARANTINE_NODE) -> GpuFailed:
    return GpuFailed(node=node, workers=workers, error="Xid 79 of GPU 0000:3b:00", xids=(79,), action=action)


def test_what_is_seen_of_a_gpu_takes_its_worker_out_before_anybody_waits_for_it() -> None:
    drive = Drive().run()
    decisions = drive.tell(gpu_failed("n2", "w2"))
    detected = only(decisions, Record)[0]
    assert (detected.fields["rank"], detected.fields["cause"], detected.fields["xids"]) == (2, "device_error", [79])
    assert only(decisions, Announce)[0].world.ranks[2] == "w4"
    assert [record.fields["node"] for record in only(decisions, Record) if record.kind == "node_quarantined"] == ["n2"]
    assert drive.tell(device_failed("w2", Action.QUARANTINE_GPU)) == [], "the process met it too, a moment later"


def test_a_process_is_replaced_on_the_same_node_for_an_error_of_its_own() -> None:
    drive = Drive().run()
    drive.tell(gpu_failed("n2", "w2", action=Action.RESPAWN))
    drive.offer_all(7, lost=2)
    drive.restore_all()
    assert [spawned.node for spawned in only(drive.step(8), Spawn)] == ["n2"]
    assert drive.tell(gpu_failed("n2", "w2", action=Action.RESPAWN)) == [], "told twice"


def test_a_gpu_that_nobody_uses_yet_keeps_its_node_from_getting_a_rank() -> None:
    drive = Drive(spares=2).run()
    decisions = drive.tell(gpu_failed("s0"))
    assert [kill.worker for kill in only(decisions, Kill)] == ["w4"] and not only(decisions, Announce)
    assert only(drive.tell(WorkerExited(worker="w1", code=-9)), Announce)[0].world.ranks[1] == "w5"


def test_who_waits_for_a_worker_of_a_node_that_is_quarantined_meanwhile_does_not_wait_for_ever() -> None:
    membership = Membership(Job(rank_nodes=("n0", "n1", "n1")))
    for now, one in enumerate(only(membership.start(), Spawn)):
        membership.handle(WorkerParked(worker=one.worker, address=("127.0.0.1", 1)), float(now))
    for worker in ("w0", "w1", "w2"):
        membership.handle(Restored(worker=worker, generation=1), 9.0)
    (coming,) = only(membership.handle(WorkerExited(worker="w1", code=-9), 10.0), Spawn)
    decisions = membership.handle(gpu_failed("n1"), 10.1)
    assert coming.worker in {kill.worker for kill in only(decisions, Kill)}
    assert "no spare is left for rank 1" in only(decisions, End)[0].reason


def test_all_ranks_of_a_node_go_at_once_where_all_its_gpus_fail() -> None:
    membership = Membership(Job(rank_nodes=("n0", "n1", "n1"), spare_nodes=("s0", "s1")))
    for now, one in enumerate(only(membership.start(), Spawn)):
        membership.handle(WorkerParked(worker=one.worker, address=("127.0.0.1", 1)), float(now))
    for worker in ("w0", "w1", "w2"):
        membership.handle(Restored(worker=worker, generation=1), 9.0)
    (announced,) = only(membership.handle(gpu_failed("n1", "w1", "w2"), 10.0), Announce)
    assert announced.world.ranks == ("w0", "w3", "w4")


def test_a_rank_that_nobody_could_take_over_goes_on_while_it_can() -> None:
    drive = Drive(spares=0).run()
    decisions = drive.tell(gpu_failed("n2", "w2"))
    assert [decision.kind for decision in only(decisions, Record)] == ["node_quarantined"] and len(decisions) == 1
    (end,) = only(drive.tell(device_failed("w2", Action.RESPAWN)), End)
    assert "n2: in quarantine after errors of a GPU" in end.reason
