"""What stands around every page: who reads it, whether faults are halted, where one is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request

from dashboards.api import Api, Json

SECTIONS = (
    ("/", "Home"),
    ("/runs", "Runs"),
    ("/history", "History"),
    ("/heatmap", "Heatmap"),
    ("/compare", "Compare"),
    ("/regressions", "Regressions"),
    ("/peers", "Peers"),
    ("/faults", "Faults"),
    ("/schedules", "Schedules"),
    ("/machines", "Machines"),
    ("/settings", "Settings"),
)
ROLES = ("viewer", "operator", "admin")


@dataclass(frozen=True, kw_only=True)
class Frame:
    """`role` is None for a reader who has not signed in; `halt` is the one in force that began last."""

    origin: str
    section: str
    sections: Sequence[tuple[str, str]] = SECTIONS
    name: str | None = None
    role: str | None = None
    tokens: bool = False
    """Whether the service asks for tokens at all."""
    csrf: str | None = None
    halt: Json | None = None

    def may(self, role: str) -> bool:
        """Whether the reader may do what needs `role`. The service decides in the end; this only spares a refusal."""
        return self.role in ROLES and ROLES.index(self.role) >= ROLES.index(role)


async def frame_of(api: Api, request: Request) -> Frame:
    session = await api.get("session")
    halts = await api.items("halts", active="true", limit=1) if session.get("role") else []
    return Frame(
        origin=_origin(request),
        section=_section(request),
        name=session.get("name"),
        role=session.get("role"),
        tokens=bool(session.get("required")),
        csrf=session.get("csrf"),
        halt=halts[0] if halts else None,
    )


def empty_frame(request: Request) -> Frame:
    """For the page that says that the service does not answer: nothing more is asked of it."""
    return Frame(origin=_origin(request), section=_section(request))


def _origin(request: Request) -> str:
    return str(request.base_url).rstrip("/")


def _section(request: Request) -> str:
    first = request.url.path.strip("/").partition("/")[0]
    return "/runs" if first == "trials" else f"/{first}"
