"""What a new coordinator makes of the ledger and of the agents' accounts: each rule by itself, and all at random."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import example, given
from hypothesis import strategies as st

from phoenix_core.ledger import Book, Ledger
from phoenix_core.protocol import (
    Alert,
    Announce,
    CollectiveBroken,
    Decision,
    End,
    Kill,
    Progress,
    Progressed,
    Record,
    Release,
    Resume,
    Spawn,
    WorkerExited,
    WorkerParked,
)
from phoenix_core.roster import Job, Phase
from phoenix_core.succession import Succession
from phoenix_core.witness import Account, Witness

D = TypeVar("D")
JOB = Job(rank_nodes=("n0", "n1", "n2"), spare_nodes=("s0",))
SEATS = (("w0", "n0"), ("w1", "n1"), ("w2", "n2"))
TRAINING = Ledger(generation=1, resumed=1, spawned=4, seats=SEATS)
NODE_OF = {"w0": "n0", "w1": "n1", "w2": "n2", "w3": "s0"}


def only(decisions: Sequence[Decision], kind: type[D]) -> list[D]:
    return [decision for decision in decisions if isinstance(decision, kind)]


def failed(decisions: Sequence[Decision]) -> list[tuple[object, object]]:
    records = [d for d in only(decisions, Record) if d.kind == "failure_detected"]
    return [(record.fields["worker"], record.fields["rank"]) for record in records]


def at_work(worker: str, **changes: Any) -> Account:
    progress = {"boundary": 5, "phase": "", "streams": {}, "doing": {}, "broken": False, "awaits": None}
    known = Account(worker=worker, address=(worker, 1), called=1, told=1, announced=1, resumed=1, restored=1)
    return replace(known, **{"progress": progress, **changes})


def parked(worker: str) -> Account:
    return Account(worker=worker, address=(worker, 1))


def told(*accounts: Account, without: str = "") -> dict[str, list[Account]]:
    """By node; the workers that none is given of are at work, or parked."""
    known = {account.worker: account for account in (*map(at_work, ("w0", "w1", "w2")), parked("w3"), *accounts)}
    return {node: [known[worker]] for worker, node in NODE_OF.items() if node != without}


def test_nobody_notices_where_training_went_on() -> None:
    succession = Succession(JOB, TRAINING)
    decisions = succession.take_over(told(), 100.0)
    fields = {"generation": 1, "ranks": 3, "spares": 1, "recovering": False}
    assert decisions == [Record(kind="coordinator_restarted", fields=fields)]
    assert succession.phase is Phase.RUNNING
    assert replace(succession.ledger, failures={}) == replace(TRAINING, furthest=5)
    # And it leads on: a rank that fails now is replaced, in the next generation.
    after = succession.handle(WorkerExited(worker="w1", code=-9), 101.0)
    (announced,) = only(after, Announce)
    assert announced.world.generation == 2 and announced.world.ranks == ("w0", "w3", "w2")


def test_all_that_failed_meanwhile_is_replaced_in_one_generation() -> None:
    job = Job(rank_nodes=JOB.rank_nodes, spare_nodes=("s0", "s1"))
    accounts = told(at_work("w1", code=-9), at_work("w2", suspected=("stopped", "stopped by a signal")))
    decisions = Succession(job, replace(TRAINING, spawned=5)).take_over({**accounts, "s1": [parked("w4")]}, 100.0)
    assert failed(decisions) == [("w1", 1), ("w2", 2)]
    (announced,) = only(decisions, Announce)
    assert announced.world.generation == 2 and announced.world.ranks == ("w0", "w3", "w4")


def test_an_agent_that_never_came_is_a_lost_node() -> None:
    succession = Succession(JOB, TRAINING)
    decisions = succession.take_over(told(without="n2"), 100.0)
    assert failed(decisions) == [("w2", 2)] and succession.ledger.lost_nodes == ("n2",)
    assert only(decisions, Announce)[0].world.ranks == ("w0", "w1", "w3")


def test_a_node_in_quarantine_stays_there() -> None:
    told_of = {"error": "an illegal memory access", "code": 700, "xids": [48], "action": "quarantine_gpu"}
    succession = Succession(JOB, replace(TRAINING, quarantined=("s0",), device_errors={"s0": 1}))
    decisions = succession.take_over(told(at_work("w1", device_error=told_of)), 100.0)
    assert failed(decisions) == [("w1", 1)] and Kill(worker="w3") in decisions
    assert succession.ledger.quarantined == ("n1", "s0")
    assert "n1, s0: in quarantine" in only(decisions, End)[0].reason


def test_a_connection_that_broke_meanwhile_lets_the_same_ranks_meet_anew() -> None:
    decisions = Succession(JOB, TRAINING).take_over(told(at_work("w1", broken=1), at_work("w2", broken=1)), 100.0)
    (announced,) = only(decisions, Announce)
    assert announced.world.generation == 2 and announced.world.ranks == ("w0", "w1", "w2") and failed(decisions) == []
    later = Succession(JOB, TRAINING)
    later.take_over(told(), 100.0)
    broken = CollectiveBroken(worker="w1", generation=1, reason="a connection broke")
    assert only(later.handle(broken, 101.0), Announce)[0].world == announced.world


def test_a_recovery_in_the_middle_is_superseded() -> None:
    ledger = Ledger(generation=2, resumed=1, spawned=4, seats=(("w0", "n0"), ("w3", "s0"), ("w2", "n2")))
    survivors = [at_work(worker, told=2, announced=2) for worker in ("w0", "w2")]
    joining = replace(parked("w3"), called=2, told=2, announced=2)
    gone = at_work("w1", code=-9)
    decisions = Succession(JOB, ledger).take_over(told(*survivors, joining, gone), 100.0)
    (announced,) = only(decisions, Announce)
    assert announced.world.generation == 3 and announced.world.ranks == ("w0", "w3", "w2")
    assert announced.joining == (1,) and not announced.fresh and failed(decisions) == []


def test_who_was_replaced_without_hearing_it_is_fenced() -> None:
    ledger = Ledger(generation=2, resumed=1, spawned=4, seats=(("w0", "n0"), ("w3", "s0"), ("w2", "n2")))
    decisions = Succession(JOB, ledger).take_over(told(), 100.0)  # the old coordinator told nobody
    assert only(decisions, Kill) == [Kill(worker="w1")]
    (announced,) = only(decisions, Announce)
    assert announced.world.generation == 3 and announced.world.ranks == ("w0", "w3", "w2")


def test_a_failure_that_was_decided_is_counted_once() -> None:
    ledger = replace(TRAINING, vacant=(1,), failures={1: 1})
    succession = Succession(JOB, ledger)
    decisions = succession.take_over(told(at_work("w1", code=-9)), 100.0)
    assert failed(decisions) == [] and succession.ledger.failures == {1: 1}
    assert only(decisions, Announce)[0].world.ranks == ("w0", "w3", "w2")


def test_failures_are_remembered_until_a_new_step() -> None:
    job = replace(JOB, max_restarts=2)
    ledger = replace(TRAINING, failures={1: 2}, furthest=5)
    stuck = Succession(job, ledger).take_over(told(at_work("w1", code=-9)), 100.0)
    (end,) = only(stuck, End)
    assert "rank 1 failed 3 times without one new step" in end.reason
    further = replace(ledger, furthest=4)  # every rank is at 5: they have made a step since
    assert not only(Succession(job, further).take_over(told(at_work("w1", code=-9)), 100.0), End)


def test_the_first_world_is_said_again_before_training_began() -> None:
    ledger = replace(TRAINING, resumed=0)
    heard = at_work("w0", resumed=0)
    succession = Succession(JOB, ledger)
    decisions = succession.take_over(told(heard, parked("w1"), parked("w2")), 100.0)
    (announced,) = only(decisions, Announce)
    assert announced.fresh and announced.world.generation == 1 and succession.phase is Phase.BUILDING
    done = [at_work(worker, resumed=0) for worker in ("w0", "w1", "w2")]
    assert only(Succession(JOB, ledger).take_over(told(*done), 100.0), Resume) == [Resume(generation=1, boundary=0)]


def test_workers_that_were_never_started_are_started() -> None:
    succession = Succession(JOB, Ledger(spawned=4, seats=SEATS))
    accounts = {"n0": [parked("w0")], "n1": [Account(worker="w1")], "n2": [], "s0": []}
    spawned = only(succession.take_over(accounts, 100.0), Spawn)
    assert spawned == [Spawn(worker="w2", node="n2"), Spawn(worker="w3", node="s0")]
    after = [d for w in ("w1", "w2") for d in succession.handle(WorkerParked(worker=w, address=(w, 1)), 101.0)]
    assert only(after, Announce)[0].world.ranks == ("w0", "w1", "w2")


def test_a_spare_that_is_missing_is_started_once_training_has_gone_on() -> None:
    succession = Succession(JOB, TRAINING)
    accounts = {**told(), "s0": []}
    assert only(succession.take_over(accounts, 100.0), Spawn) == []
    steps = [Progressed(worker=w, progress=Progress(boundary=6)) for w in ("w0", "w1", "w2")]
    spawned = only([decision for step in steps for decision in succession.handle(step, 101.0)], Spawn)
    assert spawned == [Spawn(worker="w4", node="s0")]


def test_a_job_that_was_leaving_leaves() -> None:
    succession = Succession(JOB, TRAINING)
    left = [at_work(worker, released=True, code=0) for worker in ("w0", "w1")]
    decisions = succession.take_over(told(*left, at_work("w2")), 100.0)
    assert only(decisions, Release) and succession.phase is Phase.LEAVING
    (end,) = only(succession.handle(WorkerExited(worker="w2", code=0), 101.0), End)
    assert end.outcome == "completed" and succession.ledger.ended == (end.outcome, end.reason)


# ------------------------------------------------------------------ anything, at random


@st.composite
def situations(draw: st.DrawFn) -> tuple[Job, Ledger, dict[str, list[Account]]]:
    """A ledger and what agents may say under it: who heard how much of what was decided, and what became of them."""
    ranks, spares = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    job = Job(rank_nodes=tuple(f"n{r // 2}" for r in range(ranks)), spare_nodes=tuple(f"s{s}" for s in range(spares)))
    slots = (*job.rank_nodes, *job.spare_nodes)
    generation = draw(st.integers(1, 3))
    workers = {f"w{index}": node for index, node in enumerate(slots)}
    names = list(workers) if generation > 1 else list(workers)[:ranks]
    seats = draw(st.permutations(names))[:ranks] if generation > 1 else names
    resumed = generation if draw(st.booleans()) else generation - 1
    vacant = draw(st.sets(st.integers(0, ranks - 1))) if resumed else set()
    ledger = Ledger(
        generation=generation,
        resumed=resumed,
        spawned=len(workers) + draw(st.integers(0, 2)),
        seats=tuple((worker, workers[worker]) for worker in seats),
        vacant=tuple(sorted(vacant)),
    )
    accounts: dict[str, list[Account]] = {node: [] for node in slots if draw(st.integers(0, 9))}
    for worker, node in workers.items():
        if node in accounts and draw(st.integers(0, 9)):
            heard = draw(st.integers(0, generation)) if worker in seats or generation > 1 else 0
            accounts[node].append(
                Account(
                    worker=worker,
                    address=(worker, 1) if heard or worker in seats or draw(st.booleans()) else None,
                    called=min(heard, 1),
                    told=heard,
                    announced=heard and draw(st.integers(heard, generation + 1)),
                    resumed=draw(st.integers(0, min(heard, resumed))),
                    restored=draw(st.integers(0, heard)),
                    finished=draw(st.sampled_from([0, 0, 0, min(heard, resumed)])),
                    broken=draw(st.sampled_from([0, 0, 0, heard])),
                    suspected=draw(st.sampled_from([None, None, None, ("silent", "no heartbeat")])),
                    code=draw(st.sampled_from([None, None, None, None, -9, 1])),
                )
            )
    return job, ledger, accounts


BROKE_AT_ITS_BEGIN = (
    Job(rank_nodes=("n0",), spare_nodes=()),
    Ledger(generation=1, resumed=0, spawned=1, seats=(("w0", "n0"),)),
    {"n0": [Account(worker="w0", address=("w0", 1), called=1, told=1, announced=1, restored=1, broken=1)]},
)


@example(BROKE_AT_ITS_BEGIN)
@given(situations())
def test_whatever_was_heard_a_new_coordinator_keeps_the_rules(
    situation: tuple[Job, Ledger, dict[str, list[Account]]],
) -> None:
    job, ledger, accounts = situation
    succession = Succession(job, ledger)
    decisions = succession.take_over(accounts, 100.0)
    assert isinstance(decisions[0], Record) and decisions[0].kind == "coordinator_restarted"
    known = {account.worker: account for told_by in accounts.values() for account in told_by}
    dead = {worker for worker, account in known.items() if account.code is not None or account.suspected}
    lost = {worker for worker, node in ledger.seats if node not in accounts}
    decided = {ledger.seats[rank][0] for rank in ledger.vacant}
    for announced in only(decisions, Announce):
        world = announced.world
        assert world.generation == ledger.generation + (not announced.fresh)
        begun = ledger.resumed > 0 or bool(only(decisions, Resume))  # it may begin, and break, in this first instant
        assert announced.fresh == (not begun)
        assert not set(world.ranks) & (dead | lost | decided) and len(set(world.ranks)) == len(job.rank_nodes)
    for spawn in only(decisions, Spawn):
        assert int(spawn.worker[1:]) >= ledger.spawned and spawn.node in accounts
    assert len(only(decisions, Announce)) <= 1 and len(only(decisions, End)) <= 1
    killed = {kill.worker for kill in only(decisions, Kill)}
    for worker, account in known.items():
        has_a_place = worker in succession.ranks or not account.told
        assert has_a_place or worker in killed or account.code is not None
    alive = [known[worker] for worker, _ in ledger.seats if worker in known and known[worker].code is None]
    rested = all(a.resumed == a.announced == ledger.generation for a in alive)
    trains = succession.phase is Phase.RUNNING and not only(decisions, Resume)
    assert rested or not trains
    assert only(decisions, End) or trains or only(decisions, (Announce, Alert, Resume, Release))  # type: ignore[arg-type]
    assert Ledger.from_json(succession.ledger.to_json()) == succession.ledger


# ------------------------------------------------------------------ what is kept


def test_a_page_that_was_cut_short_was_never_acted_on() -> None:
    fds = Book.create()
    try:
        assert Book(fds).read() == Ledger()
        first = Book(fds)
        pages = [replace(TRAINING, generation=generation) for generation in (1, 2, 3)]
        for page in pages:
            first.write(page)
            assert Book(fds).read() == page
        newest = next(fd for fd in fds if os.pread(fd, 2, 0) == b"3 ")
        os.ftruncate(newest, os.fstat(newest).st_size - 1)
        second = Book(fds)
        assert second.read() == pages[1]
        ended = replace(TRAINING, generation=4, ended=("failed", "why"))
        second.write(ended)
        assert Book(fds).read() == ended
    finally:
        for fd in fds:
            os.close(fd)


def test_a_witness_keeps_what_was_ordered_and_said() -> None:
    witness = Witness()
    witness.ordered({"op": "spawn", "worker": "w0"})
    witness.said("w0", {"op": "parked", "address": ["127.0.0.1", 7]})
    witness.ordered({"op": "world", "to": ["w0", "stranger"], "world": {"generation": 1}})
    assert witness.local_ranks() == {"w0": 0}
    witness.said("w0", {"op": "restored", "generation": 1})
    witness.ordered({"op": "resume", "to": ["w0"], "generation": 1})
    where = {"boundary": 3, "phase": "forward", "broken": False, "awaits": None}
    progress = {**where, "streams": {"a": [2, 1]}, "doing": {"a": "barrier"}}
    witness.said("w0", {"op": "progress", **progress})
    witness.ordered({"op": "world", "to": ["w0"], "changes": {"generation": 2}})
    witness.ordered({"op": "alert", "to": ["w0"], "generation": 3})
    witness.said("w0", {"op": "exited", "code": -9})
    (account,) = [Account.from_json(account) for account in witness.accounts()]
    assert account == Account(
        worker="w0", address=("127.0.0.1", 7), called=1, told=2, announced=3, resumed=1, restored=1, local_rank=0,
        code=-9, progress=progress,
    )  # fmt: skip
    assert witness.local_ranks() == {}
    witness.ordered({"op": "world", "to": [], "changes": {"generation": 3}})
    assert witness.accounts() == []


def test_a_worker_gets_the_gpu_of_the_one_whose_place_on_its_node_it_takes() -> None:
    """Also where it takes the rank of somebody on another node: by its rank alone it would share a GPU."""
    witness = Witness()
    for worker in ("w0", "w1", "w2"):
        witness.ordered({"op": "spawn", "worker": worker})
    first = {"op": "world", "to": ["w0", "w1", "w2"], "world": {"generation": 1}}
    witness.ordered(first)
    witness.ordered(first)  # by a coordinator that was started anew
    assert witness.local_ranks() == {"w0": 0, "w1": 1, "w2": 2}
    witness.ordered({"op": "kill", "worker": "w1"})  # it may take a while to end
    witness.ordered({"op": "spawn", "worker": "w7"})
    witness.ordered({"op": "world", "to": ["w7"], "world": {"generation": 2}})
    assert witness.local_ranks()["w7"] == 1
    witness.said("w0", {"op": "exited", "code": 1})
    witness.ordered({"op": "spawn", "worker": "w9"})
    witness.ordered({"op": "world", "to": ["w9"], "world": {"generation": 3}})
    assert witness.local_ranks()["w9"] == 0
