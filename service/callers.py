"""Who calls, and what a caller may do. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Each may do what those before it may. viewer: look; operator: run, break, halt; admin: tokens and settings."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, kw_only=True)
class Caller:
    """`name` is what the audit log says. `session`: by cookie, so that a change needs the CSRF value as well."""

    name: str
    role: Role
    session: bool = False


# Whoever reaches a service without tokens is on this machine already.
LOCAL = Caller(name="local", role=Role.ADMIN)
# What the service does by itself.
SERVICE = Caller(name="service", role=Role.ADMIN)
