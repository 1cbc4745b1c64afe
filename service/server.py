"""The composition root of `phoenix serve`: the REST API, the pages beside it, one socket, a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx
import uvicorn
from anyio import to_thread
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from chaos.files import trouble_with
from chaos.git import GitError, Repository
from dashboards.app import create_app as create_pages
from service import endings, listing, store
from service.app import create_app
from service.context import Service
from service.guard import LocalOnly
from service.settings import LOOPBACKS, Settings, SettingsError
from service.states import RunState

# Questions to the database that are asked at a time, and how long one may keep the others waiting.
MOST_THREADS: Final = 8
TURN_S: Final = 0.0005
# Objects more than before until the youngest are searched for garbage (Python: 700).
GARBAGE: Final = 20_000

API_PATHS = ("/api/", "/openapi.json", "/docs", "/healthz", "/readyz", "/metrics")
# Attached clients are told to go at once; this bounds what a deaf one can hold up.
GOODBYE_S = 3
CANCEL_DEADLINE_S = 60.0

# The cookies of the request for a page that is being made.
_READER: ContextVar[str] = ContextVar("reader", default="")


class _Site:
    """The API where its paths are, the pages everywhere else, which read the API in the name of their reader."""

    def __init__(self, api: ASGIApp, pages: ASGIApp) -> None:
        self._api = api
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pages = scope["type"] != "lifespan" and not scope["path"].startswith(API_PATHS)
        if pages and scope["type"] == "http":
            _READER.set(Headers(scope=scope).get("cookie", ""))
        await (self._pages if pages else self._api)(scope, receive, send)


class _InTheReadersName(httpx.AsyncBaseTransport):
    """Reaches the API with the cookie of whoever asked for the page: a page shows what its reader may see."""

    def __init__(self, api: ASGIApp) -> None:
        self._transport = httpx.ASGITransport(app=api)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if cookie := _READER.get():
            request.headers["cookie"] = cookie
        return await self._transport.handle_async_request(request)


class _Server(uvicorn.Server):
    """uvicorn with the signals left to `serve`, which has streams to end before connections can close."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def share_the_interpreter() -> None:
    """Only one thread at a time runs Python, and the loop gives its turn away with each answer that it sends.

    With as many threads and as long turns as by default it waits for dozens of them, 5 ms each: readers stand in line
    while cores that the training needs go to threads which wake to find that it is not their turn.
    """
    to_thread.current_default_thread_limiter().total_tokens = MOST_THREADS
    sys.setswitchinterval(TURN_S)


def search_less_for_garbage() -> None:
    """Everybody waits while all objects are searched for cycles, 0.2 s every three seconds: modules, routes and tables,
    which stay, are left out from now on, and the rest is searched more rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)


def uvicorn_config(site: ASGIApp, settings: Settings) -> uvicorn.Config:
    """Who calls, and whether by TLS, a proxy on this machine may say if one was named; else anybody could."""
    return uvicorn.Config(
        site,
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GOODBYE_S,
        proxy_headers=bool(settings.also_named),
        forwarded_allow_ips=sorted(LOOPBACKS),
    )


def bind(settings: Settings) -> socket.socket:
    """The listening socket. Raises SettingsError where the port is taken or not allowed."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With its protocol named: asyncio turns Nagle's algorithm off for no other, and each answer would come 40 ms late.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        taken = "is used by another program" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise SettingsError(
            f"port {settings.port} of {settings.host} {taken}; choose another with --port N (--port 0 takes any free "
            f"one){_who_listens(settings) if error.errno == errno.EADDRINUSE else ''}"
        ) from None
    return listener


def _who_listens(settings: Settings) -> str:
    """Of a port that is taken: whether it is a service of ours, which could be used as it is."""
    try:
        answer = httpx.get(f"{settings.address}/healthz", timeout=1.0, trust_env=False)
        ours = answer.is_success and answer.json() == {"status": "ok"}
    except (httpx.HTTPError, ValueError):
        return ""
    return f"; a PHOENIX service answers there ({settings.address}): use it with --server, or stop it" if ours else ""


def serve(settings: Settings, *, attached: bool = False, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGINT or SIGTERM. Raises SettingsError where it cannot begin.

    `attached`: end also when standard input closes, and cancel what runs first. Whoever started the
    service this way is then gone, however it ended.
    """
    for path in sorted(settings.allowed_files):
        if trouble := trouble_with(Path(path)):
            raise SettingsError(f"--allow-file: {trouble}")
    if settings.repository is not None:
        try:
            Repository.around(settings.repository, "--repository")
        except GitError as error:  # else each of its runs would fail at night
            raise SettingsError(str(error)) from None
    with contextlib.closing(bind(settings)) as listener:
        settings = replace(settings, port=listener.getsockname()[1])
        asyncio.run(_serve(settings, listener, attached=attached, ready=ready))


async def _serve(
    settings: Settings, listener: socket.socket, *, attached: bool, ready: Callable[[str], None] | None
) -> None:
    share_the_interpreter()
    # Opened here and not by the server, so that a refusal is an exception and not a log line.
    api = create_app(settings)
    search_less_for_garbage()
    base = settings.address
    async with (
        api.router.lifespan_context(api),
        httpx.AsyncClient(transport=_InTheReadersName(api), base_url=base, timeout=30) as client,
    ):
        site = LocalOnly(_Site(api, create_pages(client)), names=settings.names)
        server = _Server(uvicorn_config(site, settings))
        _end_on_signals(server, _service(api))
        watcher = asyncio.create_task(_end_with_parent(server, _service(api))) if attached else None
        if ready is not None:
            ready(base)
        await server.serve(sockets=[listener])
        if watcher is not None:
            watcher.cancel()


def _service(api: FastAPI) -> Service:
    service = api.state.service
    assert isinstance(service, Service)
    return service


def _end_on_signals(server: uvicorn.Server, service: Service) -> None:
    def end() -> None:
        server.force_exit = server.should_exit  # The second signal does not wait for anybody.
        server.should_exit = True
        service.hub.close()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)


async def _end_with_parent(server: uvicorn.Server, service: Service) -> None:
    """When standard input closes: cancel every run, wait until each has ended, then stop."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(4096):
        pass
    await asyncio.to_thread(_cancel_all, service)
    deadline = loop.time() + CANCEL_DEADLINE_S
    while await asyncio.to_thread(_active, service) and loop.time() < deadline:
        await asyncio.sleep(service.settings.poll_s)
    service.hub.close()
    server.should_exit = True


def _cancel_all(service: Service) -> None:
    with service.database.write() as session:
        which = listing.RunFilter(states=(RunState.QUEUED, RunState.RUNNING))
        for run in session.scalars(listing.runs(which)).all():
            if run.service_id not in (None, service.executor.service):
                continue  # Another service on this database runs it.
            endings.cancel(session, run, "the program that started this service has ended")


def _active(service: Service) -> bool:
    with service.database.read() as session:
        return bool(store.running_trials(session, service.executor.service))
