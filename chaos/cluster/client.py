"""The trial's end of the hand: starts it before the job, gives it orders, notices its death."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from chaos.checkout import import_path
from chaos.cluster.shapes import Block
from chaos.errors import TargetGone, TrialError

ANSWER_S: Final = 60.0
"""The hand tries every way before and after; each try may take seconds where the machine is too busy."""
CLOSE_S: Final = 10.0


class HandClient:
    """Use `with`: the exit heals what is still held. `file` is where the cluster will be described."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._over: dict[str, dict[str, Any]] = {}
        self._answers: deque[dict[str, Any]] = deque()
        self._failure = ""
        self._held: dict[str, tuple[int, dict[str, object]]] = {}
        """What was ordered, and the hand (by its pid) that holds it."""
        self._start()

    def part(self, fault: str, blocks: Iterable[Block], **limits: object) -> dict[str, Any]:
        """Drop packets on these ways; `limits`: ttl_s, period_s, count. As `apply`."""
        return self.apply(fault, blocks=[list(block) for block in sorted(blocks)], **limits)

    def apply(self, fault: str, **order: object) -> dict[str, Any]:
        """What the hand saw: {"at", "proof"}. Raises TargetGone where nothing was applied."""
        try:
            self._replace_a_dead_one()
        except TrialError as error:
            raise TargetGone(str(error)) from error
        answer = self._ask(apply=fault, **order)
        if "refused" in answer:
            raise TargetGone(f"it could not be applied: {answer['reason']}")
        self._held[fault] = self._process.pid, order
        return answer

    def over(self, fault: str) -> str:
        """Why this fault has ended by itself; empty while the hand holds it. Does not block."""
        if not self._read() or self._was_killed_with(fault):
            return "the process that held it was killed"
        return str(self._over[fault]["reason"]) if fault in self._over else ""

    def revert(self, fault: str) -> dict[str, Any]:
        """{"healed", "proof"}: what was seen of the end, whoever brought it about."""
        gone_with_it = self._was_killed_with(fault)
        _, order = self._held.pop(fault, (0, {}))
        try:
            if self._replace_a_dead_one() or gone_with_it:
                # Its rules have gone with it, says the kernel's documentation; another hand looks whether that is so.
                return self._ask(verify=fault, **order)
            answer = self._over.pop(fault, None) or self._ask(revert=fault)
            return self._over.pop(fault, None) or answer  # it may have ended by itself while we asked
        except (TargetGone, TrialError) as error:
            return {"healed": False, "proof": {"unknown": str(error)}}

    def _replace_a_dead_one(self) -> bool:
        """Whether the hand had ended, and there is another one now. Raises TrialError."""
        if self._read():
            return False
        self._end()
        self._start()
        return True

    def _was_killed_with(self, fault: str) -> bool:
        """Whether another hand held it than there is now; one that said of its end before has no more to say."""
        return fault not in self._over and fault in self._held and self._held[fault][0] != self._process.pid

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._end()

    def __enter__(self) -> HandClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self._rest = b""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "chaos.cluster.hand", str(self.file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": import_path()},
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise TrialError(f"cannot start a process: {error.strerror}") from error
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def _ask(self, **order: object) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
        deadline = time.monotonic() + ANSWER_S
        while not self._answers:
            if not self._read():
                raise TargetGone(self._failure or "the process that holds network faults has ended")
            if time.monotonic() >= deadline:
                # Else it might still do what we call missed, and its answer be taken for that to the next question.
                self._process.kill()
                silent = f"the process that holds network faults did not answer within {ANSWER_S:g} s"
                raise TargetGone(f"{silent}, and was ended with all that it held")
            if not self._answers:
                select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        return self._answers.popleft()

    def _read(self) -> bool:
        """Take in what was said; False once the hand has ended and nothing more can come."""
        assert self._process.stdout is not None
        if self._process.stdout.closed:
            return False
        while True:
            try:
                block = os.read(self._process.stdout.fileno(), 65536)
            except BlockingIOError:
                return True
            if not block:
                return bool(self._answers)
            *lines, self._rest = (self._rest + block).split(b"\n")
            for said in map(json.loads, lines):
                if "over" in said:
                    self._over[said["over"]] = said
                elif "failed" in said:
                    self._failure = said["failed"]
                else:
                    self._answers.append(said)

    def _end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.wait(timeout=CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
