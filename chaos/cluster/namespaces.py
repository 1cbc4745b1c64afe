"""The system calls behind isolated nodes. They need no right but that of every user to make a user namespace."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_libc: Final = ctypes.CDLL(None, use_errno=True)


def isolate() -> None:
    """Move this process into a user and a network namespace of its own, in which it is root.

    It must have one thread only. Raises OSError where the kernel or a sandbox refuses.
    """
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEW_USER | _NEW_NET)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path(f"/proc/self/{name}").write_text(text)


def new_network() -> int:
    """The descriptor of a new, empty network namespace, which lives as long as it is open or somebody is inside."""
    home = current_network()
    try:
        _call("unshare", _NEW_NET)
        made = current_network()
        move_to(home)
    finally:
        os.close(home)
    return made


def current_network() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def become_root_of(pid: int) -> None:
    """Enter the user namespace of a process of the same user. Raises OSError where that is not ours."""
    descriptor = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", descriptor, _NEW_USER)
    finally:
        os.close(descriptor)


def move_to(network: int) -> None:
    """For good: from a user namespace there is no way back into the networks of the one around it."""
    _call("setns", network, _NEW_NET)


@contextlib.contextmanager
def inside(network: int) -> Iterator[None]:
    """What is opened meanwhile (sockets, netlink) belongs to this network namespace for good."""
    home = current_network()
    try:
        move_to(network)
        yield
    finally:
        move_to(home)
        os.close(home)


def _call(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), name)
