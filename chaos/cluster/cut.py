"""Packet drops in one network namespace: an nftables table that belongs to a netlink socket of this process.

The kernel deletes a table with the owner flag when its socket is closed, also by the death of the process. So no cut
outlives whoever made it, be it killed with SIGKILL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyroute2.nftables.expressions import ipv4addr, verdict
from pyroute2.nftables.main import NFTables

from chaos.cluster import namespaces

_OWNED: Final = 0x2
_IPV4: Final = 2
_DROP, _ACCEPT = 0, 1
_CHAIN: Final = "arriving"


class Cut:
    """What arrives in the namespace from one of `sources` is dropped, until `close` or the end of this process.

    Raises OSError where the kernel refuses; nothing is dropped then.
    """

    def __init__(self, name: str, namespace: int, sources: Sequence[str]) -> None:
        with namespaces.inside(namespace):
            self._nft = NFTables(nfgen_family=_IPV4)
        try:
            self._nft.table("add", kwarg={"name": name, "flags": _OWNED})
            self._nft.chain("add", table=name, name=_CHAIN, hook="input", type="filter", policy=_ACCEPT)
            for source in sources:
                expressions = (ipv4addr(src=source), verdict(code=_DROP))
                self._nft.rule("add", table=name, chain=_CHAIN, expressions=expressions)
        except Exception as error:
            self.close()
            raise OSError(getattr(error, "code", 0), f"nftables refuses: {error}") from error

    def close(self) -> None:
        self._nft.close()
