"""What one GPU can show of the runtime, in parts that each check something and measure something.

Every part takes a `Place`, so that its logic runs on a CPU too, where its numbers mean nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.nn import functional as F

from benchmarks.gpu_fault import OWN, WAYS, Way
from benchmarks.stats import Spread, paired_ratio
from benchmarks.workloads.model import GPT, VOCABULARY, Shape
from phoenix_core import rng
from phoenix_core.communicator import BACKEND, Hub, install
from phoenix_core.copier import copier_for
from phoenix_core.kept import checksum
from phoenix_core.packing import content_of, fill, flat_bytes
from phoenix_core.snapshot import Protected

PASS: Final = "PASS"
FAIL: Final = "FAIL"
ABSENT: Final = "ABSENT"
GIGA: Final = 1e9
CHILD_LIMIT_S: Final = 90.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the parts run and how large they are."""

    device: torch.device
    shape: Shape
    batch: int
    pairs: int
    block_steps: int

    @staticmethod
    def of(device: str, *, tiny: bool) -> Place:
        where = torch.device(device)
        if tiny:
            small = Shape(layers=2, heads=2, width=64, block=16)
            return Place(device=where, shape=small, batch=2, pairs=2, block_steps=2)
        # 20 x 12 x 2048² and the embeddings: 1.01 billion parameters.
        large = Shape(layers=20, heads=16, width=2048, block=1024)
        return Place(device=where, shape=large, batch=8, pairs=12, block_steps=5)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`reason` says why a verdict is not PASS; `measured` are numbers with their units in their names."""

    part: str
    verdict: str
    reason: str = ""
    measured: dict[str, Any] = field(default_factory=dict)


class Training:
    """A GPT in bf16 with AdamW, whose next step depends on its weights, its optimizer and the device's generator."""

    def __init__(self, place: Place, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.place = place
        with place.device:
            self.model = GPT(place.shape).to(torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=place.device.type == "cuda")
        self.protected = Protected()
        self.protected.add({"model": self.model, "optimizer": self.optimizer})

    def gradients(self) -> float:
        shape = (self.place.batch, self.place.shape.block)
        tokens = torch.randint(VOCABULARY, shape, device=self.place.device)
        loss = F.cross_entropy(self.model(tokens).float().view(-1, VOCABULARY), tokens.flatten())
        loss.backward()
        return loss.item()

    def change(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> float:
        loss = self.gradients()
        self.change()
        return loss

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for _, tensor in self.protected.tensors() if tensor.numel()]

    def state(self) -> bytes:
        return b"".join(content_of(tensor) for tensor in self.tensors())


class Snapshots:
    """The copying of a whole state beside the step, as the runtime does it, into one slot."""

    def __init__(self, training: Training) -> None:
        self._parts = [flat_bytes(tensor) for tensor in training.tensors()]
        self._copier = copier_for(self._parts)
        self.size = sum(part.numel() for part in self._parts)
        room: Any = numpy.empty(self.size, dtype=numpy.uint8)
        self._room = memoryview(room)
        self._copier.pin(self._room)
        self.copy_s: list[float] = []
        self._thread: Any = None

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._copy, args=(self._copier.mark(),))
        self._thread.start()

    def _copy(self, mark: object) -> None:
        began = time.monotonic()
        self._copier.copy(self._parts, torch.frombuffer(self._room, dtype=torch.uint8), mark)
        self.copy_s.append(time.monotonic() - began)

    def wait(self) -> float:
        """Seconds for which the training thread stood still."""
        began = time.monotonic()
        self._thread.join()
        return time.monotonic() - began

    def content(self) -> memoryview:
        return self._room


def overlap(place: Place) -> Outcome:
    """A snapshot of the whole state beside every step: is it the state before the step, and what does it cost?"""
    training = Training(place)
    training.step()  # the optimizer's state exists from here on
    snapshots = Snapshots(training)
    before = training.state()
    snapshots.begin()
    training.gradients()
    snapshots.wait()
    training.change()
    if bytes(snapshots.content()) != before:
        return Outcome(part="overlap", verdict=FAIL, reason="the snapshot is not the state before the step")
    del before
    blocks: dict[bool, list[float]] = {True: [], False: []}
    stalls: list[float] = []
    for pair in range(place.pairs):
        for protected in (pair % 2 == 0, pair % 2 == 1):
            place.synchronize()
            began = time.monotonic()
            for _ in range(place.block_steps):
                if protected:
                    snapshots.begin()
                training.gradients()
                if protected:
                    stalls.append(snapshots.wait())
                training.change()
            place.synchronize()
            blocks[protected].append((time.monotonic() - began) / place.block_steps)
    ratio = paired_ratio(blocks[True], blocks[False])
    measured = {
        "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
        "snapshot_bytes": snapshots.size,
        "step_ratio": ratio.__dict__,
        "step_s": {"with": blocks[True], "without": blocks[False]},
        "stall_s": Spread(values=tuple(stalls)).median,
        "copy_gb_per_s": snapshots.size / Spread(values=tuple(snapshots.copy_s)).median / GIGA,
        "checksum_gb_per_s": snapshots.size / _timed(lambda: checksum(snapshots.content())) / GIGA,
    }
    return Outcome(part="overlap", verdict=PASS, measured=measured)


def restore(place: Place) -> Outcome:
    """Back to a snapshot: do the steps after it come again in every bit, and how fast does the state come back?"""
    training = Training(place)
    training.step()
    snapshots, random = Snapshots(training), rng.capture()
    snapshots.begin()
    snapshots.wait()
    first = [training.step() for _ in range(2)], training.protected.digests()

    def back() -> None:
        fill(training.tensors(), snapshots.content())
        place.synchronize()

    seconds = _timed(back)
    rng.restore(random)
    again = [training.step() for _ in range(2)], training.protected.digests()
    same = first == again
    reason = "" if same else f"losses {first[0]} came again as {again[0]}"
    measured = {"bytes": snapshots.size, "restore_gb_per_s": snapshots.size / seconds / GIGA}
    return Outcome(part="restore", verdict=PASS if same else FAIL, reason=reason, measured=measured)


def generators(place: Place) -> Outcome:
    """The random generator of the device is part of a rank's state."""
    torch.rand(3, device=place.device)
    state = rng.capture()
    drawn = torch.rand(1000, device=place.device)
    rng.restore(state)
    same = torch.equal(drawn, torch.rand(1000, device=place.device))
    return Outcome(part="generators", verdict=PASS if same else FAIL, reason="" if same else "other numbers were drawn")


def replacement(place: Place, rounds: int = 5) -> Outcome:
    """A group whose inside is replaced while its users keep it: a world of one, since NCCL refuses two on one GPU."""
    hub = Hub(lambda superseded: HashStore(), "127.0.0.1")
    install(hub)
    hub.generation = hub.announced = 1
    dist.init_process_group(BACKEND, store=PrefixStore("init", HashStore()), rank=0, world_size=1)
    wrong: list[str] = []
    seconds: dict[str, list[float]] = {"break_off": [], "form": [], "first_collective": []}
    try:
        _all_reduce(place, hub)
        for generation in range(2, rounds + 2):
            for name, took, problem in _replaced(place, hub, generation):
                seconds[name].append(took)
                wrong += [problem] if problem else []
    finally:
        dist.destroy_process_group()
        hub.close()
    measured = {f"{name}_s": Spread(values=tuple(values)).median for name, values in seconds.items()}
    return Outcome(part="replacement", verdict=FAIL if wrong else PASS, reason="; ".join(wrong), measured=measured)


def _replaced(place: Place, hub: Hub, generation: int) -> Iterator[tuple[str, float, str]]:
    """The steps of a recovery that concern groups: what each took, and what was wrong with it."""

    def leave() -> None:
        hub.announce(generation)
        hub.localise()
        place.synchronize()

    def form() -> None:
        formations = hub.connect(hub.form(generation, joining=(0,)))
        for formation in formations:
            formation.done.wait()
        hub.install(*formations)
        hub.bury()

    yield "break_off", _timed(leave), ""
    yield "form", _timed(form), ""
    began = time.monotonic()
    problem = _all_reduce(place, hub)
    yield "first_collective", time.monotonic() - began, problem


def _all_reduce(place: Place, hub: Hub) -> str:
    tensor = torch.full((1 << 16,), 2.0, device=place.device)
    dist.all_reduce(tensor)
    hub.verify()
    return "" if bool((tensor == 2).all()) else f"an all-reduce in generation {hub.generation} gave other values"


def device_error(place: Place) -> Outcome:
    """Errors in processes of their own: are they told from the script's, and does the GPU outlive them?"""
    kind, began = place.device.type, time.monotonic()
    # An error ends the context, so on a GPU each has a process; where they are only raised one does for all.
    groups = [[name] for name in WAYS] if kind == "cuda" else [list(WAYS)]
    measured: dict[str, Any] = {}
    for names in groups:
        command = [sys.executable, "-m", "benchmarks.gpu_fault", kind, *names]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            reason = f"{names[0]}: the process did not end in {CHILD_LIMIT_S:.0f} s"
            return Outcome(part="device_error", verdict=FAIL, reason=reason, measured=measured)
        measured |= {said.pop("way"): said for said in map(json.loads, _lines(done.stdout))}
        if silent := [name for name in names if name not in measured]:
            reason = f"{silent[0]}: it said nothing: {done.stderr[-500:]}"
            return Outcome(part="device_error", verdict=FAIL, reason=reason, measured=measured)
    wrong = [f"{name} was classified as {said}" for name, said in measured.items() if not _right(WAYS[name], said)]
    if bool(torch.ones(4, device=place.device).sum() != 4):
        wrong.append("the GPU cannot be used afterwards")
    measured["seconds"] = time.monotonic() - began
    return Outcome(part="device_error", verdict=FAIL if wrong else PASS, reason="; ".join(wrong), measured=measured)


def _lines(output: str) -> list[str]:
    """What is ours of it; a device may print words of its own."""
    return [line for line in output.splitlines() if line.startswith("{")]


def _right(way: Way, said: dict[str, Any]) -> bool:
    expected = (None, OWN) if way.own else (way.code, "respawn")
    return (said["code"], said["action"]) == expected


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


PARTS: Final = (generators, replacement, restore, overlap, device_error)
