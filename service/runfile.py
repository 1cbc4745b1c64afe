"""run.json: what a trial directory tells of the run that it belongs to, so that rows can be made from it again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from service.documents import Document
from service.shapes import Moment
from service.store import MOST_TRIALS
from service.tables import Run, Trial

NAME: Final = "run.json"


class RunFile(Document):
    """Of a directory without the file (a trial by hand) a run of its own is made, with this one trial.

    Texts and numbers are such as the tables take them; fields that a newer version adds are left alone.
    """

    model_config = ConfigDict(extra="ignore", strict=True)

    run: Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z._-]*$", max_length=32)]
    number: Annotated[int, Field(ge=1, le=MOST_TRIALS)]
    suite: Annotated[str | None, Field(max_length=200)]
    schedule: Annotated[str | None, Field(max_length=32)]
    reason: str | None
    requested_by: Annotated[str | None, Field(max_length=100)]
    created_at: Moment

    @staticmethod
    def of(run: Run, trial: Trial) -> RunFile:
        return RunFile.model_construct(  # rows are as they are
            run=run.id,
            number=trial.number,
            suite=run.suite,
            schedule=run.schedule_id,
            reason=run.reason,
            requested_by=run.requested_by,
            created_at=run.created_at,
        )

    def to_json(self) -> bytes:
        return self.model_dump_json().encode() + b"\n"

    def write(self, directory: Path) -> None:
        """Raises OSError."""
        (directory / NAME).write_bytes(self.to_json())

    @staticmethod
    def read(directory: Path) -> RunFile | None:
        """None where there is none. Raises ValueError, which names the file and the field, for one that is none."""
        file = directory / NAME
        try:
            return RunFile.parse(file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(f"cannot read {file}: {error.strerror or error}") from error
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
