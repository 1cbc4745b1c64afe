"""What the layers above read trials with: events go up through here, so that none of them imports the runtime."""

from __future__ import annotations

from phoenix_core.events import Event, EventTail
from phoenix_core.timeline import Phase, Recovery, recoveries

__all__ = ["Event", "EventTail", "Phase", "Recovery", "recoveries"]
