"""`python -m benchmarks.peers.scripts NAME ...`: the worker is announced before anything slow is imported."""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks.peers.scripts.probe import Probe

probe = Probe()
name = sys.argv.pop(1)
import_module(f"benchmarks.peers.scripts.{name}").main(probe)
