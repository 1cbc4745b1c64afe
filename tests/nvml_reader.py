"""A process that reads NVML through the unmodified pynvml, as monitors do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from chaos.nvml.build import library_directory
from chaos.nvml.state import NodeGpus, environment

# Reads one line of Python a time and answers with what it evaluates to, or with the error of NVML.
READER = """
import json, sys, time
from pynvml import *
def listen():
    events = nvmlEventSetCreate()
    for device in devices:
        nvmlDeviceRegisterEvents(device, nvmlEventTypeXidCriticalError, events)
    return events
def wait(events, ms):
    event = nvmlEventSetWait_v2(events, ms)
    return [nvmlDeviceGetIndex(event.device), event.eventType, event.eventData, event.gpuInstanceId]
for line in sys.stdin:
    try:
        said = eval(line)
    except NVMLError as error:
        said = str(error)
    print(json.dumps(said, default=str), flush=True)
"""


class Reader:
    """A process with pynvml, which is asked to evaluate expressions."""

    def __init__(self, node: NodeGpus) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER],
            env={**os.environ, **environment(library_directory(), node.directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.ask("nvmlInit()") is None
        self.ask("globals().update(devices=[nvmlDeviceGetHandleByIndex(i) for i in range(nvmlDeviceGetCount())])")

    def say(self, expression: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, expression: str) -> Any:
        self.say(expression)
        return self.hear()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()
