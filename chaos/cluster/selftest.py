"""Does to two isolated nodes all that can be done to a network; prints as JSON what was refused, and why.

    {"isolation": "", "network_partition": "", "network_delay": "this kernel has no sch_netem: ...", ...}

All of it ends with this process.
"""

from __future__ import annotations

import json
import sys
from typing import NoReturn

from chaos.cluster.build import build
from chaos.cluster.holds import Hold, Partition, Refused
from chaos.cluster.layout import Plane
from chaos.cluster.measure import connected
from chaos.cluster.probe import Prober
from chaos.cluster.refusal import why_refused
from chaos.cluster.resets import Reset
from chaos.cluster.shapes import blocks
from chaos.cluster.slow import SlowLink


def main() -> None:
    try:
        network = build(["n0", "n1"])
    except OSError as error:
        _end(isolation=why_refused(error))
    prober = Prober(network)
    nodes, data = network.nodes, [Plane.DATA]
    with connected(network, Plane.DATA, "n0", "n1"):
        _end(
            network_partition=_trouble(
                Partition(network, prober, blocks("isolate", tuple(Plane), nodes, "n1"), name="selftest")
            ),
            network_rate=_trouble(SlowLink(network, "n1", data, "network_rate", {"mbit_s": 10})),
            network_delay=_trouble(SlowLink(network, "n1", data, "network_delay", {"delay_s": 0.01})),
            network_loss=_trouble(SlowLink(network, "n1", data, "network_loss", {"percent": 50})),
            network_reset=_trouble(Reset(network, "n1", data)),
        )


def _trouble(hold: Hold) -> str:
    """Why it cannot be done here; empty where it was done, seen, and seen to be over."""
    try:
        hold.begin(())
    except Refused as error:
        return f"not possible here: {error}"
    seen = hold.end(())
    return "" if seen["healed"] else f"it was applied, but is not gone: {seen['proof']}"


def _end(**troubles: str) -> NoReturn:
    print(json.dumps(troubles))
    sys.exit(0)


if __name__ == "__main__":
    main()
