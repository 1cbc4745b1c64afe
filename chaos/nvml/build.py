"""Compiles the stand-in library on first use with the system's C compiler, and keeps it in the user's cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chaos.errors import Unsupported

LIBRARY: Final = "libnvidia-ml.so.1"
"""The name by which NVML is loaded, by everybody."""

SOURCE: Final = Path(__file__).with_name("nvml.c")
FLAGS: Final = (
    "-O2", "-std=c11", "-Wall", "-Wextra", "-fvisibility=hidden", "-shared", "-fPIC", "-pthread",
    f"-Wl,-soname,{LIBRARY}",
)  # fmt: skip
_COMPILE_S: Final = 120.0
_COMPILERS: Final = ("cc", "gcc", "clang")
_NO_COMPILER: Final = (
    "emulated GPUs need a C compiler, and there is none on the PATH (looked for: {}); install one "
    "(Debian, Ubuntu: apt-get install gcc libc6-dev; Fedora: dnf install gcc), or name it in CC"
)


class NoStandIn(Unsupported):
    """This machine cannot have the stand-in library: no compiler, or no place to keep what it makes."""


def library_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory to put first in LD_LIBRARY_PATH: it holds the library and nothing else.

    The name of the directory is a hash of what the library is made of, so a change of the source makes another one.
    Raises NoStandIn, saying what to do.
    """
    made_of = "\0".join((SOURCE.read_text(), *FLAGS, platform.machine(), platform.libc_ver()[0]))
    directory = _cache(environment) / hashlib.sha256(made_of.encode()).hexdigest()[:16]
    if not (directory / LIBRARY).exists():
        _compile(_compiler(environment), directory)
    return directory


def no_gpus() -> str:
    """Why there can be no emulated GPUs here, in a sentence with the fix; empty where there can."""
    try:
        library_directory()
    except NoStandIn as error:
        return str(error)
    return ""


def _cache(environment: Mapping[str, str]) -> Path:
    """A directory that nobody else can write: what is in it will be loaded into processes."""
    home = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or "/nonexistent", ".cache")
    path = Path(home) / "phoenix" / "nvml"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        how = "set XDG_CACHE_HOME to a directory of yours"
        raise NoStandIn(
            f"{path}: the library for emulated GPUs cannot be kept there: {error.strerror}; {how}"
        ) from error
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NoStandIn(f"{path}: others can write here, and what it holds is loaded into processes: chmod 700 it")
    return path


def _compiler(environment: Mapping[str, str]) -> str:
    named = environment.get("CC", "").strip()
    candidates = (named,) if named else _COMPILERS
    for name in candidates:
        if found := shutil.which(name, path=environment.get("PATH")):
            return found
    raise NoStandIn(_NO_COMPILER.format(", ".join(candidates)))


def _compile(compiler: str, directory: Path) -> None:
    """Two who do so at once do no harm: each makes its own file and renames it into place."""
    directory.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as work:
        made = Path(work) / LIBRARY
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(made)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoStandIn(f"{compiler} cannot compile the library for emulated GPUs: {error}") from error
        if done.returncode != 0:
            said = "\n".join(done.stderr.strip().splitlines()[:10])
            raise NoStandIn(f"{compiler} cannot compile the library for emulated GPUs (is libc6-dev there?):\n{said}")
        made.replace(directory / LIBRARY)
