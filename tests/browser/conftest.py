"""A fake service with the pages beside it: in process, and on a socket for a real browser."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright
from starlette.routing import Mount

from dashboards.app import create_app
from tests.browser.fake_api import FakeApi

CHROMIUM = Path(os.environ.get("PHOENIX_CHROMIUM", "/usr/bin/chromium"))
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
DEADLINE_S = 40.0


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
async def pages(api: FakeApi) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the pages, whose service is `api`."""
    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(api.app()), base_url="http://service") as service,
        httpx.AsyncClient(transport=httpx.ASGITransport(create_app(service)), base_url="http://pages") as client,
    ):
        yield client


@dataclass(frozen=True, kw_only=True)
class Site:
    """Pages and API on one address, as `phoenix serve` puts them."""

    address: str
    api: FakeApi


@pytest.fixture
def site(api: FakeApi) -> Iterator[Site]:
    app = api.app()
    service = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
    app.router.routes.append(Mount("/", create_app(service)))
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1)
    server = _Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert server.ready.wait(DEADLINE_S), "the server did not start"
    yield Site(address=f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", api=api)
    api.push(None)
    server.should_exit = True
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "the server did not stop"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: object = None) -> None:
        await super().startup(sockets=None)
        self.ready.set()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser per module: while it lives, its loop runs in this thread and no asynchronous test can."""
    if not CHROMIUM.exists():
        pytest.skip(f"needs Chromium at {CHROMIUM} (apt install chromium, or set PHOENIX_CHROMIUM)")
    expect.set_options(timeout=1000 * DEADLINE_S)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield browser
        browser.close()


@dataclass(kw_only=True)
class Watched:
    """A browser page and all that went wrong in it."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(self.address + path)
        return self.page

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits until it holds, in the browser's own loop. Not with a script: the pages' policy forbids evaluating."""
        for _ in range(int(DEADLINE_S / 0.025)):
            if holds():
                return
            self.page.wait_for_timeout(25)
        raise AssertionError(f"in vain waited until {what}")

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window; 0 is right."""
        width = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return int(width)


@pytest.fixture(params=[(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")], ids=lambda p: f"{p[0]}-{p[1]}")
def watched(request: pytest.FixtureRequest, chromium: Browser, site: Site) -> Iterator[Watched]:
    """A page in each width and theme; no message in the console and no request elsewhere is forgiven."""
    width, theme = request.param
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.set_default_timeout(1000 * DEADLINE_S)
    watched = Watched(page=page, address=site.address)
    page.on("console", lambda message: watched.complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: watched.complaints.append(f"error: {error}"))
    page.on("request", lambda asked: _note_outside(watched, asked.url))
    yield watched
    context.close()
    assert watched.complaints == []


def _note_outside(watched: Watched, url: str) -> None:
    if not url.startswith(watched.address + "/"):
        watched.complaints.append(f"outside request: {url}")
