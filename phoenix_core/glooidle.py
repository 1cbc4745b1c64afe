"""Whether gloo's threads in this process have come to rest, as the kernel tells of them.

A collective whose sockets were shut down is ended by gloo's own threads, with an error, or by nobody (`work`). On a
busy machine the first can be late. If somebody else completed its future meanwhile, gloo would complete it a second
time, which ends the process. A thread that has something to do is runnable, also while it waits for a processor; so
where all of them sleep, nothing is on its way any more.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

NAMES: Final = ("gloo_tcp_loop", "pt_gloo_runloop")
"""The loop that reads sockets, and those that run collectives."""


LET_GO_AFTER_S: Final = 0.25
LET_GO_AT_LAST_S: Final = 5.0
"""A job that waits longer than this for one rank has worse to fear than the end of that rank."""


def nothing_will_come(waited_s: float) -> bool:
    """Whether what has not ended so long after its sockets were shut down never will; nothing writes its tensors."""
    return waited_s > LET_GO_AFTER_S and (gloo_is_idle() or waited_s > LET_GO_AT_LAST_S)


def gloo_is_idle() -> bool:
    """True where all of gloo's threads sleep, and where there is none."""
    return not any(_is_busy(task) for task in os.listdir("/proc/self/task"))


def _is_busy(task: str) -> bool:
    try:
        text = Path(f"/proc/self/task/{task}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended meanwhile
    head, _, tail = text.rpartition(")")
    return head.partition("(")[2] in NAMES and tail.split()[0] != "S"
