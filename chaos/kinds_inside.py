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
    quiet=True,
    targets=_RANKS,
    params_schema=params(
        delay_s={"type": "number", "minimum": 0.001, "maximum": 600, "default": 0.2, "title": "Seconds, each step"},
        gil=_flag("It keeps the GIL meanwhile", default=False),
        ttl_s=ttl_s("Seconds until it is as quick as before"),
    ),
)
_NTH: Final[Json] = {
    "type": "integer",
    "minimum": 1,
    "maximum": 1_000_000,
    "default": 1,
    "title": "Which one, counted from the trigger on",
}
_BIT: Final[Json] = {"type": "integer", "minimum": 0, "maximum": 63, "title": "Bit (else drawn from the seed)"}
COLLECTIVE_HANG: Final = FaultKind(
    kind="collective_hang",
    title="Hang before a collective",
    description="A rank comes to its n-th collective and does not enter it: all others wait there.",
    lasting=True,
    fidelity=Fidelity.EMULATED,
    scope=Scope.TRAINING,
    targets=_RANKS,
    params_schema=params(nth=_NTH, ttl_s=ttl_s("Seconds until it enters")),
)
COLLECTIVE_SKIP: Final = FaultKind(
    kind="collective_skip",
    title="Skip a collective",
    description="A rank takes its n-th collective for done without taking part, as after an error that it swallowed.",
    lasting=False,
    fidelity=Fidelity.EMULATED,
    scope=Scope.TRAINING,
    targets=_RANKS,
    params_schema=params(nth=_NTH),
)
COLLECTIVE_FAIL: Final = FaultKind(
    kind="collective_fail",
    title="Fail a collective",
    description="The n-th collective of a rank raises the error of a broken connection; the others wait in it.",
    lasting=False,
    fidelity=Fidelity.EMULATED,
    scope=Scope.TRAINING,
    targets=_RANKS,
    params_schema=params(
        nth=_NTH,
        error={"type": "string", "default": "RuntimeError", "pattern": r"^[A-Za-z_][\w.]*$", "title": "Class"},
        text={
            "type": "string",
            "default": "[gloo/transport/tcp/pair.cc] Connection closed by peer (injected by chaos)",
            "maxLength": 2000,
            "title": "Text",
        },
    ),
)
GRADIENT_BITFLIP: Final = FaultKind(
    kind="gradient_bitflip",
    title="Bit flip in a gradient",
    description="One bit of one element, after the reduction: this rank's parameters leave those of the others.",
    lasting=False,
    fidelity=Fidelity.REAL,
    scope=Scope.TRAINING,
    targets=_RANKS,
    params_schema=params(bit=_BIT),
)
PARAMETER_BITFLIP: Final = FaultKind(
    kind="parameter_bitflip",
    title="Bit flip in a parameter",
    description="One bit of one element of a rank's parameters, before an optimizer step.",
    lasting=False,
    fidelity=Fidelity.REAL,
    scope=Scope.TRAINING,
    targets=_RANKS,
    params_schema=params(bit=_BIT),
)
GRADIENT_NAN: Final = FaultKind(
    kind="gradient_nan",
    title="NaN in a gradient",
    description="One element of a rank's reduced gradient becomes NaN.",
    lasting=False,
    fidelity=Fidelity.REAL,
    scope=Scope.TRAINING,
    targets=_RANKS,
    params_schema=params(),
)
SNAPSHOT_BITFLIP: Final = FaultKind(
    kind="snapshot_bitflip",
    title="Bit flip in a snapshot",
    description="One bit of the newest state that the target keeps for each other rank: it shows when one is needed.",
    lasting=False,
    fidelity=Fidelity.REAL,
    scope=Scope.TRAINING,
    quiet=True,
    targets=_RANKS,
    params_schema=params(of_rank={"type": "integer", "minimum": 0, "title": "Whose (else everybody's)"}),
)
DISK_SLOW: Final = FaultKind(
    kind="disk_slow",
    title="Slow disk",
    description="Each file that a rank opens, renames or removes among the checkpoints takes longer.",
    lasting=True,
    fidelity=Fidelity.EMULATED,
    scope=Scope.STORAGE,
    quiet=True,
    targets=_RANKS,
    params_schema=params(
        delay_s={"type": "number", "minimum": 0.001, "maximum": 600, "default": 0.5, "title": "Seconds, each time"},
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
    (COLLECTIVE_HANG, "strike_collective"),
    (COLLECTIVE_SKIP, "strike_collective"),
    (COLLECTIVE_FAIL, "strike_collective"),
    (GRADIENT_BITFLIP, "flip_gradient"),
    (PARAMETER_BITFLIP, "flip_parameter"),
    (GRADIENT_NAN, "nan_gradient"),
    (SNAPSHOT_BITFLIP, "flip_snapshot"),
    (DISK_SLOW, "slow_files"),
)
"""Each kind with the act of the agent that makes it."""
