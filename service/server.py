"""The composition root of `phoenix serve`: the REST API, the pages beside it, one socket, a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from chaos.files import trouble_with
from dashboards.app import create_app as create_pages
from service import store
from service.app import create_app
from service.context import Service
from service.guard import LocalOnly
from service.settings import Settings, SettingsError
from service.states import RunState

API_PATHS = ("/api/", "/openapi.json", "/healthz", "/readyz")
# Attached clients are told to go at once; this bounds what a deaf one can hold up.
GOODBYE_S = 3
CANCEL_DEADLINE_S = 60.0


class _Site:
    """The API where its paths are, the pages everywhere else."""

    def __init__(self, api: ASGIApp, pages: ASGIApp) -> None:
        self._api = api
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pages = scope["type"] != "lifespan" and not scope["path"].startswith(API_PATHS)
        await (self._pages if pages else self._api)(scope, receive, send)


class _Server(uvicorn.Server):
    """uvicorn with the signals left to `serve`, which has streams to end before connections can close."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(settings: Settings) -> socket.socket:
    """The listening socket. Raises SettingsError where the port is taken or not allowed."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        taken = "is used by another program" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise SettingsError(
            f"port {settings.port} {taken}; choose another with --port N (--port 0 takes any free one)"
        ) from None
    return listener


def serve(settings: Settings, *, attached: bool = False, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGINT or SIGTERM. Raises SettingsError where it cannot begin.

    `attached`: end also when standard input closes, and cancel what runs first. Whoever started the
    service this way is then gone, however it ended.
    """
    for path in sorted(settings.allowed_files):
        if trouble := trouble_with(Path(path)):
            raise SettingsError(f"--allow-file: {trouble}")
    with contextlib.closing(bind(settings)) as listener:
        settings = replace(settings, port=listener.getsockname()[1])
        asyncio.run(_serve(settings, listener, attached=attached, ready=ready))


async def _serve(
    settings: Settings, listener: socket.socket, *, attached: bool, ready: Callable[[str], None] | None
) -> None:
    # Opened here and not by the server, so that a refusal is an exception and not a log line.
    api = create_app(settings)
    base = f"http://{settings.host}:{settings.port}"
    async with (
        api.router.lifespan_context(api),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url=base, timeout=30) as client,
    ):
        site = LocalOnly(_Site(api, create_pages(client)))
        config = uvicorn.Config(
            site, lifespan="off", log_level="warning", access_log=False, timeout_graceful_shutdown=GOODBYE_S
        )
        server = _Server(config)
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
        for state in (RunState.QUEUED, RunState.RUNNING):
            for run in store.runs(session, state=state, limit=1000, before=None):
                store.cancel(session, run, "the program that started this service has ended")


def _active(service: Service) -> bool:
    with service.database.read() as session:
        return bool(store.active_trials(session))
