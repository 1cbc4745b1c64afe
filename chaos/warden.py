"""Keeps one launch of a runtime, so that nothing of it outlives the trial, whatever kills the trial.

    trial --lifeline (stdin)--> warden --> launcher (own session) --> everything that it starts
          <--status (stdout)--

The warden is the subreaper of all that the launcher starts: a process that loses its parent becomes the warden's
child, also one that left the session, so /proc names all of them at any time. When the lifeline ends (the trial closed
it, or was killed with SIGKILL: the kernel closes it), the warden ends everything: SIGTERM to the launcher, then after a
grace period SIGKILL to whatever is left. If the warden itself is killed, the launcher gets SIGTERM (its parent-death
signal).

Status lines (JSON): {"started": pid} · {"exited": code} · {"left": ["name (pid 7)"]} · then the end of the stream.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable

from chaos import cgroups
from chaos.procfs import ProcessStat, all_processes

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
SETTLE_S = 2.0  # what ends by itself within this time after the launcher was no leak
KILL_BOUND_S = 30.0


def main(argv: list[str]) -> None:
    """`argv`: one JSON document {"argv", "log", "grace_s"}; the environment is the launcher's."""
    order = json.loads(argv[0])
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _noted)
    launcher = _start(order["argv"], order["log"])
    _tell(started=launcher)
    _tell(exited=_keep(launcher, wake, float(order["grace_s"])))
    left = _settled(SETTLE_S)
    _tell(left=[f"{stat.name} (pid {stat.pid})" for stat in left])
    _kill_all()
    cgroups.sweep()  # of a trial that was killed: what lives takes its own back


def _keep(launcher: int, wake: int, grace_s: float) -> int:
    """Until the launcher has ended: its exit code, negative for a signal."""
    kill_at: float | None = None
    watched, codes = [0, wake], _reap()
    while True:
        timeout = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        ready, _, _ = select.select(watched, [], [], timeout)
        numbers = os.read(wake, 4096) if wake in ready else b""
        codes |= _reap()
        if launcher in codes:
            return codes[launcher]
        cut = 0 in ready and not os.read(0, 4096)
        if kill_at is None and (cut or {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} & set(numbers)):
            watched, kill_at = [wake], time.monotonic() + grace_s
            _send(signal.SIGTERM, [launcher])
            # A frozen process cannot act on SIGTERM; this also takes back every process_stop of a dead trial.
            _send(signal.SIGCONT, [stat.pid for stat in descendants()])
        elif kill_at is not None and time.monotonic() >= kill_at:
            codes |= _kill_all()


def descendants() -> list[ProcessStat]:
    """Every living process below this one."""
    children: dict[int, list[ProcessStat]] = {}
    for stat in all_processes():
        children.setdefault(stat.parent, []).append(stat)
    found, heads = [], [os.getpid()]
    while heads:
        below = children.get(heads.pop(), [])
        heads += [stat.pid for stat in below]
        found += [stat for stat in below if not stat.ended]
    return found


def _settled(seconds: float) -> list[ProcessStat]:
    """What is still there after everything had its time to end."""
    deadline = time.monotonic() + seconds
    while True:
        _reap()
        left = descendants()
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.005)


def _kill_all() -> dict[int, int]:
    """Until nothing is left; answers as `_reap`. A process may start another between look and signal: hence the loop.

    One in an uninterruptible wait of the kernel ends only when that wait does; after a bound it is left to its fate.
    """
    deadline = time.monotonic() + KILL_BOUND_S
    codes = _reap()
    while (left := descendants()) and time.monotonic() < deadline:
        _send(signal.SIGKILL, [stat.pid for stat in left])
        time.sleep(0.002)
        codes |= _reap()
    return codes | _reap()


def _reap() -> dict[int, int]:
    """Collect whatever has ended: exit code by pid, negative for a signal."""
    codes: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return codes
        if pid == 0:
            return codes
        codes[pid] = os.waitstatus_to_exitcode(status)


def _start(argv: list[str], log: str) -> int:
    """Fork and exec the launcher in a session of its own; it dies with the warden."""
    warden = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != warden:
            os._exit(1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _send(number: int, pids: Iterable[int]) -> None:
    # All of these are our own descendants and only we reap them, so none of the pids can have been recycled,
    # except those of grandchildren whose parents still live: they were read from /proc an instant ago.
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _tell(**status: object) -> None:
    try:
        os.write(1, json.dumps(status).encode() + b"\n")
    except BrokenPipeError:
        return  # the trial is dead: there is nobody to tell, but still everything to end


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def _noted(*_: object) -> None:
    """The wake-up descriptor carries the number; the loop acts on it."""


if __name__ == "__main__":
    main(sys.argv[1:])
