"""Why isolated nodes are refused here, and what an administrator can do about it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

Reader = Callable[[str], str]

_SWITCHES: Final = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
    ("/proc/sys/user/max_net_namespaces", "0", "sysctl -w user.max_net_namespaces=15000"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
"""Settings that forbid user namespaces: where, the value that does, and the command that lifts it."""


def setting(path: str) -> str:
    """The value of a kernel setting; empty where this kernel has none of the name."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def why_refused(error: OSError, read: Reader = setting) -> str:
    """One sentence with the reason and the fix."""
    what = f"isolated nodes need user and network namespaces, which were refused ({error.strerror or error})"
    for path, forbids, fix in _SWITCHES:
        if read(path) == forbids:
            return f"{what}: {path} is {forbids}; as root: {fix}"
    if error.errno in (errno.EINVAL, errno.ENOSYS):
        return f"{what}: this kernel was built without them (CONFIG_USER_NS, CONFIG_NET_NS); use another kernel"
    if error.errno == errno.EOPNOTSUPP:
        return f"{what}: this kernel has no bridge or veth devices; as root: modprobe bridge veth"
    return (
        f"{what}: most likely by the sandbox that this runs in; for a container: docker run --security-opt "
        "seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
    )
