"""What a service with many readers costs the training beside it, and how long its readers wait.

    python -m benchmarks.service_beside        12 pairs of blocks of 20 s: 50 streams of events, 200 reads a second
    python -m benchmarks.service_beside --pairs 2 --block-s 3 --streams 5 --rate 20 --trials 100      a quick look

One trial trains all the time, under `phoenix serve` as anybody starts it, whose database holds 10,000 trials. Blocks
of time with and without readers alternate (A B, B A, A B, ...), and the step times of neighbours are held against each
other, so that whatever else the machine does hits both alike. A read is due at its instant, whether or not those
before it have ended, and its time begins then. The trial has a rank for every second core, as a training on
accelerators leaves cores to others: where it takes them all, whatever readers take is the training's by arithmetic.
The beginning of a block, in which fifty streams come at once, counts for neither.
The readers are on the same machine: what they take from it is in the result, and told beside it. It fails (exit code
1) where the 99th percentile or the change of the step time is above its goal.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.clients import Read, Refused, read_at, watched
from benchmarks.report import RESULTS, circumstances, heading, publish, table
from benchmarks.service_load import fill
from benchmarks.stats import paired_ratio

GOAL_P99_S: Final = 0.25
GOAL_CHANGE: Final = 0.03
EXIT_MISSED, EXIT_FAILED = 1, 2
CONNECTIONS: Final = 64
LEAST_STEPS: Final = 3
WARM_UP_STEPS, WARM_UP_RATE, DEADLINE_S = 10, 20.0, 300.0
NAME: Final = "service_beside"
# What is read in turn; {run} and {trial} are those that train.
READS: Final = (
    "/api/v1/runs/{run}", "/api/v1/runs/{run}/steps?after={after}&limit=100", "/api/v1/queue",
    "/api/v1/runs/{run}/faults", "/api/v1/runs", "/api/v1/runs/{run}", "/api/v1/runs/{run}/workers",
    "/api/v1/trials/{trial}", "/api/v1/runs/{run}/steps?after={after}&limit=100", "/api/v1/halts",
    "/api/v1/runs/{run}", "/api/v1/trials?limit=20", "/api/v1/runs/{run}/events?after={offset}&limit=50",
    "/api/v1/runs/{run}/trials", "/api/v1/schedules", "/api/v1/runs/{run}/faults", "/api/v1/history?scenario=kill-one",
    "/api/v1/runs/{run}", "/api/v1/runs?state=RUNNING", "/metrics",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Block:
    """Seconds of each step that began and ended in it; CPU in cores, of the service and of this program."""

    readers: bool
    steps_s: tuple[float, ...]
    service_cores: float
    clients_cores: float
    reads: tuple[Read, ...] = ()
    events: tuple[int, ...] = ()


class Api:
    """JSON of the service. Raises Refused."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str, **query: str | int) -> Any:
        return self._document(self._client.get(f"/api/v1{path}", params=query))

    def submit(self, scenario: Mapping[str, object]) -> str:
        return str(self._document(self._client.post("/api/v1/runs", json={"scenario": scenario}))["id"])

    def _document(self, answer: httpx.Response) -> Any:
        if not answer.is_success:
            raise Refused(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:300]}")
        return answer.json()


@dataclass(kw_only=True)
class Watched:
    """The trial that trains: when each of its steps was committed everywhere, on the clock of this machine."""

    api: Api
    run: str
    ranks: int
    offset: int = 0
    _commits: dict[int, list[int]] = field(default_factory=dict)

    def look(self) -> None:
        """Take over the events since the last time."""
        path = f"/runs/{self.run}/events"
        while items := self.api.get(path, after=self.offset, kind="step_committed", limit=5000)["items"]:
            for event in items:
                self._commits.setdefault(event["step"], []).append(event["at"])
            self.offset = items[-1]["offset"]

    @property
    def last_step(self) -> int:
        return max(self._commits, default=-1)

    def paths(self) -> list[tuple[str, str]]:
        """What is read in turn, with the name of each."""
        now = {"run": self.run, "trial": f"{self.run}-1", "offset": self.offset, "after": max(-1, self.last_step - 100)}
        return [(path, path.format(**now)) for path in READS]

    def steps_between(self, first_ns: int, last_ns: int) -> tuple[float, ...]:
        """Seconds from each step to the next, both of them within these instants."""
        whole = sorted((step, max(at)) for step, at in self._commits.items() if len(at) == self.ranks)
        inside = [(step, at) for step, at in whole if first_ns <= at <= last_ns]
        return tuple(
            (at - before) / 1e9
            for (step, at), (earlier, before) in zip(inside[1:], inside, strict=False)
            if step == earlier + 1
        )


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    where = circumstances()
    try:
        with tempfile.TemporaryDirectory(prefix="phoenix-beside-") as name:
            directory = Path(name)
            with serving(directory):
                pass  # It has made its tables.
            fill(f"sqlite:///{directory / 'phoenix.db'}", options.trials)
            with serving(directory) as url, httpx.Client(base_url=url, timeout=120.0, trust_env=False) as client:
                blocks = measure(url, Api(client), options)
    except (Refused, OSError, EOFError, httpx.HTTPError) as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return EXIT_FAILED
    settings = {name: getattr(options, name) for name in ("ranks", "streams", "rate", "block_s", "settle_s", "trials")}
    document = {"circumstances": where, **settings, "blocks": [_block(block) for block in blocks], **judged(blocks)}
    text = page(document)
    print(text)
    publish(options.name, document, text, options.out)
    for line in document["missed"]:
        print(f"{NAME}: {line}", file=sys.stderr)
    return EXIT_MISSED if document["missed"] else 0


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--block-s", type=float, default=20.0)
    parser.add_argument("--settle-s", type=float, default=2.0, help="at the beginning of a block that do not count")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--rate", type=float, default=200.0, help="reads a second")
    half = max(1, len(os.sched_getaffinity(0)) // 2)
    parser.add_argument("--ranks", type=int, default=half, help="of the trial that trains (else: half of the cores)")
    parser.add_argument("--workload", default="gpt")
    parser.add_argument("--trials", type=int, default=10_000, help="that the database holds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--name", default=NAME, help="of the files in --out")
    return parser


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """The address of a service that ends, and what it runs with it, when this program does, however that happens."""
    command = [sys.executable, "-m", "service.cli", "serve", "--port", "0", "--dir", str(directory), "--attached"]
    with subprocess.Popen(  # in a session of its own, or Ctrl-C here would end it before what it runs
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        try:
            line = process.stderr.readline()
            if "serves http" not in line:
                raise Refused(f"the service did not start: {line}{process.stderr.read()}")
            yield line.split("serves ")[1].split()[0]
        finally:
            process.stdin.close()
            process.wait(120)


def measure(url: str, api: Api, options: argparse.Namespace) -> list[Block]:
    """Two blocks a pair, in turn. Raises Refused."""
    scenario = {
        "name": "beside",
        "workload": options.workload,
        "steps": 1_000_000,
        "cluster": {"nodes": options.ranks, "ranks_per_node": 1, "spares": 0},
        "checks": ["agreement"],
        "timeout_s": 86_400,
    }
    run = api.submit(scenario)
    wait_for_step(api, run, WARM_UP_STEPS)
    training = Watched(api=api, run=run, ranks=options.ranks)
    training.look()
    asyncio.run(read_at(url, training.paths(), rate=WARM_UP_RATE, for_s=len(READS) / WARM_UP_RATE, connections=1))
    pid = next(service["pid"] for service in api.get("/services")["items"] if service["alive"])
    blocks = []
    for pair in range(options.pairs):
        for readers in (False, True) if pair % 2 == 0 else (True, False):
            training.look()
            blocks.append(asyncio.run(block(url, training, pid, options, readers=readers)))
            if len(blocks[-1].steps_s) < LEAST_STEPS:
                raise Refused(f"only {len(blocks[-1].steps_s)} steps in a block: take longer ones (--block-s)")
        two = sorted(blocks[-2:], key=lambda one: one.readers)
        changes = [statistics.median(one.steps_s) for one in two]
        print(f"pair {pair}: step time {changes[1] / changes[0] - 1:+.1%}", file=sys.stderr, flush=True)
    return blocks


def wait_for_step(api: Api, run: str, step: int) -> None:
    """Raises Refused where the trial does not come to it in time."""
    deadline = time.monotonic() + DEADLINE_S
    while (state := api.get(f"/runs/{run}"))["step"] is None or state["step"] < step:
        if state["state"] not in ("QUEUED", "RUNNING") or time.monotonic() > deadline:
            raise Refused(f"the trial did not come to step {step}: {state['state']} {state['error'] or ''}")
        time.sleep(0.1)


async def block(url: str, training: Watched, pid: int, options: argparse.Namespace, *, readers: bool) -> Block:
    """One stretch of time, with the readers or without."""
    began, cpu = time.monotonic_ns(), (_cpu_s(pid), time.process_time())
    reads: list[Read] = []
    events: list[int] = []
    if readers:
        async with watched(url, f"/api/v1/runs/{training.run}/stream?after={training.offset}", options.streams) as seen:
            await asyncio.sleep(options.settle_s)  # all of them come at once, which nobody's readers do
            for_s = options.block_s - options.settle_s
            reads = await read_at(url, training.paths(), rate=options.rate, for_s=for_s, connections=CONNECTIONS)
            events = list(seen)
    else:
        await asyncio.sleep(options.block_s)
    ended = time.monotonic_ns()
    seconds = (ended - began) / 1e9
    used = _cpu_s(pid) - cpu[0], time.process_time() - cpu[1]
    await asyncio.to_thread(training.look)
    return Block(
        readers=readers,
        steps_s=training.steps_between(began + int(options.settle_s * 1e9), ended),
        service_cores=used[0] / seconds,
        clients_cores=used[1] / seconds,
        reads=tuple(reads),
        events=tuple(events),
    )


def _cpu_s(pid: int) -> float:
    """CPU seconds of one process, without those that it started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- judging ---------------------------------------------------------------------------------------------------------


def judged(blocks: Sequence[Block]) -> dict[str, Any]:
    """The ratio of step times over pairs, the times of reads, and which goals were missed."""
    alone = [statistics.median(block.steps_s) for block in blocks if not block.readers]
    beside = [statistics.median(block.steps_s) for block in blocks if block.readers]
    reads = [read for block in blocks for read in block.reads]
    ratio = paired_ratio(beside, alone) if len(alone) > 1 else None
    change = (ratio.value if ratio else beside[0] / alone[0]) - 1
    p99 = quantile([read.seconds for read in reads], 0.99)
    silent = sum(count == 0 for block in blocks for count in block.events)
    missed = []
    if p99 > GOAL_P99_S:
        missed.append(f"the 99th percentile of reads is {p99:.3f} s, above {GOAL_P99_S} s")
    if change > GOAL_CHANGE:
        missed.append(f"the step time changed by {change:+.1%}, more than {GOAL_CHANGE:.0%}")
    if silent:
        missed.append(f"{silent} streams saw no event")
    return {
        "step_ms": {"alone": statistics.median(alone) * 1000, "beside": statistics.median(beside) * 1000},
        "ratio": None if ratio is None else asdict(ratio),
        "change": change,
        "p99_s": p99,
        "paths": {path: _times([read for read in reads if read.name == path]) for path in dict.fromkeys(READS)},
        "missed": missed,
    }


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def _times(reads: Sequence[Read]) -> dict[str, float]:
    values = [read.seconds for read in reads]
    if not values:
        return {"count": 0}
    return {
        "count": len(values),
        "median": round(statistics.median(values), 5),
        "p99": round(quantile(values, 0.99), 5),
        "greatest": round(max(values), 5),
    }


def _block(block: Block) -> dict[str, object]:
    """With every step; of the reads, which are thousands, their quantiles."""
    return {
        "readers": block.readers,
        "steps_s": [round(value, 5) for value in block.steps_s],
        "service_cores": round(block.service_cores, 3),
        "clients_cores": round(block.clients_cores, 3),
        "reads": _times(block.reads),
        "events": list(block.events),
    }


# --- telling ---------------------------------------------------------------------------------------------------------


def page(document: Mapping[str, Any]) -> str:
    ratio, step, blocks = document["ratio"], document["step_ms"], document["blocks"]
    cores = {
        name: statistics.median(block[name] for block in blocks if block["readers"])
        for name in ("service_cores", "clients_cores")
    }
    between = (
        f" (95 % interval {ratio['low'] - 1:+.1%} to {ratio['high'] - 1:+.1%}, {ratio['pairs']} pairs)" if ratio else ""
    )
    top = heading("The service beside a training", document["circumstances"], f"python -m benchmarks.{NAME}")
    text = (
        f"One trial of {document['ranks']} ranks trains all the time; a database of {document['trials']:,} trials. "
        f"In blocks of {document['block_s']:g} s, {document['streams']} clients follow its events and "
        f"{document['rate']:g} reads a second are asked for, or nobody asks.\n\n"
        f"- step time {step['alone']:.1f} ms alone, {step['beside']:.1f} ms with the readers: "
        f"{document['change']:+.1%}{between}; goal: below {GOAL_CHANGE:+.0%}\n"
        f"- reads: 99th percentile {document['p99_s'] * 1000:.0f} ms, from when each was due; "
        f"goal: {GOAL_P99_S * 1000:.0f} ms\n"
        f"- processor with readers: service {cores['service_cores']:.2f} cores, readers {cores['clients_cores']:.2f}\n"
        f"- {'missed: ' + '; '.join(document['missed']) if document['missed'] else 'both goals are met'}\n\n"
    )
    rows = [
        [f"`{path}`", str(times["count"]), *(f"{times[name] * 1000:.1f}" for name in ("median", "p99", "greatest"))]
        for path, times in document["paths"].items()
        if times["count"]
    ]
    return top + text + table(["read (milliseconds)", "count", "median", "p99", "greatest"], rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
