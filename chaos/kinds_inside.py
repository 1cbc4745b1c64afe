"""The kinds of fault that a process makes in itself, by its agent (`chaos.agent`). Pure values."""

from __future__ import annotations

from typing import Final

from chaos.faultkind import FaultKind, Fidelity, Json, Scope, params, ttl_s

_RANKS: Final = ("rank", "random_rank")


def _flag(title: str, default: bool) -> Json:
    return {"type": "boolean", "default": default, "title": title}


PROCESS_EXCEPTION: Final = FaultKind(
    kind="process_exception",
    title="Exception in the training",
    description="The training code of a rank raises an error, as a call of torch would: its text decides what it is.",
    lasting=False,
    fidelity=Fidelity.EMULATED,
    scope=Scope.TRAINING,
    targets=_RANKS,
    params_schema=params(
        error={"type": "string", "default": "RuntimeError", "pattern": r"^[A-Za-z_][\w.]*$", "title": "Class"},
        text={"type": "string", "default": "injected by chaos", "maxLength": 2000, "title": "Text"},
        code={"type": "integer", "minimum": 0, "title": "Its error_code, as torch.AcceleratorError has"},
        place={
            "enum": ["next", "forward", "backward", "optimizer", "now"],
            "default": "next",
            "title": "Place",
            "description": "next: whichever of the three comes first; now: at the next line of the training's code.",
        },
    ),
)
PROCESS_SEGFAULT: Final = FaultKind(
    kind="process_segfault",
    title="Segmentation fault",
    description="The process writes to address 0 and ends by SIGSEGV.",
    lasting=False,
    fidelity=Fidelity.REAL,
    params_schema=params(),
)
PROCESS_ABORT: Final = FaultKind(
    kind="process_abort",
    title="Abort",
    description="The process calls abort(), as a failed assertion in C++ does, and ends by SIGABRT.",
    lasting=False,
    fidelity=Fidelity.REAL,
    params_schema=params(),
)
GIL_HOLD: Final = FaultKind(
    kind="gil_hold",
    title="Hold the GIL",
    description="A thread of the process stays in C code with the GIL: no other runs, heartbeats included.",
    lasting=True,
    fidelity=Fidelity.REAL,
    params_schema=params(
        busy=_flag("It computes meanwhile (else it sleeps)", default=True),
        ttl_s=ttl_s("Seconds until it is given up"),
    ),
)
NATIVE_HANG: Final = FaultKind(
    kind="native_hang",
    title="Hang in native code",
    description="The training thread stays in C code, where no signal handler and no exception reaches it.",
    lasting=True,
    fidelity=Fidelity.REAL,
    scope=Scope.TRAINING,
    targets=_RANKS,
    params_schema=params(
        gil=_flag("It keeps the GIL, so that heartbeats end as well", default=False),
        ttl_s=ttl_s("Seconds until it goes on"),
    ),
)
STRAGGLE: Final = FaultKind(
    kind="straggle",
    title="Straggler",
    description="Each step of a rank takes longer, in its backward pass; all others wait for it in the reduction.",
    lasting=True,
    fidelity=Fidelity.EMULATED,
    scope=Scope.TRAINING,
    targets=_RANKS,
    params_schema=params(
        delay_s={"type": "number", "minimum": 0.001, "maximum": 600, "default": 0.2, "title": "Seconds, each step"},
        gil=_flag("It keeps the GIL meanwhile", default=False),
        ttl_s=ttl_s("Seconds until it is as quick as before"),
    ),
)
ACTS: Final = (
    (PROCESS_EXCEPTION, "raise"),
    (PROCESS_SEGFAULT, "segfault"),
    (PROCESS_ABORT, "abort"),
    (GIL_HOLD, "hold_gil"),
    (NATIVE_HANG, "hang"),
    (STRAGGLE, "straggle"),
)
"""Each kind with the act of the agent that makes it."""
