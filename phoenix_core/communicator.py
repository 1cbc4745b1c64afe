"""The process-group backend `"phoenix"`: groups whose inside is replaced while their users keep them.

DDP, DeviceMesh and DTensor hold a `PhoenixGroup`; its inner group (see backends.py) is of one generation. Three states:
formed (collectives reach the peers), local (a spare builds its model: collectives are answered
at once from this rank's own data), broken (a newer generation was announced: collectives raise).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from phoenix_core import backends
from phoenix_core.backends import Inner
from phoenix_core.errors import GenerationSuperseded, PhoenixError
from phoenix_core.formation import Connection, Formation
from phoenix_core.glooidle import nothing_will_come
from phoenix_core.hooks import untraced
from phoenix_core.watermark import Watermark, stream_of_group, stream_of_message
from phoenix_core.work import MESSAGES, described, part

BACKEND: Final = "phoenix"
BURY_LIMIT_S: Final = 3.0
"""For the end of inner groups when the process ends: one that was let go never ends."""

_c10d: Any = torch._C._distributed_c10d
"""What torch's own type stubs leave out."""

_DELEGATED: Final = (
    "all_gather_single", "all_gather_single_coalesced", "all_to_all_single", "allgather", "allgather_coalesced",
    "allreduce", "allreduce_coalesced", "alltoall", "broadcast", "gather", "recv", "recv_anysource",
    "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced", "scatter", "send",
)  # fmt: skip


@dataclass(frozen=True)
class Aside:
    """What was a group's inside when its generation ended. `rest` is equal on all members only if nothing is on its way
    between any two of them; empty where it cannot be used again."""

    inner: Inner
    rest: str


class PhoenixGroup(dist.ProcessGroup):
    """One process group; see the module's docstring. Made by torch through `register_backend`."""

    def __init__(self, hub: Hub, store: Store, rank: int, ranks: Sequence[int], logical_name: str) -> None:
        """`ranks` are the members by their rank in the world, `rank` is this one's index there.

        `logical_name` is the same on every member, in every generation, and different for every group.
        """
        size = len(ranks)
        super().__init__(rank, size)  # type: ignore[call-arg]  # the stub knows only one of the overloads
        self._ranks = tuple(ranks)
        self._stream = stream_of_group(logical_name)
        hub.watermark.know(self._stream)
        self.hub = hub
        self.logical_name = logical_name
        self._group_store = store
        self._inside: tuple[int, Inner] | None = None
        self._aside: Aside | None = None
        self._usable = True
        self._breaking = threading.Lock()
        self._group_rank, self._group_size = rank, size
        self._names = {"name": "", "desc": ""}
        hub.adopt(self)

    # ---------------------------------------------------------------- states

    def keep_inner(self, generation: int, joining: Collection[int]) -> Inner | None:
        """The inside of before, if all members have come to rest in it and none of them is a rank in `joining`.

        Every member comes to the same answer. Raises GenerationSuperseded as `make_inner` does.
        """
        if not set(joining).isdisjoint(self._ranks):
            return None
        store = _c10d.PrefixStore(f"{generation}/rest/{self.logical_name}", self.hub.store_for(generation))
        store.set(str(self._group_rank), self._aside.rest if self._aside else "")
        said = {bytes(store.get(str(member))) for member in range(self._group_size)}
        return self._aside.inner if self._aside and len(said) == 1 and said != {b""} else None

    def make_inner(self, generation: int) -> Inner:
        """Build the inner group among the members of `generation`; blocks until all have come.

        Raises GenerationSuperseded where a newer generation is announced meanwhile, or a member dies.
        """
        prefix, store = f"{generation}/{self.logical_name}", self.hub.store_for(generation)
        return backends.formed(
            lambda part: _c10d.PrefixStore(f"{prefix}/{part}", store),
            self._group_rank,
            self._group_size,
            prefix,
            self.hub.address,
        )

    def install(self, inner: Inner, generation: int) -> None:
        """From now on collectives go to `inner`, the group's inside in `generation`."""
        if self._aside is not None and self._aside.inner is not inner:
            self._retire(self._aside.inner)
        self._aside, self._usable = None, True
        self._inside = (generation, inner)  # in one go: the control thread reads it

    def localise(self) -> None:
        """Answer collectives from this rank's own data until the group is formed."""
        with self._breaking:
            old, self._inside = self._inside, (-1, backends.local(self._group_rank, self._group_size))
        if old is not None and old[0] >= 0:
            count = self.hub.watermark.at_rest(self._stream) if self._usable and old[0] != self.hub.distrusted else None
            if count is None:
                old[1].break_off()  # one that began while `break_off` found the group at rest would keep the GPU busy
            self._aside = Aside(old[1], "" if count is None else f"{old[0]}:{count}")

    def break_off(self, before: int) -> None:
        """End every collective that waits in an inner group older than `before`; callable from any thread.

        A group at rest is left whole: it may serve the next generation too.
        """
        with self._breaking:
            inside = self._inside
            if inside is None or not 0 <= inside[0] < before:
                return
            if self._usable and self.hub.watermark.at_rest(self._stream) is not None:
                return
            self._usable = False
            inside[1].break_off()

    def discard_inner(self) -> None:
        """Take every inner group out, for somebody to destroy it off the critical path (40-160 ms)."""
        with self._breaking:
            inside, self._inside = self._inside, None
        aside, self._aside = self._aside, None
        for inner in [*([inside[1]] if inside else []), *([aside.inner] if aside else [])]:
            self._retire(inner)

    def _retire(self, inner: Inner) -> None:
        inner.break_off()  # what was never waited for would keep its destruction waiting
        self.hub.retire(inner)

    # ---------------------------------------------------------------- what torch calls

    def _run(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.hub.before_collective(name, self._group_size)
        inside = self._inside
        if inside is None or self.hub.superseded():
            raise GenerationSuperseded(f"{name} in group {self.logical_name} of generation {self.hub.generation}")
        if name in MESSAGES:
            self._usable = False  # nobody knows whether they have come
        stream = self._stream_of(name, args)
        work = self.hub.watermark.through(stream, lambda: inside[1].run(name, args, kwargs), described(name, args))
        if self.hub.superseded():  # since the question above: the group may have been taken for one at rest
            raise GenerationSuperseded(f"{name} in group {self.logical_name} of generation {self.hub.generation}")
        return work

    def barrier(self, opts: Any = None) -> Any:
        """A barrier is of processes, not of streams: always by the CPU's part, whatever device torch proposes."""
        opts = dist.BarrierOptions() if opts is None else opts
        opts.device, opts.device_ids = torch.device("cpu"), []
        return self._run("barrier", opts)

    def _stream_of(self, name: str, args: tuple[Any, ...]) -> str:
        """`send` and `recv` take (tensors, rank in the group, tag). A message from anybody is waited for alone."""
        if name not in MESSAGES:
            return self._stream
        this = self._ranks[self._group_rank]
        other = this if name == "recv_anysource" else self._ranks[args[1]]
        return stream_of_message(this, other) if name == "send" else stream_of_message(other, this)

    @property
    def _device_types(self) -> list[torch.device]:
        """Asked by torch where it chooses a device for objects and barriers."""
        return [torch.device(device) for device in backends.devices()]

    def getBackendName(self) -> str:
        return BACKEND

    def getRank(self) -> int:
        return self._group_rank

    def getSize(self) -> int:
        return self._group_size

    def rank(self) -> int:
        return self._group_rank

    def size(self) -> int:
        return self._group_size

    def setGroupName(self, name: str) -> None:
        self._names["name"] = name

    def getGroupName(self) -> str:
        return self._names["name"]

    def setGroupDesc(self, desc: str) -> None:
        self._names["desc"] = desc

    def getGroupDesc(self) -> str:
        return self._names["desc"]

    @property
    def group_name(self) -> str:  # type: ignore[override]  # torch's stub names a NewType that it does not export
        return self._names["name"]

    def get_group_store(self) -> Store:
        return self._group_store

    def abort(self) -> None:
        self.break_off(self.hub.generation + 1)

    def shutdown(self) -> None:
        self.discard_inner()


def _delegate(name: str) -> Any:
    def collective(self: PhoenixGroup, *args: Any, **kwargs: Any) -> Any:
        return self._run(name, *args, **kwargs)

    collective.__name__ = name
    return untraced(collective)


for _name in _DELEGATED:
    setattr(PhoenixGroup, _name, _delegate(_name))


class Hub:
    """All groups of this process and what they share: generation, watermark, and the way to break them."""

    def __init__(self, connect: Callable[[Callable[[], bool]], Store], address: str) -> None:
        """`connect` opens the rendezvous store, given the question whether the wait is still worth it."""
        self._connect = connect
        self.address = address
        self.generation, self.announced, self.distrusted = 0, 0, -1
        """Of generation `distrusted` no group is kept: a collective that ended with an error is over, thus at rest."""
        self.local = False
        self.before_collective: Callable[[str, int], None] = lambda name, size: None
        self.formation_done: Callable[[], None] = lambda: None
        self.watermark = Watermark()
        self.let_go = 0
        """Collectives of this generation whose tensors hold anything: nothing of it may be committed."""
        self._announced_at = 0.0
        self._groups: list[weakref.ref[PhoenixGroup]] = []
        self._stores: dict[int, Store] = {}
        self._retired: list[Inner] = []
        self._graves: list[threading.Thread] = []
        self._formations: list[Formation] = []

    # ---------------------------------------------------------------- groups

    def store_for(self, generation: int) -> Store:
        """The rendezvous store of a generation. Kept here: torch holds only the C++ half of it."""
        if generation not in self._stores:
            self._stores[generation] = self._connect(lambda: self.announced > generation)
        return self._stores[generation]

    def adopt(self, group: PhoenixGroup) -> None:
        """A group was created: bring it to the state of the others."""
        self._groups.append(weakref.ref(group))
        if self.local:
            group.localise()
        else:
            group.install(group.make_inner(self.generation), self.generation)

    def groups(self) -> list[PhoenixGroup]:
        """Live groups in order of creation, the same on every rank."""
        return [group for ref in self._groups if (group := ref()) is not None]

    def superseded(self) -> bool:
        return self.announced > self.generation and not self.local

    def announce(self, generation: int) -> None:
        """A newer generation exists: end what waits in the older one. Called by the control thread, again and again."""
        if generation > self.announced:
            self._announced_at = time.monotonic()
            self.announced = generation  # from here on nothing new begins
        for group in self.groups():
            group.break_off(generation)
        if self.superseded() and nothing_will_come(time.monotonic() - self._announced_at):
            for work in self.watermark.pending():
                if not work.is_completed():
                    self.let_go += 1  # first: the training thread goes on at once
                    work.let_go()

    def verify(self) -> None:
        """Return once every collective has ended that the coming change of the state rests on.

        Raises GenerationSuperseded where one of this generation was let go.
        """
        for work in () if self.local else self.watermark.pending():
            work.until_executed(self.superseded)
        if self.let_go:
            raise GenerationSuperseded(f"{self.let_go} collectives of generation {self.generation} did not end")

    def localise(self) -> None:
        """Answer all collectives from this rank's own data until `install`."""
        self.local = True
        for group in self.groups():
            group.localise()

    def form(self, generation: int, joining: Collection[int], early: Formation | None = None) -> list[Formation]:
        """Begin to build every group's inside of `generation`, in order of creation.

        Groups without a rank in `joining` stay as they are where they are at rest.
        `early`: what a spare has begun with the groups that existed when it got its rank.
        """
        self.announced = max(self.announced, generation)  # a spare may not have heard of those in between
        begun = [early] if early is not None and early.generation == generation else []
        missing = [group for group in self.groups() if not (begun and begun[0].builds(group))]
        if missing or not begun:
            begun.append(Formation(missing, generation, joining, self.formation_done))
        under_way = [formation for formation in self._formations if not formation.done.is_set()]
        for formation in self._formations:
            self._retired += formation.left_over() if formation.done.is_set() and formation not in begun else []
        self._formations = [*under_way, *(formation for formation in begun if formation not in under_way)]
        return begun

    def connect(self, formations: list[Formation]) -> list[Formation]:
        """With what makes the communicators of a GPU that the calling thread uses, once the groups are formed.

        Not before: a spare that still builds its model has no device. Every rank has one by the time it recovers, or
        none has, so that nobody waits for a member that never comes.
        """
        device, generation = backends.used_device(), formations[0].generation
        if device is None:
            return formations
        last = Connection(formations, generation, device, self.formation_done)
        self._formations.append(last)
        return [*formations, last]

    def install(self, *formations: Formation) -> None:
        """Leave the local state: collectives reach the peers again."""
        for formation in formations:
            formation.install()
            self.generation = formation.generation
        self.local = False
        self.let_go = 0
        self.watermark.reset()

    def retire(self, inner: Inner) -> None:
        self._retired.append(inner)

    def bury(self) -> None:
        """Destroy retired groups in the background: it takes 40-160 ms each."""
        dead, self._retired = self._retired, []
        for old in [generation for generation in self._stores if generation < self.generation]:
            del self._stores[old]
        self._graves = [grave for grave in self._graves if grave.is_alive()]
        while dead:
            self._graves.append(threading.Thread(target=_end, args=([dead.pop()],), name="phoenix-bury", daemon=True))
            self._graves[-1].start()

    def close(self) -> None:
        """Destroy every inner group now: gloo aborts a process that exits with one left in a reference cycle."""
        self.watermark.reset()
        for group in self.groups():
            group.discard_inner()
        self.bury()
        deadline = time.monotonic() + BURY_LIMIT_S
        for grave in self._graves:
            grave.join(max(0.0, deadline - time.monotonic()))
        part(0.5)
        for formation in self._formations:
            formation.end()
        self._formations.clear()
        self._stores.clear()


def _end(coffin: list[Inner]) -> None:
    """The last reference goes here, in a thread: the destructor of a broken group takes its time."""
    coffin.pop().end()


_hub: Hub | None = None


def install(hub: Hub) -> None:
    """Make `hub` the one that `init_process_group("phoenix")` and `new_group` use in this process."""
    global _hub
    _hub = hub
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=list(backends.devices()))


def _create(options: Any, _backend_options: Any) -> PhoenixGroup:
    """torch names a group by the order of creation on all ranks, or by its members: a spare finds the same names."""
    if _hub is None:
        raise PhoenixError("the backend phoenix works inside `with phoenix.session()` only")
    members = "-".join(map(str, options.global_ranks_in_group))
    name = f"{options.group_id}:{members}"
    ranks = options.global_ranks_in_group or range(options.group_size)  # torch lists none for the world
    return PhoenixGroup(_hub, options.store, options.group_rank, ranks, name)
