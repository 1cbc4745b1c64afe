"""Takes the pictures of docs/img from the pages, over made-up history: `python -m docs.screenshots`.

Needs Chromium (PHOENIX_CHROMIUM, else /usr/bin/chromium) and the `dev` extra. The history is the same at every run but
for its dates, which end last night.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from service.background import BackgroundService
from service.client import Client
from service.database import Database
from service.seeding.write import last_night, seed

HERE = Path(__file__).parent / "img"
CHROMIUM = os.environ.get("PHOENIX_CHROMIUM", "/usr/bin/chromium")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
WIDE, NARROW = 1280, 390


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One file of docs/img; `height` 0 takes the page as long as it is."""

    name: str
    path: str
    theme: str = "light"
    width: int = WIDE
    height: int = 900


def pictures(client: Client) -> Iterator[Picture]:
    """What to take, with ids and commits of the history that was just made up."""
    newest, *_ = client.get("/runs", suite="nightly", limit=1)["items"]
    head, base = (run["commit"] for run in client.get("/runs", suite="compare")["items"])
    compare = f"/compare?base={base}&head={head}"
    stopped = client.get("/trials", scenario="stop-one", limit=1)["items"][0]["id"]
    yield Picture(name="home", path="/")
    yield Picture(name="home-dark", path="/", theme="dark")
    yield Picture(name="home-narrow", path="/", width=NARROW, height=844)
    yield Picture(name="history", path="/history?scenario=kill-one", height=760)
    yield Picture(name="phases", path="/history?scenario=kill-one&view=phases", height=700)
    yield Picture(name="compare", path=compare, height=1000)
    yield Picture(name="heatmap", path="/heatmap", height=480)
    yield Picture(name="regressions", path="/regressions?show=all", height=900)
    yield Picture(name="run", path=f"/runs/{newest['id']}", height=1000)
    yield Picture(name="trial", path=f"/trials/{stopped}", height=1250)
    yield Picture(name="machines", path="/machines", height=700)


def take(browser: Browser, address: str, picture: Picture) -> None:
    size = {"width": picture.width, "height": picture.height or 900}
    context = browser.new_context(viewport=size, color_scheme=picture.theme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(address + picture.path)
    for chart in page.locator(".chart").all():
        chart.locator(".main-svg").first.wait_for()
    page.screenshot(path=HERE / f"{picture.name}.png", full_page=not picture.height)
    context.close()


@contextmanager
def seeded_service() -> Iterator[str]:
    """The address of a service over made-up history; both are gone afterwards."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        database = Database(f"sqlite:///{directory / 'phoenix.db'}")
        database.migrate()
        seed(directory, database, last=last_night(datetime.now(UTC)))
        database.close()
        service = BackgroundService(directory, 0, keep=False, files=[])
        try:
            yield service.wait_ready()
        finally:
            service.stop()


def main() -> int:
    HERE.mkdir(exist_ok=True)
    with seeded_service() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        with Client(address) as client:
            wanted = list(pictures(client))
        for picture in wanted:
            take(browser, address, picture)
            print(f"docs/img/{picture.name}.png", flush=True)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
