"""The list of contenders, with every timeout that was chosen for them and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.peers.contenders import Contender, disk, injob, inprocess, phoenix, plain, torchft

DOCUMENTED, TUNED, DEFAULT = "as documented", "tuned", "default"
WHOLE_NODES: Final = ("node", "partition")
KINDS: Final = ("kill", "hang", *WHOLE_NODES)
EVERY: Final = 10
"""Steps between two checkpoints of those that restore from disk, where nothing else is said."""

_SAME: Final = "as tuned: no timeout plays a part"
_BY_LOST_STEPS: Final = "as async every 10, but for the lost steps"
_SPLIT: Final = "there is nothing that replaces the group: the others go on without it"
_STOPPED: Final = "nobody ends the stopped process: the others go on without it"

PLAIN: Final = Contender(
    key="plain", title="plain DDP", setting=DEFAULT, note="what overhead and cost are counted against", start=plain
)


def _disk(mode: str, every: int, setting: str) -> Contender:
    tuned = setting == TUNED
    main = (mode, every) == ("async", EVERY)
    settings: dict[str, Any] = {"asynchronous": mode == "async", "every": every}
    cannot: dict[str, str] = {}
    if not tuned:
        cannot = {"overhead": _SAME, "cost": _SAME}
    elif not main:
        cannot = dict.fromkeys(("hang", "node", "partition"), _BY_LOST_STEPS)
    return Contender(
        key=f"torchrun-{mode}-{every}/{'tuned' if tuned else 'documented'}",
        title=f"torchrun + DCP, {mode} every {'step' if every == 1 else f'{every} steps'}",
        setting=setting,
        note="gloo 3 s; the 30 s between SIGTERM and SIGKILL of a failed round cannot be set"
        if tuned
        else "gloo 30 min (its own), 30 s between SIGTERM and SIGKILL",
        start=disk,
        settings={**settings, "gloo_s": 3} if tuned else settings,
        standby=1,
        cannot=cannot,
        patience_s=dict.fromkeys(("hang", *WHOLE_NODES), 90.0) if tuned else {},
        single=frozenset({"node", "partition"}),
    )


def _torchft(spares: int, setting: str) -> Contender:
    tuned = setting == TUNED
    alone = {} if spares else {"node": _SPLIT, "partition": _SPLIT, "hang": _STOPPED}
    documented = {"--quorum_tick_ms": "100", "--join_timeout_ms": "10000"}
    return Contender(
        key=f"torchft{'-spare' if spares else ''}/{'tuned' if tuned else 'documented'}",
        title="torchft" + (", a spare group that computes" if spares else ""),
        setting=setting,
        note="as its example, but gloo 2 s, join 2 s, tick 20 ms, heartbeat 1 s"
        if tuned
        else "its train_ddp.py and README: gloo 5 s, manager 10 s, join 10 s, tick 100 ms, heartbeat 5 s",
        start=torchft,
        environment="torchft",
        settings={"gloo_s": 2 if tuned else 5, "manager_s": 10},
        flags={"--quorum_tick_ms": "20", "--join_timeout_ms": "2000", "--heartbeat_timeout_ms": "1000"}
        if tuned
        else documented,
        spares=spares,
        cannot={} if tuned else {"overhead": _SAME, "cost": _SAME},
        alone=alone,
        single=frozenset({"hang", "node", "partition"}),
    )


_QUICK: Final[Mapping[str, float]] = {
    "monitor_thread_interval": 0.1,
    "monitor_process_interval": 0.1,
    "heartbeat_interval": 0.1,
    "progress_watchdog_interval": 0.1,
    "soft_timeout": 2.0,
    "hard_timeout": 3.0,
    "heartbeat_timeout": 2.0,
    "last_call_wait": 0.1,
    "termination_grace_time": 0.0,
}


def _inprocess(setting: str) -> Contender:
    tuned = setting == TUNED
    return Contender(
        key=f"nvrx-inprocess/{'tuned' if tuned else 'documented'}",
        title="NVRx in-process restart, 1 reserve rank",
        setting=setting,
        note="every interval 0.1 s, soft 2 s, hard 3 s, heartbeat 2 s, gloo 2 s"
        if tuned
        else "the wrapper's defaults, gloo 10 s as in its example",
        start=inprocess,
        environment="nvrx",
        settings={"every": EVERY, "gloo_s": 2, "wrapper": _QUICK} if tuned else {"every": EVERY, "gloo_s": 10},
        spares=1,
        cannot={} if tuned else {"overhead": _SAME, "cost": _SAME},
        single=frozenset(KINDS),  # the reserve is used up
        patience_s={} if tuned else {"hang": 150, "node": 60, "partition": 150},
    )


def _injob(setting: str) -> Contender:
    tuned = setting == TUNED
    flags = {
        "--ft-workload-check-interval": "0.2",
        "--ft-rank-heartbeat-timeout": "2",
        "--ft-initial-rank-heartbeat-timeout": "60",
        "--workers-stop-timeout": "1",
    }
    return Contender(
        key=f"nvrx-injob/{'tuned' if tuned else 'documented'}",
        title="NVRx in-job restart (ft_launcher)",
        setting=setting,
        note="heartbeat timeout 2 s, check every 0.2 s, 1 s of grace, gloo 3 s"
        if tuned
        else "timeouts learned from heartbeats, check every 5 s, grace 30 s, gloo 30 min",
        start=injob,
        environment="nvrx",
        settings={"every": EVERY, "learn": False, "gloo_s": 3} if tuned else {"every": EVERY, "learn": True},
        flags=flags if tuned else {"--ft-safety-factor": "5"},  # it wants one setting at least; this is its default
        standby=1,
        cannot={} if tuned else {"overhead": _SAME, "cost": _SAME},
        single=frozenset({"node", "partition"}),
        patience_s={} if tuned else {"hang": 90},
    )


CONTENDERS: Final[tuple[Contender, ...]] = (
    Contender(
        key="phoenix/default",
        title="PHOENIX, 1 spare",
        setting=DEFAULT,
        note="nothing was tuned",
        start=phoenix,
        spares=1,
        single=frozenset({"node", "partition"}),
    ),
    _disk("async", EVERY, DOCUMENTED),
    _disk("async", EVERY, TUNED),
    _disk("sync", EVERY, TUNED),
    _disk("async", 1, TUNED),
    _disk("sync", 1, TUNED),
    _torchft(0, DOCUMENTED),
    _torchft(0, TUNED),
    _torchft(1, DOCUMENTED),
    _torchft(1, TUNED),
    _inprocess(DOCUMENTED),
    _inprocess(TUNED),
    _injob(DOCUMENTED),
    _injob(TUNED),
)
