"""What an agent remembers of its workers, to tell a coordinator that was started anew: pure, without socket or clock.

Whatever goes through the agent, up or down, is noted here first, so that nothing is lost with a coordinator that died
before it had read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from phoenix_core.protocol import Progress

Message = Mapping[str, Any]


@dataclass(kw_only=True)
class Account:
    """All that one agent knows of one of its workers; generations are 0 where there was none.

    `called`, `told`: the first and the newest world that the worker was told, so it has a rank. `announced`: that, or a
    later alert. `resumed`, `restored`, `finished`: the newest generation that it was told to resume, has said to be
    restored in, has finished in; `broken`: the newest in which a collective of it broke. `suspected` is (cause,
    detail). `local_rank` says which GPU it uses, from the first world on; `fenced`: it was to be killed. `code` is None
    while the process lives. `device_error` and `progress` are as the worker sent them.
    """

    worker: str
    address: tuple[str, int] | None = None
    called: int = 0
    told: int = 0
    announced: int = 0
    resumed: int = 0
    restored: int = 0
    finished: int = 0
    broken: int = 0
    local_rank: int | None = None
    fenced: bool = False
    checkpointed: int = 0
    released: bool = False
    error: str = ""
    suspected: tuple[str, str] | None = None
    device_error: dict[str, Any] | None = None
    code: int | None = None
    progress: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Account:
        pairs = {name: tuple(data[name]) if data[name] else None for name in ("address", "suspected")}
        return Account(**{**data, **pairs})


class Witness:
    """The accounts of one node's workers."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}

    def accounts(self) -> list[dict[str, Any]]:
        """As they are sent to a coordinator with the agent's hello."""
        return [dict(account.__dict__) for account in self._accounts.values()]

    def local_ranks(self) -> dict[str, int]:
        """Of the workers that live and have a rank, or had one."""
        living = [account for account in self._accounts.values() if account.code is None]
        return {account.worker: account.local_rank for account in living if account.local_rank is not None}

    def _free(self) -> int:
        """The lowest local rank that no living worker has: a script takes it for the number of its GPU.

        At the start, ranks of a node in order; later, that of the one whose place on this node is taken.
        """
        living = [account for account in self._accounts.values() if account.code is None and not account.fenced]
        taken = {account.local_rank for account in living}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def ordered(self, message: Message) -> None:
        """A command of the coordinator, before it is carried out."""
        op = message["op"]
        if op == "spawn":
            self._accounts[message["worker"]] = Account(worker=message["worker"])
        for account in self._of((message["worker"],)) if op == "kill" else ():
            account.fenced = True
        if op == "world":
            # The dead have been replaced: a world that a dead worker is still in, is given up for that anyway.
            self._accounts = {worker: account for worker, account in self._accounts.items() if account.code is None}
        for account in self._of(message.get("to", ())):
            match op:
                case "world":
                    whole = message["changes"] if "changes" in message else message["world"]
                    account.told = account.announced = whole["generation"]
                    account.called = account.called or account.told
                    account.local_rank = self._free() if account.local_rank is None else account.local_rank
                case "alert":
                    account.announced = message["generation"]
                case "resume":
                    account.resumed = message["generation"]
                case "release":
                    account.released = True

    def said(self, worker: str, message: Message) -> None:
        """A worker's own word, or what the agent has to say of it."""
        for account in self._of((worker,)):
            match message["op"]:
                case "parked":
                    account.address = tuple(message["address"])
                case "progress":
                    account.progress = {part.name: message[part.name] for part in fields(Progress)}
                case "restored":
                    account.restored = message["generation"]
                case "finished":
                    account.finished = message["generation"]
                case "collective_broken":
                    account.broken = message["generation"]
                case "checkpointed":
                    account.checkpointed = message["boundary"]
                case "script_failed":
                    account.error = message["error"]
                case "device_failed":
                    account.device_error = {name: message[name] for name in ("error", "code", "xids", "action")}
                case "suspected":
                    account.suspected = (message["cause"], message["detail"])
                case "exited":
                    account.code = message["code"]

    def _of(self, workers: Iterable[str]) -> list[Account]:
        return [self._accounts[worker] for worker in workers if worker in self._accounts]
