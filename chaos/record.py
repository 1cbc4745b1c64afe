"""The trial directory: what a trial leaves on disk, and the only way to read and write it.

spec.json       resolved scenario, trial id, seed, commit, versions      written first
requests.jsonl  live fault requests and a cancel, appended by others     tailed by the trial
run/, twin/     events/*.jsonl and logs/*.log of the disturbed and of the undisturbed run; agents/: orders to processes
pid             {"pid", "start_ticks"} of the trial's process            while it lives
result.json     verdict, checks, recoveries                              written last, atomically
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from chaos.errors import InvalidScenario, TrialError
from chaos.goodput import Goodput
from chaos.procfs import start_ticks
from chaos.provenance import Provenance, provenance
from chaos.recoveries import RecoveryRecord
from chaos.scenario import Scenario
from chaos.verdict import CheckResult, Verdict

Parse = Callable[[object], Scenario]


class Part(StrEnum):
    """Where a trial is; the data of its `trial_phase` events."""

    RUN = "run"
    TWIN = "twin"
    CHECKS = "checks"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a trial was asked to do and by which code: together with the seed it says how to do it again.

    `seeded`: nothing of it happened; it was made up for looking at the pages (`phoenix demo --seed-data`).
    """

    trial: str
    scenario: Scenario
    provenance: Provenance
    created_at: str
    seeded: bool = False

    def to_json(self) -> dict[str, object]:
        return {
            "trial": self.trial,
            "scenario": self.scenario.to_json(),
            "seed": self.scenario.seed,
            **self.provenance.to_json(),
            "created_at": self.created_at,
            **({"seeded": True} if self.seeded else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, object], parse: Parse = Scenario.from_json) -> Spec:
        """Raises InvalidScenario or KeyError for a document that is no specification."""
        return Spec(
            trial=str(data["trial"]),
            scenario=parse(data["scenario"]),
            provenance=Provenance.from_json(data),
            created_at=str(data["created_at"]),
            seeded=data.get("seeded") is True,
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a trial ended. `error` says why it could not be judged or did not complete; None otherwise.

    `goodput` is that of the disturbed run; None where it committed no step, and in results of earlier versions.
    """

    verdict: Verdict
    checks: Mapping[str, CheckResult]
    recoveries: tuple[RecoveryRecord, ...]
    steps_committed: int
    error: str | None
    finished_at: str
    goodput: Goodput | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "verdict": self.verdict.value,
            "checks": {name: check.to_json() for name, check in self.checks.items()},
            "recoveries": [recovery.to_json() for recovery in self.recoveries],
            "steps_committed": self.steps_committed,
            "error": self.error,
            "finished_at": self.finished_at,
            "goodput": None if self.goodput is None else self.goodput.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, object]) -> Result:
        """Raises KeyError or ValueError for a document that is no result."""
        share = data.get("goodput")
        checks, recoveries, error = data["checks"], data["recoveries"], data["error"]
        assert isinstance(checks, Mapping) and isinstance(recoveries, list)
        return Result(
            verdict=Verdict(str(data["verdict"])),
            checks={name: CheckResult.from_json(check) for name, check in checks.items()},
            recoveries=tuple(RecoveryRecord.from_json(recovery) for recovery in recoveries),
            steps_committed=int(str(data["steps_committed"])),
            error=None if error is None else str(error),
            finished_at=str(data["finished_at"]),
            goodput=Goodput.from_json(share) if isinstance(share, Mapping) else None,
        )


@dataclass(frozen=True, kw_only=True)
class PartDirectory:
    """One launch of the runtime: the disturbed run or its twin."""

    path: Path

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """What the job keeps on disk to begin from."""
        return self.path / "checkpoints"

    @property
    def agents(self) -> Path:
        """Orders to the processes of the job, and their answers (`chaos.agent.mailbox`)."""
        return self.path / "agents"

    @property
    def gpus(self) -> Path:
        """One directory a node with its emulated GPUs and its kernel log (`chaos.nvml.state`)."""
        return self.path / "gpus"


class TrialDirectory:
    """Paths and documents of one trial. Every write that fails raises TrialError with the path and the reason."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path.absolute()
        self.run: Final = PartDirectory(path=self.path / "run")
        self.twin: Final = PartDirectory(path=self.path / "twin")
        self.spec_file: Final = self.path / "spec.json"
        self.requests_file: Final = self.path / "requests.jsonl"
        self.pid_file: Final = self.path / "pid"
        self.result_file: Final = self.path / "result.json"

    @staticmethod
    def create(path: Path, scenario: Scenario, *, trial: str | None = None, code: Path | None = None) -> TrialDirectory:
        """Make the directory and write spec.json. Refuses one that already holds a trial. `code`: what it will run."""
        directory = TrialDirectory(path)
        with writing(directory.path):
            directory.path.mkdir(parents=True, exist_ok=True)
        parts = (directory.spec_file, directory.result_file, directory.run.path, directory.twin.path)
        spec = Spec(trial=trial or path.name, scenario=scenario, provenance=provenance(code), created_at=utc_now())
        with directory._alone():
            if any(part.exists() for part in parts):
                raise TrialError(f"{directory.path} already holds a trial: choose another directory, or remove it")
            directory.write_spec(spec)
        return directory

    def write_spec(self, spec: Spec) -> None:
        write_atomically(self.spec_file, spec.to_json())

    def read_spec(self, parse: Parse = Scenario.from_json) -> Spec:
        """Raises TrialError where there is none, or none that this version can run.

        `parse` may remember scenarios: of many trials most have the same one, and checking it costs most of the time.
        """
        data = self._read(self.spec_file)
        if data is None:
            raise TrialError(f"{self.spec_file}: there is none, so this is no trial directory")
        try:
            return Spec.from_json(data, parse)
        except KeyError as error:
            raise TrialError(f"{self.spec_file}: not a specification: the field {error} is missing") from error
        except InvalidScenario as error:
            raise TrialError(f"{self.spec_file}: not a specification that can be run: {error}") from error

    def write_result(self, result: Result) -> None:
        write_atomically(self.result_file, result.to_json())

    def read_result(self) -> Result | None:
        """None while the trial is not over (or was killed). Raises TrialError for a broken document."""
        data = self._read(self.result_file)
        try:
            return None if data is None else Result.from_json(data)
        except KeyError as error:
            raise TrialError(f"{self.result_file}: not a result: the field {error} is missing") from error
        except (ValueError, TypeError, AssertionError) as error:
            raise TrialError(f"{self.result_file}: not a result: {error!r}") from error

    def request_fault(self, request: Mapping[str, object]) -> None:
        """Append a live request: the JSON of a PlannedFault with its id under `fault`."""
        self._append(request)

    def request_revert(self, fault: str, reason: str) -> None:
        self._append({"revert": fault, "reason": reason})

    def request_halt(self, halt: str, reason: str) -> None:
        """Every fault is taken back and none may begin until this halt is released."""
        self._append({"halt": halt, "reason": reason})

    def request_release(self, halt: str, reason: str) -> None:
        self._append({"release": halt, "reason": reason})

    def request_cancel(self, reason: str) -> None:
        self._append({"cancel": True, "reason": reason})

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """The calling process runs this trial: its pid file is there for as long. Raises TrialError if one lives."""
        with self._alone():
            if self.is_alive():
                raise TrialError(f"{self.path}: this trial is already being run (see {self.pid_file.name})")
            write_atomically(self.pid_file, {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())})
        try:
            yield
        finally:
            self.pid_file.unlink(missing_ok=True)

    def is_alive(self) -> bool:
        """Whether the process that the pid file names still lives (a recycled pid does not count)."""
        data = self._read(self.pid_file)
        if data is None or not isinstance(data.get("pid"), int):
            return False
        return start_ticks(int(str(data["pid"]))) == data.get("start_ticks")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Between a look at the directory and what is written because of it nobody else looks; the next one waits."""
        with writing(self.path):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # not every network file system can lock a directory
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _append(self, request: Mapping[str, object]) -> None:
        line = json.dumps(dict(request), separators=(",", ":")).encode() + b"\n"
        with writing(self.requests_file):
            file = os.open(self.requests_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                os.write(file, line)  # one write a line, so that two clients never mix
            finally:
                os.close(file)

    def _read(self, path: Path) -> dict[str, object] | None:
        try:
            data = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise TrialError(f"cannot read {path}: {error}") from error
        if not isinstance(data, dict):
            raise TrialError(f"{path}: not a JSON object")
        return data


def utc_now() -> str:
    """ISO 8601 in UTC, as every time of day in our documents."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write_atomically(path: Path, data: Mapping[str, object]) -> None:
    """A reader sees the whole document or none, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(json.dumps(data, indent=1).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What fails inside raises TrialError, with this path and the reason."""
    try:
        yield
    except OSError as error:
        raise TrialError(f"cannot write {path}: {error.strerror or error}") from error


def write_text(path: Path, text: str) -> None:
    """A report, whose directory is made where there is none. Raises TrialError where it cannot be written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def check_report(path: Path) -> None:
    """Before hours of work: raises TrialError where `write_text` would, as far as that can be known. Makes nothing."""
    whole = path.absolute()
    with writing(path):
        around = next(place for place in (whole, *whole.parents) if place.exists())
        if around.is_dir() and around == whole:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not around.is_dir() and around != whole:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(around, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


__all__ = [
    "CheckResult",
    "Part",
    "PartDirectory",
    "RecoveryRecord",
    "Result",
    "Spec",
    "TrialDirectory",
    "Verdict",
    "utc_now",
    "write_text",
]
