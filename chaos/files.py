"""Whether the files that a scenario names can be trained on, asked before anything is started."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from chaos.errors import InvalidScenario
from chaos.workloads import Workload


def check_files(workload: Workload, options: Mapping[str, object]) -> None:
    """Raises InvalidScenario, naming the file, for the first that this workload cannot use."""
    chosen = {**workload.defaults, **options}
    for option in sorted(workload.path_options & chosen.keys()):
        more_than = workload.longer_than.get(option)
        sample = int(str(chosen[more_than])) if more_than is not None else 0
        if trouble := trouble_with(Path(str(chosen[option])), at_least=sample + 1):
            raise InvalidScenario(trouble, field=f"options.{option}")


def trouble_with(path: Path, *, at_least: int = 1) -> str:
    """Why a file of at least so many bytes cannot be read there, in a sentence; empty if it can."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return f"{path} is a directory; name a text file"
        if not stat.S_ISREG(status.st_mode):
            return f"{path} is not a regular file; name a text file"
        with path.open("rb"):
            pass
    except FileNotFoundError:
        return f"there is no file {path}"
    except (OSError, ValueError) as error:  # a ValueError: a name that no file can have
        return f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
    if status.st_size < at_least:
        return f"{path} holds {status.st_size} bytes; at least {at_least} are needed: name a longer text"
    return ""
