"""`python -m chaos.agent [-m MODULE | SCRIPT] ARGS`: run a script with the thread that takes orders beside it."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from chaos.agent.listener import Listener
from chaos.agent.mailbox import DIRECTORY

USAGE = "usage: python -m chaos.agent [-m MODULE | SCRIPT] ARGS"


def main(arguments: Sequence[str]) -> None:
    """Returns, or raises, as the script does."""
    module, rest = (arguments[:1] == ["-m"]), list(arguments)
    if module:
        del rest[0]
    if not rest:
        sys.exit(USAGE)
    if not module and not os.path.exists(rest[0]):
        sys.exit(f"there is no script {rest[0]} (a module needs -m); {USAGE}")
    if directory := os.environ.get(DIRECTORY):
        Listener(Path(directory)).start()
    script, *sys.argv[1:] = rest
    if module:
        # Python has put the directory that it was started in at the front, as it does for the module itself.
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = script
        sys.path[0] = os.path.dirname(os.path.abspath(script))
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
