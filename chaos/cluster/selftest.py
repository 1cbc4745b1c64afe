"""Builds two isolated nodes, parts them and heals them; prints as JSON what was refused and why.

    {"isolation": "", "network_partition": ""}

All of it ends with this process.
"""

from __future__ import annotations

import json
import sys
from typing import NoReturn

from chaos.cluster.refusal import why_refused


def main() -> None:
    try:
        from chaos.cluster.build import build
        from chaos.cluster.holds import Partition, Refused
        from chaos.cluster.layout import Plane
        from chaos.cluster.probe import Prober
        from chaos.cluster.shapes import blocks
    except ImportError as error:
        _end(isolation=f"isolated nodes need the package {error.name}: pip install {error.name}")
    try:
        network = build(["n0", "n1"])
    except OSError as error:
        _end(isolation=why_refused(error))
    partition = Partition(
        network, Prober(network), blocks("isolate", tuple(Plane), network.nodes, "n1"), name="selftest"
    )
    try:
        partition.begin(frozenset())
    except Refused as error:
        _end(network_partition=f"packets cannot be dropped here: {error}; as root: modprobe nf_tables")
    seen = partition.end(frozenset())
    _end(network_partition="" if seen["healed"] else f"packets were dropped, but not healed: {seen['proof']}")


def _end(**troubles: str) -> NoReturn:
    print(json.dumps(troubles))
    sys.exit(0)


if __name__ == "__main__":
    main()
