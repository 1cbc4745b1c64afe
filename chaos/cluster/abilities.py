"""What this machine can do about isolated nodes: found out by doing it, in a process of its own that leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from chaos.checkout import import_path

_LIMIT_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """Why something is refused here, in a sentence with the fix; empty where it works."""

    isolation: str = ""
    network_partition: str = ""
    network_rate: str = ""
    network_delay: str = ""
    network_loss: str = ""
    network_reset: str = ""

    def trouble(self, kind: str) -> str:
        """Why faults of this kind cannot be applied; empty for those that need no isolated nodes."""
        return self.isolation or str(getattr(self, kind)) if kind in self.__dataclass_fields__ else ""


_known: Abilities | None = None


def abilities() -> Abilities:
    """Takes seconds the first time. A refusal of nodes or partitions is asked again: somebody may have lifted it."""
    global _known
    if _known is None or _known.isolation or _known.network_partition:
        _known = _try_out()
    return _known


def _try_out() -> Abilities:
    if shutil.which("nsenter") is None:
        return Abilities(isolation="isolated nodes need nsenter, which is not in PATH: install the package util-linux")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "chaos.cluster.selftest"],
            env={**os.environ, "PYTHONPATH": import_path()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        return Abilities(**json.loads(done.stdout))
    except (OSError, subprocess.TimeoutExpired) as error:
        return Abilities(isolation=f"isolated nodes could not be tried out: {error}")
    except (ValueError, TypeError):
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        return Abilities(isolation=f"isolated nodes could not be tried out (exit code {done.returncode}): {last}")
