"""What a rank says, and does, when its training code raised what no recovery heals in this process."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from phoenix_core.advice import shortened
from phoenix_core.backends import is_broken_collective
from phoenix_core.device_errors import of_exception
from phoenix_core.errors import GenerationSuperseded


def say(error: BaseException, emit: Callable[..., None], tell: Callable[..., None], *, leaving: bool) -> None:
    """Write the event and tell the coordinator. With `leaving` this does not return if the device failed.

    The process then ends without its destructors, which would wait for a device that may never answer. The traceback
    goes first: the answer to the report is a SIGKILL.
    """
    kind, fields = last_words(error)
    leaving = leaving and kind == "device_failed"
    if leaving:
        traceback.print_exception(error)
        sys.stderr.flush()
    emit(kind, **fields)
    tell(kind, **fields)
    if leaving:
        os._exit(1)


def last_words(error: BaseException) -> tuple[str, dict[str, object]]:
    """The kind of the event, and of the message to the coordinator, and their fields."""
    text = shortened(": ".join(part for part in (type(error).__name__, str(error)) if part))
    if (device := of_exception(error)) is not None:
        facts = {"code": device.code, "xids": list(device.xids), "action": str(device.action)}
        return "device_failed", {"error": text.partition("\n")[0], **facts}
    if isinstance(error, GenerationSuperseded) or is_broken_collective(error):
        text += " (a failure elsewhere broke a collective outside of `with step`; only those inside are healed)"
    return "script_failed", {"error": text}
