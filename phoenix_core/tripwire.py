"""Notice the end of a process before the kernel has torn down its memory.

A pidfd becomes readable, and sockets close, only after the memory is freed: 20-40 ms for 500 MB on an idle
machine, several times that on a busy one, seconds for the pinned host memory of a large training rank. The
kernel gives up a dying thread's robust mutexes *before* that. So each worker's control thread holds a mutex that its
agent waits for: when the lock comes with EOWNERDEAD, the thread is dead and its process is dying.
See robust_list(2) and pthread_mutexattr_setrobust(3).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_PTHREAD_PROCESS_SHARED: Final = 1
_PTHREAD_MUTEX_ROBUST: Final = 1
_SIZE: Final = 4096
"""Room for a pthread_mutex_t of any platform; a mapping is a whole page anyway."""


def _checked(code: int, what: str) -> None:
    if code != 0:
        raise OSError(code, f"{what}: {os.strerror(code)}")


class Tripwire:
    """One robust mutex in memory that two processes share. `create` in the agent, `attach` in the worker."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, _SIZE)
        self._mutex = ctypes.byref(ctypes.c_char.from_buffer(self._memory))

    @staticmethod
    def create() -> Tripwire:
        """Raises OSError where the kernel or the C library has no robust mutexes."""
        fd = os.memfd_create("phoenix-tripwire")
        os.ftruncate(fd, _SIZE)
        wire = Tripwire(fd)
        attributes = ctypes.create_string_buffer(64)
        _checked(_libc.pthread_mutexattr_init(attributes), "pthread_mutexattr_init")
        _checked(_libc.pthread_mutexattr_setpshared(attributes, _PTHREAD_PROCESS_SHARED), "setpshared")
        _checked(_libc.pthread_mutexattr_setrobust(attributes, _PTHREAD_MUTEX_ROBUST), "setrobust")
        _checked(_libc.pthread_mutex_init(wire._mutex, attributes), "pthread_mutex_init")
        return wire

    @staticmethod
    def attach(fd: int) -> Tripwire:
        return Tripwire(fd)

    def close(self) -> None:
        """Close the descriptor; the mapping stays for a thread that may still wait in it."""
        os.close(self.fd)

    def arm(self) -> None:
        """Hold the mutex until this thread ends; call it in a thread that lives as long as the process."""
        _checked(_libc.pthread_mutex_lock(self._mutex), "pthread_mutex_lock")

    def wait(self) -> bool:
        """Block until the holder is gone; True if it died, False if it let go. The GIL is not held meanwhile."""
        code = _libc.pthread_mutex_lock(self._mutex)
        if code == errno.EOWNERDEAD:
            return True
        _checked(code, "pthread_mutex_lock")
        return False
