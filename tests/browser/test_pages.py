"""The pages as a reader without a script gets them: HTML from the server, and the errors in words."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import httpx
import pytest

import dashboards
from dashboards.app import create_app
from tests.browser.fake_api import KILL_S, PHASES, FakeApi, Json, problem, recovery_json, run_json


async def body(pages: httpx.AsyncClient, path: str, status: int = 200) -> str:
    answer = await pages.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    return html.unescape(answer.text)


async def test_runs_are_listed_with_state_verdict_and_progress(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/runs")
    for run_id in ("r3", "r2", "r1", "r0"):
        assert f'href="/runs/{run_id}"' in page
    assert "130 / 200" in page and "disturbed run" in page
    assert "PASS" in page and "FAIL" in page and "UNKNOWN" in page
    assert "4 ranks on 4 nodes, 1 spare" in page


async def test_runs_are_filtered_by_state(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/runs?state=FINISHED")
    assert "/runs/r2" in page and "/runs/r3" not in page
    assert "No run is queued" in await body(pages, "/runs?state=QUEUED")


async def test_without_runs_the_exact_commands_are_shown(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.runs = []
    page = await body(pages, "/runs")
    assert '<pre tabindex="0">phoenix demo</pre>' in page and "phoenix serve" in page
    assert "curl -X POST http://pages/api/v1/runs" in page and '{"scenario_name": "demo"}' in page


async def test_a_run_shows_who_holds_which_rank(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/runs/r3")
    rows = re.findall(
        r'<td class="n strong">([\d–]+)</td><th scope="row">(w\d)</th><td>(n\d)</td><td class="n">(\d+)', page
    )
    assert rows[:5] == [
        ("0", "w0", "n0", "41001"),
        ("1", "w5", "n2", "41205"),
        ("2", "w4", "n4", "41011"),
        ("3", "w3", "n3", "41009"),
        ("–", "w6", "n1", "41377"),
    ]
    assert {row[1] for row in rows[5:]} == {"w1", "w2"}, "the gone are last"


async def test_a_run_shows_each_fault_with_receipt_and_recovery(pages: httpx.AsyncClient) -> None:
    page = (await body(pages, "/runs/r3")).replace("\u202f", " ")
    assert "rank 2 (w2), pid 41007, at 12.4 s, real" in page and "“the demo's first fault”" in page
    assert "blamed: rank 1 (w1), no heartbeat" in page and "✓ right" in page
    assert "449 ms" in page and "2 048 ms" in page
    for phase in ("detect", "quiesce", "replace", "reconstruct", "restore", "recompute"):
        assert page.count(f'class="ph {phase}"') >= 2
    assert "Waterfall. Recovery time 449 ms: detect 2.1 ms, quiesce 6.4 ms" in page


def spare_killed(new: Json | None) -> Json:
    recovery = recovery_json("f1", "process_kill", 2, "w6", KILL_S, generation=None, resume_step=None, lost_steps=None)
    nothing: Json = {"recovery_s": None, "downtime_s": None, "phases": dict.fromkeys(PHASES), "blamed": None}
    place = {"target": {"rank": None, "worker": "w6"}, "replacement": new}
    return {**recovery, **nothing, **place, "started_s": 12.4, "ended_s": None, "bars": [], "instants": []}


async def test_a_lost_spare_is_no_incomplete_recovery(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.recoveries[0] = spare_killed({"worker": "w7", "after_s": 3.25})
    for path in ("/runs/r3", "/trials/t-r1"):
        page = (await body(pages, path)).replace("\u202f", " ")
        assert "nothing had to be recovered. A new one (w7) was parked 3.2 s later." in page
        assert "None" not in page and "Not complete" not in page
    assert "1 of 1 recoveries complete" in await body(pages, "/runs/r3")
    assert ">not needed</a>" in await body(pages, "/runs/r3")
    api.recoveries[0] = spare_killed(None) | {"checks": {}}
    assert "No new spare is parked yet." in await body(pages, "/runs/r3")


async def test_a_recovery_that_never_ended_is_shown_as_far_as_it_came(api: FakeApi, pages: httpx.AsyncClient) -> None:
    open_phases = dict.fromkeys(PHASES) | {"detect": 0.002, "quiesce": 0.006}
    never = {"recovery_s": None, "downtime_s": None, "phases": open_phases, "lost_steps": None, "resume_step": None}
    api.recoveries[0] |= never
    for path in ("/runs/r3", "/trials/t-r1"):
        assert "Not complete: the replace phase has not ended." in await body(pages, path)


async def test_without_a_script_each_form_has_its_command(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/runs/r3")
    assert page.count("<noscript>") == 4 and "load it again for news" in page
    assert "curl -X POST http://pages/api/v1/runs/r3/cancel" in page
    assert "curl -X POST http://pages/api/v1/halts" in page
    assert "curl -X POST http://pages/api/v1/runs -H" in await body(pages, "/runs")


async def test_the_figure_is_data_in_the_page(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.runs[0]["scenario"] = "</script><script>alert(1)</script>"
    raw = (await pages.get("/runs/r3")).text
    assert "<script>alert" not in raw
    match = re.search(r'<script type="application/json" id="loss-figure">(.*?)</script>', raw, re.DOTALL)
    assert match is not None
    assert len(json.loads(match[1])["data"][0]["x"]) == 130


async def test_every_table_has_a_caption_and_every_chart_a_table(pages: httpx.AsyncClient) -> None:
    for path in ("/runs", "/runs/r3", "/trials/t-r1", "/history"):
        page = await body(pages, path)
        assert page.count("<table") == page.count("<caption") > 0
        assert page.count('<div class="waterfall"') + page.count('<div class="chart"') == page.count(
            "<summary>The same as a table"
        )


async def test_a_run_says_how_long_it_will_take_and_is_run_again(api: FakeApi, pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/runs/r3")
    assert re.search(r"about [^<]+ to go", page) and "/again" not in page
    ended = await body(pages, "/runs/r1")
    assert 'data-post="/api/v1/runs/r1/again"' in ended and "to go" not in ended
    assert "/api/v1/runs/r1/log" in ended


async def test_only_a_running_run_offers_the_form(api: FakeApi, pages: httpx.AsyncClient) -> None:
    assert 'id="fault-form"' in await body(pages, "/runs/r3")
    finished = await body(pages, "/runs/r2")
    assert 'id="fault-form"' not in finished and "nothing left to strike" in finished
    assert "data-stream" not in finished and "Cancel this run" not in finished
    api.runs[0] = run_json("r3", state="QUEUED", part=None, step=None, started_at=None, trials=[])
    api.steps, api.faults, api.workers, api.recoveries = [], [], [], []
    queued = await body(pages, "/runs/r3")
    assert "waits in the queue" in queued and "No worker has started yet" in queued and "No step is committed" in queued


async def test_when_only_the_twin_runs_there_is_nothing_to_strike(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.runs[0]["part"] = "twin"
    page = await body(pages, "/runs/r3")
    assert 'id="fault-form"' not in page and "its undisturbed twin and the checks" in page and "data-stream" in page


async def test_verdicts_of_checks_are_shown_once_there_are_any(pages: httpx.AsyncClient) -> None:
    assert "checks follow when the run has ended" in await body(pages, "/runs/r3")
    assert 'title="twin: PASS"' in await body(pages, "/runs/r2")


async def test_an_abandoned_run_says_why(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/runs/r0")
    assert 'role="alert">The trial process ended without a result (killed?).' in page


async def test_a_trial_shows_its_checks_in_detail(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/trials/t-r1")
    assert "4.183029174804688 here, 4.183029651641846 in the twin" in page
    assert "bit for bit" in page and "/var/lib/phoenix/trials/t-r1" in page
    assert 'href="/runs/r1"' in page
    for row in ("coordinator", "rank 0", "rank 3"):
        assert f'<span class="name party">{row}</span>' in page


@pytest.mark.parametrize(
    ("path", "title"), [("/runs/nope", "There is no run nope"), ("/trials/t-no", "There is no trial")]
)
async def test_what_does_not_exist_is_said_in_words(pages: httpx.AsyncClient, path: str, title: str) -> None:
    page = await body(pages, path, 404)
    assert title in page and "there is no" in page and "To the list of runs" in page


async def test_an_address_that_leads_nowhere(pages: httpx.AsyncClient) -> None:
    assert "There is no such page" in await body(pages, "/nothing", 404)


async def test_an_id_cannot_leave_its_place_in_the_path(pages: httpx.AsyncClient) -> None:
    await body(pages, "/runs/..%2F..%2Fscenarios", 404)


async def test_a_service_that_is_down_is_said_with_what_to_do() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(refuse), base_url="http://service") as service,
        httpx.AsyncClient(transport=httpx.ASGITransport(create_app(service)), base_url="http://pages") as client,
    ):
        page = await body(client, "/runs", 503)
    assert "The service does not answer" in page and "connection refused" in page and "phoenix serve" in page


@pytest.mark.parametrize(("status", "shown"), [(500, 502), (422, 422)])
async def test_a_service_that_refuses_is_quoted(status: int, shown: int) -> None:
    detail = f"the database is locked ({status})"
    answer = problem(status, "Refused", detail)
    transport = httpx.MockTransport(
        lambda request: httpx.Response(status, content=bytes(answer.body), headers=answer.headers)
    )
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://service") as service,
        httpx.AsyncClient(transport=httpx.ASGITransport(create_app(service)), base_url="http://pages") as client,
    ):
        assert detail in await body(client, "/runs/r1", shown)


async def test_headers_are_strict_and_the_chart_script_may_be_kept(pages: httpx.AsyncClient) -> None:
    page = await pages.get("/runs/r3")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    address = re.search(r'src="(/static/plotly.min.js\?v=[\d.]+)"', page.text)
    assert address is not None
    script = await pages.get(address[1])
    assert "immutable" in script.headers["cache-control"] and script.headers["content-encoding"] == "gzip"
    assert len(script.text) > 4_000_000
    plain = await pages.get(address[1], headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.text == script.text
    assert "plotly" not in (await pages.get("/runs")).text, "a page without charts does not load the chart script"
    own = await pages.get("/static/main.js")
    assert own.headers["cache-control"] == "no-cache" and "etag" in own.headers


def test_nothing_of_ours_names_an_outside_address() -> None:
    root = Path(dashboards.__path__[0])
    for path in [*root.glob("templates/**/*.html"), *root.glob("static/*")]:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|\burl\(|@import", text), path
        assert not re.search(r"\sstyle=|\son\w+=", text), f"{path}: the content security policy refuses inline code"
