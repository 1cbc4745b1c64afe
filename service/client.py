"""The REST API for Python programs: JSON in, JSON out, and errors as one sentence.

with Client("http://127.0.0.1:8642", token=os.environ.get("PHOENIX_TOKEN")) as client:
    run = client.submit(scenario_name="demo", reason="to see it heal")
    client.wait_for_step(run["id"], 10)
    client.inject(run["id"], "process_kill", {"rank": 1}, reason="to see it heal")
    print(client.wait(run["id"])["verdict"])
"""

from __future__ import annotations

import json
import math
import secrets
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

Json = dict[str, Any]
Query = str | int | float | bool | None

ENDED = ("FINISHED", "CANCELLED", "ABANDONED")
NOW: Mapping[str, object] = {"now": True}


class ClientError(Exception):
    """The service refused (`status`) or did not answer (`status` None); the message is for people.

    `problem` is the whole RFC 9457 document of a refusal.
    """

    def __init__(self, message: str, status: int | None = None, problem: Json | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem or {}


class NoAnswer(ClientError):
    """Nobody listens at the address, or whoever does said nothing in time."""


class Client:
    """Calls one service; every method raises ClientError. Proxies of the environment are not used."""

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 30.0) -> None:
        """Raises ClientError for an address that is none of a service."""
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ClientError(f"the address of a service is http://HOST:PORT (or https://...), not {url!r}")
        if token and not (token.isascii() and token.isprintable()):
            raise ClientError("this token holds what no token does: it is phx_ and letters, as it was printed")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            _ = parts.port  # raises ValueError where it is none; httpx would connect to another one
            self._http = httpx.Client(
                base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False, verify=_trusted(parts.scheme)
            )
        except (httpx.InvalidURL, ValueError) as error:
            message = f"the address of a service is http://HOST:PORT (or https://...), not {url!r} ({error})"
            raise ClientError(message) from error

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    # --- any resource ------------------------------------------------------------------------------------------------

    def get(self, path: str, **query: Query) -> Json:
        params = {name: value for name, value in query.items() if value is not None}
        return self._call("GET", path, params=params)

    def post(self, path: str, body: Mapping[str, object], *, key: str | None = None) -> Json:
        """One request with a key of its own, or with `key`: sent again with the same one it has no second effect."""
        headers = {"Idempotency-Key": key or secrets.token_hex(16)}
        return self._call("POST", path, json=dict(body), headers=headers)

    def put(self, path: str, body: Mapping[str, object], *, tag: str = "*") -> Json:
        """`tag`: the ETag of what this replaces, so that no change in between is lost (else: whatever is there)."""
        return self._call("PUT", path, json=dict(body), headers={"If-Match": tag})

    def delete(self, path: str, **query: Query) -> None:
        self._call("DELETE", path, params=query)

    def items(self, path: str, **query: Query) -> Iterator[Json]:
        """Of a list, page after page."""
        cursor: Query = None
        while True:
            page = self.get(path, cursor=cursor, **query) if cursor is not None else self.get(path, **query)
            yield from page["items"]
            if (cursor := page.get("next")) is None:
                return

    def ready(self) -> bool:
        try:
            return self._http.get("/readyz").is_success
        except httpx.HTTPError:
            return False

    # --- runs --------------------------------------------------------------------------------------------------------

    def submit(
        self,
        *,
        scenario_name: str | None = None,
        scenario: Mapping[str, object] | None = None,
        trials: int = 1,
        suite: str | None = None,
        revision: str | None = None,
        seed: int | None = None,
        reason: str = "",
        key: str | None = None,
    ) -> Json:
        """Queue a run of a scenario or a suite by name, or of a scenario in full."""
        body: Json = {"trials": trials, "reason": reason}
        given = {
            "scenario_name": scenario_name,
            "scenario": scenario,
            "suite": suite,
            "revision": revision,
            "seed": seed,
        }
        body |= {name: value for name, value in given.items() if value is not None}
        return self.post("/runs", body, key=key)

    def run(self, run: str) -> Json:
        return self.get(f"/runs/{_part(run)}")

    def runs(self, **query: Query) -> Iterator[Json]:
        """Newest first; `state`, `scenario`, `verdict`, `commit`, `since` and so on filter."""
        return self.items("/runs", **query)

    def trials(self, run: str) -> list[Json]:
        return list(self.get(f"/runs/{_part(run)}/trials")["items"])

    def steps(self, run: str, *, after: int = -1, limit: int = 1000) -> list[Json]:
        return list(self.get(f"/runs/{_part(run)}/steps", after=after, limit=limit)["items"])

    def again(self, run: str, reason: str = "") -> Json:
        """Queue the same trials once more."""
        return self.post(f"/runs/{_part(run)}/again", {"reason": reason})

    def cancel(self, run: str, reason: str) -> Json:
        return self.post(f"/runs/{_part(run)}/cancel", {"reason": reason})

    def wait(self, run: str, *, timeout_s: float = 3600.0, look_s: float = 0.5) -> Json:
        """The run once it has ended. Raises ClientError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (state := self.run(run))["state"] not in ENDED:
            if time.monotonic() > deadline:
                raise ClientError(f"run {run} is still {state['state']} after {timeout_s:g} s")
            time.sleep(look_s)
        return state

    def wait_for_step(self, run: str, step: int, *, timeout_s: float = 600.0, look_s: float = 0.2) -> Json:
        """The run once every rank has committed this step. Raises ClientError where it ended before, or too late."""
        deadline = time.monotonic() + timeout_s
        while (state := self.run(run))["step"] is None or state["step"] < step:
            if state["state"] in ENDED or time.monotonic() > deadline:
                raise ClientError(f"run {run} did not come to step {step}: {state['state']}, {state['error'] or ''}")
            time.sleep(look_s)
        return state

    def events(self, run: str, *, after: int = 0, kind: str | None = None) -> Iterator[Json]:
        """The events that there are, in order of their offsets."""
        while items := self.get(f"/runs/{_part(run)}/events", after=after, kind=kind, limit=5000)["items"]:
            yield from items
            after = items[-1]["offset"]

    def stream(self, run: str, *, after: int = 0) -> Iterator[Json]:
        """The events as they come, until the run ends or the service stops."""
        path = f"/api/v1/runs/{_part(run)}/stream"
        try:
            with self._http.stream("GET", path, params={"after": after}, timeout=60.0) as answer:
                if not answer.is_success:
                    answer.read()
                    self._refused("GET", path, answer)
                name = ""
                for line in answer.iter_lines():
                    if line.startswith("event:"):
                        name = line.removeprefix("event:").strip()
                    elif line.startswith("data:") and not name:
                        yield json.loads(line.removeprefix("data:"))
                    elif not line:
                        name = ""
        except httpx.HTTPError as error:
            raise ClientError(f"the stream of {self.url} broke ({error or type(error).__name__})") from error

    # --- faults ------------------------------------------------------------------------------------------------------

    def inject(
        self,
        run: str,
        kind: str,
        target: Mapping[str, object],
        *,
        trigger: Mapping[str, object] = NOW,
        params: Mapping[str, object] | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> Json:
        body: Json = {"kind": kind, "target": dict(target), "trigger": dict(trigger), "params": dict(params or {})}
        return self.post(f"/runs/{_part(run)}/faults", {**body, "reason": reason, "dry_run": dry_run})

    def faults(self, run: str) -> list[Json]:
        return list(self.get(f"/runs/{_part(run)}/faults")["items"])

    def revert(self, run: str | None, fault: str, reason: str = "") -> Json:
        """`run` None: only one has a fault of this id."""
        of = f"/injections/{_part(fault)}" if run is None else f"/runs/{_part(run)}/faults/{_part(fault)}"
        return self.post(f"{of}/revert", {"reason": reason})

    def halt(self, reason: str, *, ttl_s: float | None = None, dry_run: bool = False) -> Json:
        """Take every fault back and let none begin."""
        return self.post("/halts", {"reason": reason, "ttl_s": ttl_s, "dry_run": dry_run})

    def release(self, halt: str, reason: str) -> Json:
        return self.post(f"/halts/{_part(halt)}/release", {"reason": reason})

    def active_halt(self) -> Json | None:
        return next(iter(self.get("/halts", active="true")["items"]), None)

    # --- regressions -------------------------------------------------------------------------------------------------

    def triage(self) -> list[Json]:
        """What was decided about changes of level, by code; of each the last decision counts."""
        return list(self.items("/triage"))

    def decide(self, code: str, state: str, reason: str, *, owner: str | None = None, link: str | None = None) -> Json:
        """`state`: acknowledged, wont_fix, false_alarm, resolved, or new again."""
        body = {"code": code, "state": state, "reason": reason, "owner": owner, "link": link}
        return self.post("/triage", body)

    # --- baselines ---------------------------------------------------------------------------------------------------

    def choose_baseline(self, scenario: str, code: str, reason: str) -> Json:
        """The code that the scenario is held against from now on."""
        return self.post("/baselines", {"scenario": scenario, "code": code, "reason": reason})

    def remove_baseline(self, scenario: str, reason: str = "") -> None:
        self.delete(f"/baselines/{_part(scenario)}", reason=reason)

    # --- schedules, webhooks, tokens ---------------------------------------------------------------------------------

    def schedule_id(self, name: str) -> str:
        """Of a name or an id. Raises ClientError where there is none."""
        for schedule in self.items("/schedules"):
            if name in (schedule["id"], schedule["name"]):
                return str(schedule["id"])
        raise ClientError(f"there is no schedule {name!r}; `phoenix schedule list` names them")

    def create_schedule(self, body: Mapping[str, object]) -> Json:
        return self.post("/schedules", body)

    def create_webhook(
        self, url: str, events: tuple[str, ...] = (), description: str = "", *, reason: str = ""
    ) -> Json:
        """The answer holds the secret, which is told this once."""
        body = {"url": url, "events": list(events), "description": description, "reason": reason}
        return self.post("/webhooks", body)

    def create_token(self, name: str, role: str, *, expires_at: str | None = None, reason: str = "") -> Json:
        """The answer holds the token, which is told this once."""
        return self.post("/tokens", {"name": name, "role": role, "expires_at": expires_at, "reason": reason})

    def revoke_token(self, token: str, reason: str = "", *, force: bool = False) -> Json:
        """`force`: also the only valid one of an admin."""
        return self.post(f"/tokens/{_part(token)}/revoke", {"reason": reason, "force": force})

    def audit(self, **query: Query) -> Iterator[Json]:
        """Every change, newest first."""
        return self.items("/audit", **query)

    # -----------------------------------------------------------------------------------------------------------------

    def _call(self, method: str, path: str, **more: Any) -> Json:
        try:
            answer = self._http.request(method, f"/api/v1{path}", **more)
        except httpx.HTTPError as error:
            raise self._unanswered(error) from error
        except ValueError as error:  # NaN and infinity, for which JSON has no word
            named = [name for name, value in _numbers(more.get("json")) if not math.isfinite(value)]
            raise ClientError(f"{', '.join(named) or path}: must be a finite number ({error})") from error
        if answer.status_code == 204:
            return {}
        if not answer.is_success:
            self._refused(method, path, answer)
        return self._document(method, path, answer)

    def _unanswered(self, error: httpx.HTTPError) -> ClientError:
        if _has_cause(error, ssl.SSLCertVerificationError):
            told = f"the certificate of {self.url} is not trusted here ({error})"
            return ClientError(f"{told}; name the file of who issued it in the environment variable SSL_CERT_FILE")
        return NoAnswer(f"no service answers at {self.url} ({error or type(error).__name__})")

    def _refused(self, method: str, path: str, answer: httpx.Response) -> None:
        problem = self._document(method, path, answer)
        message = str(problem.get("detail") or problem.get("title"))
        if answer.status_code == 401:
            message += "; put it into the environment variable PHOENIX_TOKEN"
        raise ClientError(message, answer.status_code, problem)

    def _document(self, method: str, path: str, answer: httpx.Response) -> Json:
        try:
            document = answer.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ClientError(f"{method} {self.url}{path}: not an answer of a PHOENIX service", answer.status_code)
        return document


def _numbers(value: object, name: str = "") -> Iterator[tuple[str, float]]:
    """All in a document that need not be whole, with the name of the field that each stands in."""
    if isinstance(value, float):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item, name)


def _trusted(scheme: str) -> ssl.SSLContext | bool:
    """Who is trusted over https: the public authorities, and those of this machine or of SSL_CERT_FILE."""
    if scheme != "https":
        return True
    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    return context


def _has_cause(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error is not None


def _part(name: str) -> str:
    return quote(name, safe="")
