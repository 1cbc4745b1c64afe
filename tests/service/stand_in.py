"""`phoenix serve` with trials that take a moment, need no torch and say how often they were started.

Those with a fault are real ones, over a runtime that pretends to train; all others only write events.

python -m tests.service.stand_in DIRECTORY [DATABASE_URL]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from service.server import serve
from service.settings import Settings

# As a text, so that a trial is a bare interpreter that starts in no time.
TRIAL = """
import json, os, pathlib, sys, time
directory = pathlib.Path(sys.argv[1])
with (directory / "starts").open("a") as file:
    file.write("x")
if json.loads((directory / "spec.json").read_text())["scenario"]["faults"]:
    os.execv(sys.executable, [sys.executable, "-m", "chaos.trial", "run", str(directory)])
events = directory / "run" / "events"
events.mkdir(parents=True, exist_ok=True)
with (events / "w0.jsonl").open("a", buffering=1) as file:
    for step in range(30):
        for rank in range(2):
            event = {"kind": "step_committed", "at": time.monotonic_ns(), "worker": f"w{rank}", "rank": rank,
                     "generation": 0, "step": step, "data": {"loss": 1.0, "duration_ns": 1}}
            file.write(json.dumps(event) + chr(10))
        time.sleep(0.01)
result = {"verdict": "PASS", "checks": {}, "recoveries": [], "steps_committed": 30, "error": None,
          "finished_at": "2026-11-30T00:00:00.000Z"}
temporary = directory / ".result.tmp"
temporary.write_text(json.dumps(result))
temporary.rename(directory / "result.json")
"""


def main() -> None:
    settings = Settings(
        directory=Path(sys.argv[1]),
        port=0,
        database_url=sys.argv[2] if len(sys.argv) > 2 else None,
        max_active=3,
        extra_runtimes=os.environ.get("PHOENIX_RUNTIMES", ""),
        poll_s=0.05,
        trial_command=(sys.executable, "-c", TRIAL),
    )
    serve(settings)


if __name__ == "__main__":
    main()
