"""A process that dies is noticed through its robust mutex, whichever way it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from phoenix_core.tripwire import Tripwire

pytestmark = pytest.mark.process

HOLDER = """
import sys, threading, time
from phoenix_core.tripwire import Tripwire
wire = Tripwire.attach(int(sys.argv[1]))
ready = threading.Event()
def hold():
    wire.arm()
    ready.set()
    time.sleep(600)
threading.Thread(target=hold, daemon=True).start()
ready.wait()
print("armed", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["kill", "stop and kill", "exit"])
def test_the_end_of_a_process_trips_the_wire(end: str) -> None:
    wire = Tripwire.create()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(wire.fd)],
        pass_fds=[wire.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None and holder.stdout is not None
    assert holder.stdout.readline() == b"armed\n"
    tripped = threading.Event()
    waiter = threading.Thread(target=lambda: tripped.set() if wire.wait() else None)
    waiter.start()
    assert not tripped.wait(0.2)
    if end == "exit":
        holder.stdin.close()
    else:
        if end == "stop and kill":
            os.kill(holder.pid, signal.SIGSTOP)
            assert not tripped.wait(0.2)
        holder.kill()
    assert tripped.wait(10)
    waiter.join()
    holder.communicate() if end != "exit" else holder.wait()
    holder.stdout.close()
    wire.close()
