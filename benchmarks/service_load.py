"""How long the service takes for each list and page when its database holds 100,000 trials.

    python -m benchmarks.service_load                             SQLite, 100,000 trials
    python -m benchmarks.service_load --trials 2000 --repeats 5   a quick look
    python -m benchmarks.service_load --database URL              an empty PostgreSQL database

The service is `phoenix serve` as anybody starts it. Its tables are filled with made-up rows: runs of five trials, one
fault and one recovery in each trial, and one long run with 5,000 steps of four ranks. Then each address is asked for,
one request at a time; the time is the client's, so the way over loopback is in it. The service remembers what it worked
out of the history until a trial is added, so the first request after one is measured by itself. It fails (exit code 1)
where a median of the others is above the goal.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
from sqlalchemy import Connection, Engine, MetaData, Table, create_engine, make_url

from benchmarks.report import RESULTS, circumstances, heading, publish, table

GOAL_S: Final = 0.2
TRIALS_PER_RUN: Final = 5
LONG_STEPS, LONG_RANKS = 5000, 4
EXIT_SLOW, EXIT_USAGE = 1, 2
MOST_FIRSTS: Final = 5
BATCH: Final = 5000
BEGAN: Final = datetime(2026, 1, 1)
PHASES: Final = ("detect", "quiesce", "replace", "reconstruct", "restore", "recompute")
SCENARIOS: Final = ("demo", "kill-one", "isolate-one", "freeze-one", "two-deaths")

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service_load", description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=15, help="requests for each address")
    parser.add_argument("--database", help="URL of an empty database (else: SQLite in a temporary directory)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--name", default="service_load", help="of the files in --out")
    options = parser.parse_args(arguments)
    if options.trials < TRIALS_PER_RUN or options.repeats < 1:
        parser.error(f"--trials must be at least {TRIALS_PER_RUN}, --repeats at least 1")
    where = circumstances()
    with tempfile.TemporaryDirectory(prefix="phoenix-load-") as name:
        directory = Path(name)
        with served(directory, options.database):
            pass  # It has made its tables.
        database = options.database or f"sqlite:///{directory / 'phoenix.db'}"
        filled_s = fill(database, options.trials)
        with served(directory, options.database) as url, opened(database) as engine:
            paths = addresses(url)
            measured = {path: ask(url, path, options.repeats) for path in paths}
            firsts = {path: ask_first(url, path, engine, min(options.repeats, MOST_FIRSTS)) for path in paths}
    document = {
        "circumstances": where,
        "trials": options.trials,
        "database": "PostgreSQL" if options.database else "SQLite",
        "fill_s": round(filled_s, 1),
        "goal_s": GOAL_S,
        "seconds": measured,
        "seconds_after_a_trial": firsts,
    }
    print(page(document))
    publish(options.name, document, page(document), options.out)
    slow = [path for path, values in measured.items() if statistics.median(values) > GOAL_S]
    if slow:
        print(f"above {GOAL_S} s at the median: {', '.join(slow)}", file=sys.stderr)
    return EXIT_SLOW if slow else 0


@contextmanager
def served(directory: Path, database: str | None) -> Iterator[str]:
    """The address of `phoenix serve` on this data directory."""
    command = [sys.executable, "-m", "service.cli", "serve", "--port", "0", "--dir", str(directory)]
    command += ["--database", database] if database else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            if "serves http" not in line:
                raise SystemExit(f"the service did not start: {line}{process.stderr.read()}")
            yield line.split("serves ")[1].split()[0]
        finally:
            process.terminate()
            process.wait(30)


def ask(url: str, path: str, repeats: int) -> list[float]:
    """Seconds of each request, after one that does not count."""
    with httpx.Client(base_url=url, timeout=120.0, trust_env=False) as client:
        return [asked(client, path) for _ in range(repeats + 1)][1:]


def ask_first(url: str, path: str, engine: Engine, repeats: int) -> list[float]:
    """The same, with one trial more in the history before each."""
    taken = []
    with httpx.Client(base_url=url, timeout=120.0, trust_env=False) as client:
        for _ in range(repeats):
            with engine.begin() as connection:
                connection.exec_driver_sql("UPDATE points SET trials = trials + 1 WHERE id = 1")
            taken.append(asked(client, path))
    return taken


def asked(client: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    answer = client.get(path)
    seconds = time.perf_counter() - began
    if not answer.is_success:
        raise SystemExit(f"GET {path}: {answer.status_code} {answer.text[:300]}")
    return round(seconds, 5)


def addresses(url: str) -> list[str]:
    """Each list, an item of each kind, and the pages that show them."""
    with httpx.Client(base_url=url, timeout=120.0, trust_env=False) as client:
        newest = client.get("/api/v1/runs").json()
        cursor = client.get("/api/v1/trials", params={"limit": 200}).json()["next"]
        codes = client.get("/api/v1/history/series").json()["codes"]
    run, long_run = newest["items"][1]["id"], newest["items"][0]["id"]
    base, head = (code["name"] for code in codes[:2])
    return [
        "/api/v1/runs",
        "/api/v1/runs?limit=200",
        f"/api/v1/runs?cursor={int(newest['next']) // 2}",
        "/api/v1/runs?state=RUNNING",
        "/api/v1/runs?verdict=FAIL",
        "/api/v1/runs?verdict=UNKNOWN&scenario=kill-one",
        "/api/v1/runs?scenario=nothing",
        "/api/v1/runs?workload=gpt&since=2026-06-01T00:00:00Z&until=2026-06-02T00:00:00Z",
        "/api/v1/runs?commit=abcdef01",
        f"/api/v1/runs/{run}",
        f"/api/v1/runs/{run}/trials",
        f"/api/v1/runs/{run}/faults",
        f"/api/v1/runs/{long_run}",
        f"/api/v1/runs/{long_run}/steps",
        f"/api/v1/runs/{long_run}/workers",
        f"/api/v1/runs/{long_run}/events?limit=500",
        f"/api/v1/runs/{long_run}/events?after=20000&limit=500",
        "/api/v1/trials",
        f"/api/v1/trials?limit=200&cursor={cursor}",
        "/api/v1/trials?verdict=FAIL&scenario=demo",
        f"/api/v1/trials/{run}-1",
        f"/api/v1/trials/{run}-1/timeline",
        "/api/v1/audit",
        "/api/v1/audit?target=nothing",
        "/api/v1/halts",
        "/api/v1/schedules",
        "/api/v1/services",
        "/api/v1/queue",
        "/api/v1/triage",
        "/api/v1/history/series",
        "/api/v1/history?scenario=kill-one",
        "/api/v1/history?scenario=kill-one&metric=detect&limit=1000",
        f"/api/v1/comparisons?base={base}&head={head}",
        "/metrics",
        "/",
        "/runs",
        "/history?scenario=kill-one",
        "/heatmap",
        "/regressions",
        "/machines",
        f"/compare?base={base}&head={head}",
        f"/runs/{run}",
        f"/trials/{run}-1",
    ]


# --- rows ------------------------------------------------------------------------------------------------------------


def fill(database: str, trials: int) -> float:
    """Rows of so many trials, and one long run after them; seconds that it took."""
    with opened(database) as engine:
        return _fill(engine, trials)


@contextmanager
def opened(database: str) -> Iterator[Engine]:
    url = make_url(database)
    engine = create_engine(url if url.drivername == "sqlite" else url.set(drivername="postgresql+psycopg"))
    try:
        yield engine
    finally:
        engine.dispose()


def _fill(engine: Engine, trials: int) -> float:
    began = time.monotonic()
    rng = random.Random(20261130)
    runs = trials // TRIALS_PER_RUN
    with engine.begin() as connection:
        tables = MetaData()
        tables.reflect(connection)
        for first in range(0, runs, BATCH // TRIALS_PER_RUN):
            numbers = range(first, min(runs, first + BATCH // TRIALS_PER_RUN))
            _insert(connection, tables.tables, [_run(number, rng) for number in numbers], rng)
        digests = [{"digest": digit * 12, "document": {"made": "up"}} for digit in "0f"]
        connection.execute(tables.tables["digests"].insert(), digests)
        _insert_long(connection, tables.tables, runs, rng)
        if engine.dialect.name == "postgresql":
            for name, key in (("runs", "seq"), ("events", "id"), ("points", "id")):
                connection.exec_driver_sql(
                    f"SELECT setval(pg_get_serial_sequence('{name}', '{key}'), (SELECT max({key}) FROM {name}))"
                )
    if engine.dialect.name == "postgresql":  # as it would by itself; SQLite does not
        with engine.connect() as connection:
            connection.exec_driver_sql("ANALYZE")
            connection.commit()
    return time.monotonic() - began


def _run(number: int, rng: random.Random) -> Row:
    at = BEGAN + timedelta(minutes=15 * number)
    scenario = rng.choice(SCENARIOS)
    return {
        "seq": number + 1, "id": f"run-{number:08x}", "scenario": scenario, "document": {"name": scenario},
        "workload": "gpt", "runtime": "phoenix", "nodes": 4, "ranks_per_node": 1, "spares": 1, "seed": number,
        "steps": 60, "seeded": True, "state": "FINISHED", "step": 59,
        "verdict": rng.choices(("PASS", "FAIL", "UNKNOWN"), (95, 3, 2))[0],
        "commit": f"{rng.getrandbits(160):040x}", "dirty": False, "created_at": at, "started_at": at,
        "finished_at": at + timedelta(minutes=10),
    }  # fmt: skip


def _insert(connection: Connection, tables: Mapping[str, Table], runs: list[Row], rng: random.Random) -> None:
    trials = [_trial(run, number) for run in runs for number in range(1, TRIALS_PER_RUN + 1)]
    connection.execute(tables["runs"].insert(), runs)
    connection.execute(tables["trials"].insert(), trials)
    connection.execute(tables["faults"].insert(), [_fault(trial) for trial in trials])
    recoveries = [_recovery(trial, rng) for trial in trials]
    connection.execute(tables["recoveries"].insert(), recoveries)
    connection.execute(tables["points"].insert(), [_point(run) for run in runs])
    samples = [_sample(*both) for both in zip(trials, recoveries, strict=True)]
    connection.execute(tables["samples"].insert(), samples)
    audit = [
        {
            "at": run["created_at"], "actor": "service", "role": "admin", "action": "run.submit", "target": run["id"],
            "detail": {},
        }
        for run in runs
    ]  # fmt: skip
    connection.execute(tables["audit"].insert(), audit)


def _trial(run: Row, number: int) -> Row:
    alike = ("scenario", "document", "runtime", "steps", "commit", "dirty", "state", "verdict")
    return {
        **{name: run[name] for name in alike}, "id": f"{run['id']}-{number}", "run_id": run["id"], "number": number,
        "position": run["seq"] * 1000 + number, "seed": run["seed"] + number, "directory": f"/nowhere/{run['id']}",
        "service_id": "service-made-up", "spawned": True, "first_at": 0,
        "checks": {"twin": {"verdict": "PASS", "detail": "made up"}},
        "started_at": run["started_at"], "finished_at": run["finished_at"],
    }  # fmt: skip


def _fault(trial: Row) -> Row:
    return {
        "trial_id": trial["id"], "id": "kill", "run_id": trial["run_id"], "seq": 0, "kind": "process_kill",
        "target": {"rank": 1}, "trigger": {"at_step": 20}, "params": {}, "live": False, "delivered": True,
        "state": "INJECTED", "requested_at": trial["started_at"], "injected_at": 10**9, "worker": "w1", "rank": 1,
        "pid": 1, "fidelity": "real",
    }  # fmt: skip


def _recovery(trial: Row, rng: random.Random) -> Row:
    phases = {phase: round(rng.lognormvariate(-3.0, 0.4), 4) for phase in PHASES}
    total = sum(phases.values())
    document = {
        "fault": {"id": "kill", "kind": "process_kill"}, "target": {"rank": 1, "worker": "w1"},
        "blamed": {"rank": 1, "worker": "w1", "cause": "exit"}, "recovery_s": total, "downtime_s": total * 0.8,
        "phases": phases, "lost_steps": 1, "generation": 1, "resume_step": 20, "replacement": None,
        "checks": {"fired": "PASS", "recovered": "PASS"},
    }  # fmt: skip
    return {"trial_id": trial["id"], "number": 0, "generation": 1, "fault_id": "kill", "document": document}


def _point(run: Row) -> Row:
    at = f"{run['created_at']:%Y-%m-%dT%H:%M:%S.000Z}"
    return {
        "id": run["seq"], "scenario": run["scenario"], "version": "0" * 12, "commit": run["commit"], "diff": "",
        "fingerprint": "f" * 12, "session": f"boot-{run['created_at']:%Y-%m-%d}",
        "faults": json.dumps({"kill": ["recovery", "downtime", *PHASES]}),
        "trials": TRIALS_PER_RUN, "first_at": at, "last_at": at, "seeded": True,
    }  # fmt: skip


def _sample(trial: Row, recovery: Row) -> Row:
    found = recovery["document"]
    times = {"recovery": found["recovery_s"], "downtime": found["downtime_s"], **found["phases"]}
    return {
        "id": f"sample-{trial['id']}", "point_id": trial["position"] // 1000, "trial": trial["id"],
        "at": f"{trial['started_at']:%Y-%m-%dT%H:%M:%S}.{trial['number']:03}Z", "seed": trial["seed"], "judged": True,
        "succeeded": trial["verdict"] == "PASS", "seeded": True, "times": {"kill": times},
        "versions": {"torch": "2.13.0"}, "place": f"nowhere:{trial['id']}",
    }  # fmt: skip


def _insert_long(connection: Connection, tables: Mapping[str, Table], number: int, rng: random.Random) -> None:
    """The newest run: long, and with all of its events and samples."""
    run = {**_run(number, rng), "steps": LONG_STEPS, "step": LONG_STEPS - 1}
    trial = _trial(run, 1)
    connection.execute(tables["runs"].insert(), [run])
    connection.execute(tables["trials"].insert(), [trial])
    samples, events = [], []
    for step in range(LONG_STEPS):
        for rank in range(LONG_RANKS):
            at = (step * LONG_RANKS + rank) * 10**6
            where = {"trial_id": trial["id"], "step": step, "rank": rank, "generation": 0, "at": at}
            samples.append({**where, "duration_ns": 5 * 10**6, "loss": 2.0})
            writer = {"run_id": run["id"], "part": "run", "host": "h", "boot": "b", "worker": f"w{rank}", "data": {}}
            events += [{**where, **writer, "kind": kind} for kind in ("phase_entered", "step_committed")]
    for first in range(0, len(samples), BATCH):
        connection.execute(tables["step_samples"].insert(), samples[first : first + BATCH])
    for first in range(0, len(events), BATCH):
        connection.execute(tables["events"].insert(), events[first : first + BATCH])


# --- telling ---------------------------------------------------------------------------------------------------------


def page(document: Mapping[str, Any]) -> str:
    rows = [
        [f"`{path}`", *(f"{seconds * 1000:.1f}" for seconds in (statistics.median(values), max(values), first))]
        for path, values in document["seconds"].items()
        for first in [statistics.median(document["seconds_after_a_trial"][path])]
    ]
    top = heading("The service with many trials", document["circumstances"], "python -m benchmarks.service_load")
    text = (
        f"{document['trials']:,} trials in {document['database']} (filled in {document['fill_s']} s). Milliseconds of "
        "a request, one at a time, as a client on this machine sees them; "
        f"goal: {GOAL_S * 1000:.0f} at the median. Last column: the first request after a trial was added, "
        "when the service remembers nothing of the history.\n\n"
    )
    return top + text + table(["address", "median", "greatest", "after a trial"], rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
