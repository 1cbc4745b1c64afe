"""Who is who, from events alone; and live requests, line by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos.errors import TargetGone
from chaos.faults import Coordinator, Node, Rank, Spare, Store
from chaos.requests import (
    CancelRequest,
    FaultRequest,
    RefusedRequest,
    RequestTail,
    RevertRequest,
    parse_request,
)
from chaos.roster import Roster, WorkerState
from phoenix_core.events import Event


def spawned(worker: str, pid: int, at: int = 0) -> Event:
    return Event(kind="worker_spawned", at=at, worker=worker, node="n", data={"pid": pid, "start_ticks": pid * 10})


def formed(*ranks: str, generation: int = 0, at: int = 1) -> Event:
    return Event(kind="world_formed", at=at, generation=generation, data={"ranks": list(ranks), "spares": []})


def about(kind: str, worker: str, at: int = 2) -> Event:
    return Event(kind=kind, at=at, worker=worker)


def roster(*events: Event) -> Roster:
    built = Roster()
    for event in events:
        built.observe(event)
    return built


def test_a_rank_is_the_worker_of_the_latest_world() -> None:
    members = roster(spawned("w0", 5), spawned("w1", 6), spawned("w2", 7), formed("w0", "w1"))
    assert members.resolve(Rank(rank=1)).pid == 6
    members.observe(formed("w0", "w2", generation=1))
    worker = members.resolve(Rank(rank=1))
    assert (worker.worker, worker.pid, worker.start_ticks, worker.rank) == ("w2", 7, 70, 1)


@pytest.mark.parametrize("end", ["worker_exited", "failure_detected"])
def test_who_has_ended_is_no_target(end: str) -> None:
    members = roster(spawned("w0", 5), formed("w0"), about(end, "w0"))
    with pytest.raises(TargetGone, match="rank 0 is held by w0, which has"):
        members.resolve(Rank(rank=0))


def served(kind: str, pid: int, node: str | None = None) -> Event:
    return Event(kind=kind, at=0, node=node, data={"pid": pid, "start_ticks": pid * 10})


def test_a_node_is_its_lowest_rank_with_all_others_and_the_agent() -> None:
    members = roster(served("agent_started", 3, "n"), spawned("w0", 5), spawned("w1", 6), spawned("w2", 7))
    for event in (formed("w2", "w0"), about("worker_exited", "w1")):
        members.observe(event)
    whole = members.resolve(Node(node="n"))
    assert (whole.worker, whole.rank, [other.pid for other in whole.others]) == ("w2", 0, [5, 3])
    for worker in ("w0", "w2"):
        members.observe(about("failure_detected", worker))
    assert members.resolve(Node(node="n")).worker == "agent of n"
    with pytest.raises(TargetGone, match="nothing runs on node n7"):
        members.resolve(Node(node="n7"))


def test_the_coordinator_is_the_latest_and_the_store_the_launchers() -> None:
    members = roster(served("coordinator_started", 8), served("coordinator_started", 9))
    assert (members.resolve(Coordinator()).pid, members.resolve(Coordinator()).rank) == (9, None)
    with pytest.raises(TargetGone, match="launcher has not been started"):
        members.resolve(Store())
    with pytest.raises(TargetGone, match="no coordinator"):
        roster().resolve(Coordinator())


def test_who_was_not_started_by_this_trial_is_no_target() -> None:
    with pytest.raises(TargetGone, match="did not start"):
        roster(formed("stranger")).resolve(Rank(rank=0))
    with pytest.raises(TargetGone, match="no world"):
        roster(spawned("w0", 5)).resolve(Rank(rank=0))


def test_of_several_spares_the_one_parked_longest() -> None:
    members = roster(spawned("w0", 5), spawned("w1", 6), spawned("w2", 7), formed("w0"))
    with pytest.raises(TargetGone, match="no spare is parked"):
        members.resolve(Spare())
    members.observe(about("spare_parked", "w2", at=4))
    members.observe(about("spare_parked", "w1", at=5))
    assert members.resolve(Spare()).worker == "w2"
    members.observe(formed("w2", generation=1))
    assert members.resolve(Spare()).worker == "w1"


def test_files_read_out_of_order_do_not_turn_a_rank_back_into_a_spare() -> None:
    members = roster(spawned("w0", 5), formed("w0"), about("spare_parked", "w0"))
    assert members.workers["w0"].state is WorkerState.ACTIVE


def test_rows_for_pages() -> None:
    members = roster(spawned("w0", 5), formed("w0", at=3))
    assert members.to_json() == [{"worker": "w0", "node": "n", "pid": 5, "rank": 0, "state": "active", "since": 3}]


KILL = {"fault": "a", "kind": "process_kill", "target": {"rank": 0}, "trigger": {"now": True}, "params": {}}


def test_requests_are_read_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    tail = RequestTail(path)
    assert tail.read() == []
    line = json.dumps(KILL).encode() + b"\n"
    path.write_bytes(line + b'{"cancel": tr')
    (request,) = tail.read()
    assert isinstance(request, FaultRequest) and request.fault.id == "a"
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b'ue, "reason": "enough"}\n\n{"revert": "a"}\n')
    assert tail.read() == [CancelRequest(reason="enough"), RevertRequest(fault="a", reason="no reason given")]


@pytest.mark.parametrize(
    ("line", "fault", "reason"),
    [
        (b"{", "", "not JSON"),
        (b"[1]", "", "not a JSON object"),
        (b'{"fault": "a", "kind": "meteor", "target": {"rank": 0}}', "a", "unknown fault kind 'meteor'"),
        (b'{"fault": "a", "kind": "process_kill", "target": {}}', "a", "target: must be one of"),
        (b'{"kind": "process_kill", "target": {"rank": 0}}', "", "id: must be a text"),
    ],
)
def test_a_wrong_request_is_refused_with_a_reason(line: bytes, fault: str, reason: str) -> None:
    request = parse_request(line)
    assert isinstance(request, RefusedRequest)
    assert request.fault == fault
    assert reason in request.reason


def test_a_worker_may_speak_before_its_agent_says_that_it_started_it() -> None:
    early = roster(
        about("spare_parked", "w1", at=1), formed("w0", at=2), spawned("w0", 5, at=3), spawned("w1", 6, at=4)
    )
    assert early.resolve(Spare()).pid == 6
    assert early.resolve(Rank(rank=0)).pid == 5
