"""Gives a job a small disk of its own: `python -m chaos.disk DIRECTORY MEGABYTES -- COMMAND`.

The disk is a tmpfs, mounted over the directory in a user and mount namespace of this process, which then becomes the
command: it takes no right of root, nobody else sees it, and it ends with the last process of the job, whoever is
killed. The trial reaches it by /proc/PID/root of the launcher.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chaos.checkout import import_path

SIZE_MB: Final = 256
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x20000
_RECURSIVE, _PRIVATE = 0x4000, 0x40000
_NO_DEVICES_NOR_SETUID: Final = 0x4 | 0x2
_libc: Final = ctypes.CDLL(None, use_errno=True)


def mount(directory: Path, megabytes: int) -> None:
    """For this process and those that it starts. It must have one thread. Raises OSError where the kernel refuses."""
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEW_USER | _NEW_MOUNTS)
    # The same number inside: files on other disks keep their owner's name.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    _call("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    directory.mkdir(parents=True, exist_ok=True)
    options = f"size={megabytes}m,mode=0700".encode()
    _call("mount", b"phoenix", os.fsencode(directory), b"tmpfs", _NO_DEVICES_NOR_SETUID, options)


def trouble() -> str:
    """Why a job cannot have a disk of its own here, in a sentence; empty if it can. Tried out by a short process."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "chaos.disk", directory, "1", "--", "true"]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": import_path()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    return "" if done.returncode == 0 else (done.stderr.strip() or "it said nothing").splitlines()[-1]


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def main(argv: Sequence[str]) -> None:
    """Exit code 2 where this machine refuses; else it is the command's."""
    directory, megabytes, _, *command = argv
    try:
        mount(Path(directory), int(megabytes))
    except OSError as error:
        print(f"chaos.disk: a disk of its own needs user and mount namespaces: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
