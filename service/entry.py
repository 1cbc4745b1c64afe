"""The `phoenix` command. Loading it takes a moment, in which a Ctrl-C ends it without a traceback."""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from service import cli

    signal.signal(signal.SIGINT, before)
    cli.main()
