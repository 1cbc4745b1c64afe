"""A job that is interrupted says so once, however often the interruption is repeated."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, os, signal, socket, sys
from dataclasses import asdict
from phoenix_core import coordinator
from phoenix_core.ledger import Book
from phoenix_core.protocol import End
from phoenix_core.settings import Detection

async def ended(self, control):
    control.close()
    return End(outcome="stopped", reason="interrupted (Ctrl-C)")

coordinator.Coordinator.run = ended
config = {"rank_nodes": ["n0"], "spare_nodes": [], "max_restarts": 3, "begins_at": 0, "detection": asdict(Detection())}
config |= {"run_dir": None, "token": "", "control_fd": socket.socket().detach(), "ledger_fds": Book.create()}
code = asyncio.run(coordinator.serve(config))
for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(os.getpid(), number)
sys.exit(code)
"""


def test_an_interruption_that_is_repeated_changes_neither_words_nor_exit_code() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "phoenix run: the job stopped: interrupted (Ctrl-C)\n")
