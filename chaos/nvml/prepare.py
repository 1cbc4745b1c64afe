"""Gives each node emulated GPUs, then becomes the command that runs on the nodes.

    python -m chaos.nvml.prepare --nodes n0,n1 --gpus 2 --directory DIR -- phoenix run --hosts DIR/hosts.json ...

The agent of a node, and all that it starts, then loads the stand-in for NVML with the GPUs of this node, and reads the
node's kernel log in DIR. With `--hosts` the nodes are those that such a file describes (isolated ones, say).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from chaos.errors import Unsupported
from chaos.nvml.build import library_directory
from chaos.nvml.state import MOST_GPUS, Gpu, Machine, NodeGpus, environment
from chaos.nvml.xid_lines import DEFAULT_DRIVER, DRIVERS

HOSTS_FILE: Final = "hosts.json"
KERNEL_LOG_VARIABLE: Final = "PHOENIX_KERNEL_LOG"
_LOOPBACK: Final = "127.0.0.1"
_NAMESPACE: Final = uuid.UUID("5f0c0f5e-6b51-4c3b-9a53-7a3f3f6e6f01")
_FIRST_BUS, _BUSES_APART = 0x1B, 7


def machine(node: str, gpus: int, driver: str) -> Machine:
    """A node's GPUs: the same names in every trial, so that two trials can be compared."""
    made = tuple(
        Gpu(uuid=f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}", bus=_FIRST_BUS + _BUSES_APART * index)
        for index in range(gpus)
    )
    return Machine(driver=DRIVERS[driver].version, cuda=DRIVERS[driver].cuda, gpus=made)


def hosts(directory: Path, library: Path, nodes: Sequence[str], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """What `phoenix run --hosts` reads: each node's own start with the environment of its GPUs."""
    document = dict(given or {"coordinator": _LOOPBACK, "nodes": {}})
    before = document["nodes"]
    with_gpus = {}
    for node in nodes:
        own = before.get(node, {"address": _LOOPBACK, "prefix": []})
        place = directory / node
        variables = {**environment(library, place), KERNEL_LOG_VARIABLE: str(NodeGpus(place).kernel_log)}
        settings = [f"{name}={value}" for name, value in variables.items()]
        with_gpus[node] = {**own, "prefix": [*own["prefix"], "env", *settings]}
    return {**document, "nodes": {**before, **with_gpus}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit code 2 where this machine refuses, 127 where the command cannot be started; else it is the command's."""
    parser = argparse.ArgumentParser(prog="python -m chaos.nvml.prepare", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="where the GPUs' files lie; made if need be")
    parser.add_argument("--nodes", required=True, help="names, separated by commas")
    parser.add_argument("--gpus", type=int, default=1, help="of each node (default 1)")
    parser.add_argument("--driver", choices=list(DRIVERS), default=DEFAULT_DRIVER, help=f"(default {DEFAULT_DRIVER})")
    parser.add_argument("--hosts", type=Path, help="a file that describes the nodes, if they are not of this machine")
    parser.add_argument("command", nargs="+", help="what runs on them")
    options = parser.parse_args(arguments)
    if not 1 <= options.gpus <= MOST_GPUS:
        parser.error(f"--gpus {options.gpus}: a node has 1 to {MOST_GPUS}")
    nodes = options.nodes.split(",")
    directory = options.directory.absolute()
    try:
        library = library_directory()
        given = None if options.hosts is None else json.loads(options.hosts.read_text())
        for node in nodes:
            NodeGpus.create(directory / node, machine(node, options.gpus, options.driver))
        (directory / HOSTS_FILE).write_text(json.dumps(hosts(directory, library, nodes, given)))
    except Unsupported as error:
        parser.error(str(error))
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"the nodes cannot be given GPUs: {error}")
    try:
        os.execvp(options.command[0], options.command)
    except OSError as error:
        print(f"{parser.prog}: cannot start {options.command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
