"""run.json: what a trial directory tells of the run that it belongs to, so that rows can be made from it again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from service.tables import Run, Trial

NAME: Final = "run.json"


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """Of a directory without the file (a trial by hand) a run of its own is made, with this one trial."""

    run: str
    number: int
    suite: str | None
    schedule: str | None
    reason: str | None
    requested_by: str | None
    created_at: str

    @staticmethod
    def of(run: Run, trial: Trial) -> RunFile:
        return RunFile(
            run=run.id,
            number=trial.number,
            suite=run.suite,
            schedule=run.schedule_id,
            reason=run.reason,
            requested_by=run.requested_by,
            created_at=run.created_at.isoformat(),
        )

    def write(self, directory: Path) -> None:
        """Raises OSError."""
        (directory / NAME).write_text(json.dumps(asdict(self)) + "\n")

    @staticmethod
    def read(directory: Path) -> RunFile | None:
        """None where there is none, or none that can be read."""
        try:
            data = json.loads((directory / NAME).read_bytes())
            found = RunFile(**data)
            datetime.fromisoformat(found.created_at)
            return found
        except (OSError, ValueError, TypeError):
            return None
