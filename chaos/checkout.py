"""Where this project's modules are, for processes that are started with `python -m`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]


def import_path() -> str:
    """A PYTHONPATH under which a new process finds them, wherever the trial was started from."""
    return os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
