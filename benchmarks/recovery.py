"""Recovery time by phase: SIGKILLs and SIGSTOPs in every training phase, each checked against the undisturbed run.

    python -m benchmarks.recovery                    three trials of four kills and four stops: 12 of each
    python -m benchmarks.recovery --trials 1 --kinds process_kill --workload gpt-tiny     a quick look
    python -m benchmarks.recovery --workload gpt-sharded --name recovery-fsdp2            FSDP2 in place of DDP

Every trial is one job that loses a rank again and again, far enough apart for a new spare to be warm, and a
twin job of the same seed that loses none.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.report import RESULTS, circumstances, heading, publish, table
from benchmarks.stats import Spread
from chaos.errors import ChaosError
from chaos.faults import PlannedFault
from chaos.record import Result, TrialDirectory
from chaos.scenario import CHECKS, Cluster, Scenario
from chaos.trial import EXIT_CODES, EXIT_USAGE, interruptible, run_trial
from chaos.verdict import Verdict, worst
from phoenix_core.events import Event, read_events
from phoenix_core.timeline import Phase

KINDS: Final = ("process_kill", "process_stop")
PHASES: Final = ("forward", "backward", "gradient_sync", "optimizer")
COLUMNS: Final = (*(phase.value for phase in Phase), "recovery", "downtime")


def scenario_of(trial: int, options: argparse.Namespace) -> Scenario:
    """Faults of every kind in every phase, `spacing` steps apart; each trial has its own seed and order of ranks."""
    cluster = Cluster(nodes=options.nodes, ranks_per_node=1, spares=1)
    planned = [(kind, phase) for phase in PHASES for kind in options.kinds]
    faults = []
    for index, (kind, phase) in enumerate(planned):
        trigger = {"phase": phase, "step": options.spacing * (index + 1)}
        target = {"rank": (index + trial) % cluster.world_size}
        faults.append(
            PlannedFault.from_json(
                {"kind": kind, "target": target, "trigger": trigger}, id=f"{kind}-in-{phase}-of-trial-{trial}"
            )
        )
    return Scenario(
        name="bench-recovery",
        description="Kills and stops in every training phase",
        workload=options.workload,
        steps=options.spacing * (len(planned) + 1),
        cluster=cluster,
        seed=options.seed + trial,
        faults=tuple(faults),
        timeout_s=options.timeout,
    )


def sample_of(record: Mapping[str, object], events: Sequence[Event]) -> dict[str, object]:
    """One recovery as a sample; `spare_ready` tells whether a warm spare stood by when the fault came."""
    fault = record["fault"]
    at = next((e.at for e in events if e.kind == "fault_injected" and e.data.get("fault") == _get(fault, "id")), None)
    before = [e.kind for e in events if at is not None and e.at <= at]
    ready = before.count("spare_parked") > before.count("spare_assigned")
    return {**record, "spare_ready": ready}


def _get(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, Mapping) else None


def column(samples: Sequence[Mapping[str, object]], name: str) -> Spread:
    """The seconds of one column over all samples that have them."""
    picked = [_get(sample["phases"], name) if name in set(Phase) else sample[f"{name}_s"] for sample in samples]
    return Spread(values=tuple(float(value) for value in picked if isinstance(value, int | float)))


def rows(samples: Sequence[Mapping[str, object]]) -> list[list[str]]:
    """A row for each kind of fault, and for kills one for each phase in which they came."""
    found: list[list[str]] = []
    for kind in KINDS:
        own = [sample for sample in samples if _get(sample["fault"], "kind") == kind]
        if own:
            found.append(_row(kind, own))
        for phase in PHASES:
            inside = [sample for sample in own if f"-in-{phase}-" in str(_get(sample["fault"], "id"))]
            if inside:
                found.append(_row(f"  in {phase}", inside))
    return found


def _row(name: str, samples: Sequence[Mapping[str, object]]) -> list[str]:
    lost = sorted({str(sample["lost_steps"]) for sample in samples})
    milliseconds = [column(samples, label).text(unit=1000) for label in COLUMNS]
    return [name, str(len(samples)), *milliseconds, "/".join(lost)]


def page(document: Mapping[str, object], where: Mapping[str, object], command: str) -> str:
    """The Markdown page."""
    samples, results = document["samples"], document["trials"]
    assert isinstance(samples, list)
    assert isinstance(results, list)
    text = heading("Recovery time", where, command)
    text += (
        "Milliseconds, median (least-greatest). Recovery counts from the injection of the fault to the first new step "
    )
    text += "that every rank has committed; downtime is recovery less recompute.\n\n"
    text += table(["fault", "n", *COLUMNS, "lost steps"], rows(samples))
    late = sum(1 for sample in samples if not sample["spare_ready"])
    text += (
        f"\n{late} of {len(samples)} faults came while no warm spare stood by; their wait for one is in the numbers.\n"
    )
    text += "\n" + table(
        ["trial", "verdict", *CHECKS],
        [[str(r["seed"]), r["verdict"], *(r["checks"][c]["verdict"] for c in CHECKS)] for r in results],
    )
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: every trial passed; 1: one failed; 2: usage; 3: one could not be judged."""
    options = parse_options(arguments)
    where = circumstances()
    samples: list[dict[str, object]] = []
    trials: list[dict[str, object]] = []
    verdicts: list[Verdict] = []
    try:
        with interruptible() as stop, tempfile.TemporaryDirectory(prefix="phoenix-bench-") as scratch:
            raw = options.raw or Path(scratch)
            for number in range(options.trials):
                scenario = scenario_of(number, options)
                directory = TrialDirectory.create(raw / f"recovery-{number}", scenario)
                result = run_trial(directory, stop=stop)
                events = read_events(directory.run.events)
                samples += [sample_of(recovery.to_json(), events) for recovery in result.recoveries]
                trials.append({"seed": scenario.seed, **result.to_json()})
                verdicts.append(result.verdict)
                tell(number, result)
                if result.error == "interrupted":
                    break
    except ChaosError as error:
        print(f"benchmarks.recovery: {error}", file=sys.stderr)
        return EXIT_USAGE
    document = {**where, "workload": options.workload, "samples": samples, "trials": trials}
    command = shlex.join(["python", "-m", "benchmarks.recovery", *(sys.argv[1:] if arguments is None else arguments)])
    text = page(document, where, command)
    print("\n" + text)
    if worst(verdicts) is not Verdict.UNKNOWN:
        print("written:", *publish(options.name, document, text, options.out))
    else:
        print("not written: not every trial could be judged")
    return EXIT_CODES[worst(verdicts)]


def tell(number: int, result: Result) -> None:
    """One line for each trial as it ends; why, if it did not pass."""
    print(f"trial {number}: {result.verdict.value}, {len(result.recoveries)} recoveries", flush=True)
    for name, check in result.checks.items():
        if check.verdict is not Verdict.PASS:
            print(f"  {name}: {check.verdict.value} {check.detail}")
    if result.error:
        print(f"  {result.error}")


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.recovery", description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=3, help="each with one fault of each kind in each phase")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--workload", default="gpt", help="a registered workload")
    parser.add_argument("--nodes", type=int, default=4, help="nodes of one rank each")
    parser.add_argument("--spacing", type=int, default=25, help="steps between two faults")
    parser.add_argument("--seed", type=int, default=0, help="of the first trial")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for each trial")
    parser.add_argument("--raw", type=Path, help="keep the trial directories here")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where NAME.json and NAME.md go")
    parser.add_argument("--name", default="recovery", help="of the published files")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
