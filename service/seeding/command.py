"""`phoenix demo --seed-data`."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

from service.context import address_in, opened_database
from service.files import trouble_with
from service.seeding.write import SeedingError, last_night, seed
from service.settings import Settings, SettingsError

OK, USAGE = 0, 2


def seed_directory(directory: Path, *, as_json: bool, now: datetime | None = None) -> int:
    """The exit code: 2 where the directory cannot be used or holds other runs."""
    try:
        if (address := address_in(directory)) is not None:
            raise SeedingError(
                f"a service uses {directory} (it answers at {address}): stop it, or choose another --dir"
            )
        if trouble := trouble_with(directory):
            raise SeedingError(trouble)
        directory.mkdir(parents=True, exist_ok=True)
        database = opened_database(Settings(directory=directory))
        try:
            told = None if as_json else print
            found = seed(
                directory, database, last=last_night(now or datetime.now(UTC)), told=told or (lambda line: None)
            )
        finally:
            database.close()
    except (SeedingError, SettingsError, OSError) as error:
        print(f"phoenix: {error}", file=sys.stderr)
        return USAGE
    if as_json:
        print(json.dumps({"directory": str(directory), "nights": found.nights, "trials": found.trials, "seeded": True}))
    else:
        print(f"{found.nights} made-up nights with {found.trials} trials, marked as such on every page.")
        print(f"See them with: phoenix serve --dir {shlex.quote(str(directory))}")
    return OK
