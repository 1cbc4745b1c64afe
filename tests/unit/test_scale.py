"""benchmarks.scale at small sizes: messages are as many as its docstring says, and pages print what was found."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks import scale
from benchmarks.report import circumstances
from benchmarks.stubs import StubJob, StubsFailed, victims
from phoenix_core.placement import Source, plan_restore
from phoenix_core.roster import Job


@pytest.mark.process
@pytest.mark.parametrize("ranks", [8, 64])
def test_a_recovery_takes_as_many_messages_as_the_docstring_says(ranks: int) -> None:
    sample = scale.measure(ranks, repeats=2, per_node=8, heartbeats=40)
    assert sample.received == {"exited": 1, "quiesced": ranks, "restored": ranks}
    assert sample.sent == {"kill": 1, "world": ranks, "plan": ranks, "resume": ranks}
    assert sum(sample.received.values()) == 2 * ranks + 1
    assert sum(sample.sent.values()) == 3 * ranks + 1
    assert sample.lines_down <= 3 * ranks + 1
    assert len(sample.decision_s().values) == 2
    assert min(sample.decision_s().values) > 0
    assert 0 < sample.heartbeat_together_s < 0.1
    assert sample.base_kib < sample.peak_kib

    pure = {str(ranks): scale.pure_parts(ranks, 8)}
    counts = {2: {"set": 2, "wait": 8, "get": 4}, 4: {"set": 4, "wait": 32, "get": 16}}
    meshes = [{"ranks": n, "requests": c, "bytes": 8220, "wall_s": 0.01, "store_cpu_s": 1} for n, c in counts.items()]
    document = {"samples": [asdict(sample)], "pure": pure, "skipped": [512], "meshes": meshes}
    text = scale.page(document, circumstances(), "python -m benchmarks.scale", 0.1)
    assert f"| {ranks} | {2 * ranks + 1} | {3 * ranks + 1} | {5 + 2 / ranks:.2f} |" in text
    assert "Not measured, since it would have taken too long: 512 ranks." in text
    assert "asks the store about 3.2 n^2 times" in text
    assert "**Not measured, by that formula alone:**" in text


@pytest.mark.process
def test_a_coordinator_that_ends_is_an_error_with_its_words() -> None:
    with StubJob(8, spares=0, per_node=8, heartbeats=1) as job:
        job.form()
        for _ in range(Job(rank_nodes=()).max_restarts):
            job.lose(0)  # each time a new worker takes over
        with pytest.raises(StubsFailed, match=r"rank 0 .* failed"):
            job.lose(0)


def test_the_offers_at_their_worst_have_one_boundary_that_all_can_be_given() -> None:
    plan = plan_restore(scale.split_offers(16, 8), 16)
    assert plan.boundary == 100
    assert plan.sources[0] == Source(tensors=None, small=8)


def test_victims_are_spread_and_none_is_lost_twice() -> None:
    assert victims(8, 3) == [0, 2, 5]
    assert victims(2, 2) == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "1"], "at least 2 ranks"),
        (["--ranks", "8", "--repeats", "9"], "each at most once"),
        (["--heartbeats", "0"], "at least 1 heartbeat"),
    ],
)
def test_what_cannot_be_measured_is_a_usage_error(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        scale.parse_options(arguments)
    assert ended.value.code == scale.EXIT_USAGE
    assert words in capsys.readouterr().err
