"""PHOENIX beside other runtimes, as a benchmark has published it."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service import published
from service.published import PeersShape
from service.routes.common import PROBLEMS

router = APIRouter(tags=["peers"], responses=PROBLEMS)


@router.get("/peers")
def show_peers() -> PeersShape:
    """Recovery, overhead and cost of each runtime in each setting."""
    return published.peers()


@router.get("/peers/plot", response_class=Response, responses={200: {"content": {"image/svg+xml": {}}}})
def show_peers_plot() -> Response:
    """Every recovery as a dot over seconds: a picture (SVG)."""
    return Response(published.peers_plot(), media_type="image/svg+xml")
