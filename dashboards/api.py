"""The REST API as the pages see it: JSON in, JSON out, and three ways to fail."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

import httpx

Json: TypeAlias = dict[str, Any]
"""A decoded JSON object of the REST API."""

FORBIDDEN = 403
STEPS_PER_CALL = 1000
STEP_CALLS = 5
MOST_ITEMS = 2000
"""A page reads at most STEPS_PER_CALL * STEP_CALLS steps, so that a run of a million steps costs no more."""


class ServiceDown(Exception):
    """Nobody answers at the API's address, or not with JSON."""


class ServiceProblem(Exception):
    """The API answered with an error; `status`, `title`, `detail` as in RFC 9457."""

    def __init__(self, status: int, title: str, detail: str) -> None:
        super().__init__(f"{status} {title}: {detail}")
        self.status, self.title, self.detail = status, title, detail


class NotFound(ServiceProblem):
    """The API knows no such run or trial."""


class SignedOut(ServiceProblem):
    """The API wants to know who reads."""


_PROBLEMS: dict[int, type[ServiceProblem]] = {401: SignedOut, 404: NotFound}


@dataclass(frozen=True, kw_only=True)
class RunData:
    """All that the page of a run shows; `recoveries` are those of its newest trial, with their bars."""

    run: Json
    workers: list[Json]
    faults: list[Json]
    trials: list[Json]
    recoveries: list[Json]
    steps: list[Json]
    kinds: list[Json]
    workloads: list[Json]


class Api:
    """Reads from the service through `client`, whose base address is the service's root."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def get(self, *path: str, **query: str | int | None) -> Json:
        """GET /api/v1/<path>. Raises NotFound, ServiceProblem or ServiceDown."""
        address = "/api/v1/" + "/".join(quote(part, safe="") for part in path)
        params = {key: value for key, value in query.items() if value is not None}
        try:
            answer = await self._client.get(address, params=params)
        except httpx.HTTPError as error:
            raise ServiceDown(f"GET {address}: {error or type(error).__name__}") from error
        body = _json(answer)
        if answer.is_success and body is not None:
            return body
        if body is None:
            raise ServiceDown(f"GET {address}: status {answer.status_code}, and the answer is no JSON object")
        kind = _PROBLEMS.get(answer.status_code, ServiceProblem)
        raise kind(answer.status_code, str(body.get("title", "Error")), str(body.get("detail", "")))

    async def items(self, *path: str, **query: str | int | None) -> list[Json]:
        """The `items` of a list: the first `limit` of them, or all, page after page, where no limit is given."""
        page = await self.get(*path, **query)
        items = list(page["items"])
        while "limit" not in query and page.get("next") is not None and len(items) < MOST_ITEMS:
            page = await self.get(*path, **query, cursor=page["next"])
            items += page["items"]
        return items

    async def allowed_items(self, *path: str, **query: str | int | None) -> list[Json] | None:
        """As `items`; None where the reader's role does not let them see these: the rest of a page is still theirs."""
        try:
            return await self.items(*path, **query)
        except ServiceProblem as error:
            if error.status != FORBIDDEN:
                raise
            return None

    async def run_data(self, run_id: str) -> RunData:
        """Everything about a run, read side by side."""
        run = await self.get("runs", run_id)
        workers, faults, trials, steps, kinds, workloads = await asyncio.gather(
            self.items("runs", run_id, "workers"),
            self.items("runs", run_id, "faults"),
            self.items("runs", run_id, "trials"),
            self.steps(run_id, run.get("step")),
            self.items("fault-kinds"),
            self.items("workloads"),
        )
        timeline = await self.get("trials", trials[-1]["id"], "timeline") if trials else {"recoveries": []}
        return RunData(
            run=run,
            workers=workers,
            faults=faults,
            trials=trials,
            recoveries=timeline["recoveries"],
            steps=steps,
            kinds=kinds,
            workloads=workloads,
        )

    async def steps(self, run_id: str, last: int | None) -> list[Json]:
        """The newest steps of a run in order, at most STEPS_PER_CALL * STEP_CALLS of them."""
        first = (last or 0) + 1 - STEPS_PER_CALL * STEP_CALLS
        after = first - 1 if first > 0 else None
        steps: list[Json] = []
        for _ in range(STEP_CALLS):
            page = await self.get("runs", run_id, "steps", after=after, limit=STEPS_PER_CALL)
            steps += page["items"]
            after = page.get("next")
            if after is None or not page["items"]:
                break
        return steps


def _json(answer: httpx.Response) -> Json | None:
    try:
        body = answer.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
