"""Each view as a reader without a script gets it, and what holds for all of them."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import httpx
import pytest

from dashboards import text
from dashboards.pages import history
from tests.browser import fake_history, fake_service
from tests.browser.fake_api import FakeApi, iso, problem
from tests.browser.views import VIEWS


async def body(pages: httpx.AsyncClient, path: str, status: int = 200) -> str:
    answer = await pages.get(path)
    assert answer.status_code == status, answer.text
    return html.unescape(answer.text).replace(text.THIN, " ")


class _Outline(HTMLParser):
    """What a screen reader would find its way by."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def of(self, *names: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag in names]


@pytest.mark.parametrize("path", VIEWS)
async def test_every_view_can_be_read_without_seeing_it(pages: httpx.AsyncClient, path: str) -> None:
    raw = (await pages.get(path)).text
    outline = _Outline(raw)
    assert len(outline.of("h1")) == 1, "one heading says what the page is"
    assert len(outline.of("table")) == len(outline.of("caption"))
    labelled = {label.get("for") for label in outline.of("label")}
    for field in outline.of("input", "select"):
        named = field.get("aria-label") or field.get("id") in labelled or field.get("type") in ("hidden", "radio")
        inside = re.search(rf'<label[^>]*>(?:(?!</label>).)*name="{re.escape(str(field.get("name")))}"', raw, re.DOTALL)
        assert named or inside, f"nobody says what {field} is"
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids)), "an id names one thing"
    assert not re.search(r">\s*None\s*<|\bundefined\b", raw)


@pytest.mark.parametrize("path", [path for path in VIEWS if path != "/login"])
async def test_the_way_to_every_view_stands_on_every_view(pages: httpx.AsyncClient, path: str) -> None:
    page = await body(pages, path)
    for section in (
        "Home",
        "Runs",
        "History",
        "Heatmap",
        "Compare",
        "Regressions",
        "Peers",
        "Faults",
        "Machines",
        "Settings",
    ):
        assert f">{section}</a>" in page
    assert page.split("</nav>")[0].count('aria-current="page"') == 1
    assert "Halt now" in page, "all faults can be taken back from everywhere"


@pytest.mark.parametrize("path", [path for path in VIEWS if path != "/login"])
async def test_a_halt_is_said_on_every_view(api: FakeApi, pages: httpx.AsyncClient, path: str) -> None:
    api.lists["halts"] = [fake_service.halt()]
    page = await body(pages, path)
    assert "Faults are halted" in page and "the switch is being replaced" in page


async def test_halts_say_how_they_ended(api: FakeApi, pages: httpx.AsyncClient) -> None:
    until, released = iso(-300), iso(-400)
    over: dict[str, object] = {"active": False, "until": until}
    by_hand = {"released_at": released, "released_by": "eve", "release_reason": "it is replaced"}
    api.lists["halts"] = [fake_service.halt(), fake_service.halt(**over), fake_service.halt(**over, **by_hand)]
    page = await body(pages, "/faults")
    assert "by ada, until released; 1 fault taken back" in page
    assert f"by ada, over since {text.clock(until)}; " in page
    assert f"by ada, released {text.clock(released)} by eve (“it is replaced”); " in page


async def test_home_says_what_is_red_and_why(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.runs[2]["created_at"] = iso(4000)
    page = await body(pages, "/")
    assert "kill-in-backward: FAIL" in page and "twin: step 41 of rank 2: 4.183029174804688 here" in page
    assert "every-six-hours is stale" in page and "no service was running" in page
    assert "in 2 h" in page and "next: nightly" in page
    assert "demo" in page and "disturbed run" in page, "what runs now"
    assert page.count("<polyline") == 2, "a line for each series"


async def test_home_is_narrowed_by_its_address(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.machine_changed = False
    page = await body(pages, "/?scenario=stop-one&branch=main")
    assert page.count("<polyline") == 1 and "stop-one became slower: +25 %" in page
    assert 'href="/?branch=main"' in page and 'href="/?scenario=stop-one&branch=main&verdict=FAIL"' in page
    assert (
        'href="/runs?scenario=stop-one&branch=main&verdict=PASS"' in page and "<option selected>main</option>" in page
    )
    page = await body(pages, "/?branch=feature/faster")
    assert page.count("<polyline") == 1 and "kill-one" not in page.split('id="home"')[1], "nothing of it was measured"
    page = await body(pages, "/?host=bench-2")
    assert "became slower" not in page and "Nothing runs now." in page, "another machine, on which no level rose"
    assert (await body(pages, "/?suite=nightly&verdict=PASS")).count("<polyline") == 2
    assert "Nothing of what is chosen" in await body(pages, "/?scenario=gone&host=bench-1&verdict=FAIL")


async def test_a_verdict_narrows_what_is_red_and_counts_all(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.runs[2]["created_at"], api.runs[3]["created_at"] = iso(4000), iso(5000)
    page = await body(pages, "/?verdict=UNKNOWN")
    assert "freeze-twice: UNKNOWN" in page and "kill-in-backward: FAIL" not in page and "is stale" not in page
    assert '<a class="tile fail" href="/runs?verdict=FAIL"><span class="big">1</span>' in page
    assert "No series is so." in page


async def test_home_is_calm_when_nothing_is_red(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.lists["schedules"] = api.lists["schedules"][:1]
    page = await body(pages, "/")
    assert "Nothing. In the last 24 hours no run failed" in page


async def test_a_level_that_rose_is_red_until_it_falls(api: FakeApi, pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/")
    assert "became slower" not in page, "another machine came since: there is nothing to compare with"
    assert page.count('<span class="dim">other machine</span>') == 2 and "as ever" not in page
    api.machine_changed = False
    page = await body(pages, "/")
    assert page.count("as ever") == 1
    assert "stop-one became slower: +25 %" in page and "recovery 1 200 ms → 1 500 ms" in page


async def test_the_history_shows_every_trial_and_where_the_level_changed(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/history?scenario=stop-one")
    assert page.count('href="/trials/t-stop-one-') == 30 * 5
    assert "+25 %" in page and f"/compare?base={fake_history.code(11)}&head={fake_history.code(12)}" in page
    assert "other machine (cpu: EPYC 7B13 -> EPYC 9B14)" in page and "kernel updated" in page
    lost = await body(pages, "/history?scenario=kill-one")
    assert "4/5" in lost and ">✗</a>" in lost, "a trial that did not recover is never left out"


async def test_the_history_of_success_is_of_shares_and_not_of_times(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/history?scenario=kill-one&metric=success")
    table = page.split('id="history-table"')[1].split("</table>")[0]
    assert '<td class="n strong">80 %</td>' in table and table.count('<td class="n strong">100 %</td>') == 29
    assert "ms<" not in table and "Interval" not in table and "a trial <i" not in page
    failed = f"t-kill-one-{fake_history.FAILED_AT}-2"
    assert f'<a class="plain" href="/trials/{failed}">3</a>' in table, "each trial is a click away"


async def test_the_phases_of_the_history_stand_in_its_table_and_files(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/history?scenario=stop-one&view=phases&metric=downtime")
    table = page.split('id="history-table"')[1].split("</table>")[0]
    for share, phase in ((0.05, "detect"), (0.58, "recompute")):
        assert f"</i>{phase}</th>" in table
        points = fake_history.history("stop-one", phase)["points"]
        assert f'<td class="n">{text.milliseconds(points[-1]["median"], "")}</td>' in table.replace(text.THIN, " "), (
            share
        )
    assert "Interval" not in table and 'id="metric"' not in page
    assert '<input type="hidden" name="metric" value="downtime">' in page, "the way back to every trial"
    assert "/api/v1/history?scenario=stop-one&fault=stop&metric=detect&limit=100" in page
    assert "metric=detect&metric=quiesce&" in page and "metric=recompute&limit=100" in page, "one file of them all"


async def test_notes_name_author_and_commit(api: FakeApi, pages: httpx.AsyncClient) -> None:
    note = {"at": iso(10), "text": "the copy is verified", "by": "eve", "commit": fake_history.code(12)}
    api.remarks = [{**note, "index": 12}, {**note, "text": "again", "index": 12}, {**note, "text": "x", "index": None}]
    page = await body(pages, "/history?scenario=stop-one")
    assert f"UTC, eve, on <code>{fake_history.code(12)[:9]}</code>:</span> the copy is verified" in page
    assert "(not in these sessions):</span> x" in page and '"text":"2 notes"' in page
    assert (
        '<a href="/api/v1/history?scenario=stop-one&fault=stop&metric=recovery&limit=100">JSON</a> <a href="/runs'
        in page
    )


async def test_many_breaks_are_counted_and_the_last_are_told_of(api: FakeApi, pages: httpx.AsyncClient) -> None:
    fields = ["faults.kill: removed", "faults.stop: added"]
    api.breaks = [{"index": index, "kind": "scenario", "fields": fields} for index in range(3, 25, 2)]
    page = await body(pages, "/history?scenario=stop-one")
    assert page.count("other scenario (faults.kill: removed; faults.stop: added)") == 3
    point = fake_history.history("stop-one", "recovery")["points"][23]
    assert f"From the session of {text.clock(point['at'])} (<code>{point['short']}</code>) on: other scenario" in page
    api.breaks = [{"index": 4, "kind": "machine", "fields": [f"f{number}: 1 -> 2" for number in range(9)]}]
    assert "f5: 1 -> 2; and 3 more)" in await body(pages, "/history?scenario=stop-one")
    assert "8 times before that" in page and page.count('"text":"other scenario"') == 2


async def test_a_machine_without_trials_of_the_scenario_leaves_the_form(api: FakeApi, pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/history?scenario=kill-one&fingerprint=000000000000", 404)
    assert "no finished trial of scenario 'kill-one' on machine" in page
    assert 'id="fingerprint"' in page and "<option selected>kill-one</option>" in page and "Halt now" in page


async def test_a_view_of_the_history_is_a_permalink(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/history?scenario=stop-one&metric=detect&limit=30&y=log")
    assert "<option selected>detect</option>" in page and "<option selected>stop-one</option>" in page
    assert '"type":"log"' in page
    assert "/history?scenario=stop-one&fault=stop&metric=detect&limit=30&view=phases&y=log" in page


def test_the_fault_of_the_scenario_before_is_not_asked_for_of_the_next() -> None:
    named = (("two", "kill"), ("two", "stop"), ("one", "burst"))
    series = [{"scenario": scenario, "fault": fault, "metrics": ["recovery"]} for scenario, fault in named]
    for query, fault in (
        ({"scenario": "two"}, "kill"),
        ({"scenario": "two", "fault": "stop"}, "stop"),
        ({"scenario": "one", "fault": "stop"}, "burst"),
        ({"scenario": "one", "fault": "unknown"}, "unknown"),  # the service says that there is none
    ):
        chosen = history.choose(query, series)
        assert chosen is not None and chosen["fault"] == fault
    assert history.choose({"limit": "²"}, series)["limit"] == history.DEFAULT_RANGE  # type: ignore[index]


async def test_the_history_of_a_branch_is_a_permalink(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/history?scenario=stop-one&branch=feature/faster&y=log")
    assert page.count('href="/trials/t-stop-one-') == 6 * 5 and "<option selected>feature/faster</option>" in page
    assert "branch=feature%2Ffaster&view=phases&y=log" in page and '<input type="hidden" name="y" value="log">' in page
    assert "/api/v1/history/file?scenario=stop-one&fault=stop&metric=recovery&branch=feature%2Ffaster" in page
    assert "There is no branch 'gone'" in await body(pages, "/history?branch=gone", 404)


async def test_an_unknown_scenario_is_said_in_words(pages: httpx.AsyncClient) -> None:
    assert "There is no history of 'nope'" in await body(pages, "/history?scenario=nope", 404)


async def test_a_comparison_shows_ratio_interval_verdict_and_points(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/compare?base=aaaaaaaaaaaa&head=bbbbbbbbbbbb")
    assert "×1.24" in page and "[1.17, 1.33]" in page and "confirmed" in page
    assert "head was measured with uncommitted changes" in page
    assert "9/10 → 9/10" in page and "To decide it takes about 34 trials on each side." in page
    assert page.count('class="lane strip"') == 6 and "✗" in page
    assert "phoenix compare --ab A B --scenario stop-one" in page
    assert page.index("What decides") < page.index("detect"), "phases explain and stand below"


async def test_a_revision_without_trials_is_said_in_words(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/compare?base=nothing&head=main")
    assert "no trial of 'nothing' is known" in page and "What there is to compare" in page


async def test_the_heatmap_has_a_column_for_each_session(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/heatmap")
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", page, re.DOTALL)
    assert [row.count("<td") for row in rows] == [30, 30]
    assert rows[0].count("heat-failed") == 1 and "heat-6" in rows[1]
    assert "heat-6" not in rows[1].split("</td>")[25], "another machine has a level of its own"


async def test_regressions_are_open_until_they_are_over(api: FakeApi, pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/regressions?show=all")
    assert "other machine or scenario since" in page and "open (0)" in page, "nobody can say whether it is so still"
    assert "slower until another machine or scenario came" in page
    assert "Of 1 change nobody can say whether it is so still" in await body(pages, "/regressions")
    api.machine_changed = False
    page = await body(pages, "/regressions")
    assert "stop-one" in page and "+25 %" in page and "✗ open" in page and "kill-one" not in page.split("<main")[1]


async def test_a_fault_that_a_scenario_has_no_more_is_nobodys_regression(
    api: FakeApi, pages: httpx.AsyncClient
) -> None:
    api.machine_changed = False
    assert "stop-one became slower" in await body(pages, "/") and "open (1)" in await body(pages, "/regressions")
    api.series["items"][1]["current"] = False
    page = await body(pages, "/")
    assert "stop-one became slower" not in page and page.count("<polyline") == 1
    page = await body(pages, "/regressions?show=all")
    assert "open (0)" in page and "other machine or scenario since" in page


async def test_what_was_decided_about_a_regression_stands_with_it(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.machine_changed = False
    page = await body(pages, "/regressions")
    (code,) = re.findall(r'name="code" value="([0-9a-f]+)"', page)
    assert ">new</span>" in page and "open (1)" in page and 'data-post="/api/v1/triage"' in page
    api.lists["triage"] = [fake_service.triage("acknowledged", code)]
    page = await body(pages, "/regressions")
    assert "open (1, 0 new)" in page and "copies are verified now" in page and "owner eve" in page
    assert 'href="https://bugs.example/7"' in page and "How it came to that" in page
    assert "1 of 4 decisions in the last 90 days" in page
    api.lists["triage"] = [fake_service.triage("resolved", code)]
    assert "resolved, but as slow still: verify" in await body(pages, "/regressions")
    for state, words in (("wont_fix", "won't fix"), ("false_alarm", "false alarm")):
        api.lists["triage"] = [fake_service.triage(state, code)]
        assert "Nothing is slower than it was" in await body(pages, "/regressions")
        page = await body(pages, "/regressions?show=all")
        assert "open (0)" in page and f">{words}</span>" in page
    api.machine_changed = True
    api.lists["triage"] = [fake_service.triage("resolved", code)]
    assert ">fixed</span>" in await body(pages, "/regressions?show=all")
    api.session = {**api.session, "role": "viewer"}
    assert "/api/v1/triage" not in await body(pages, "/regressions?show=all")


async def test_a_trial_stands_beside_the_baseline(api: FakeApi, pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/trials/t-r1")
    assert "+12 % against the baseline" in page and "the median of 12 trials of it" in page
    killed, frozen = re.findall(r'<tr><th scope="row"><a href="#recovery-.*?</tr>', page, re.DOTALL)
    assert re.findall(r"[+−±]\d+ %", killed) == ["+12 %", "+25 %", "+5 %", "+7 %", "+18 %", "+8 %", "−3 %", "+5 %"]
    assert " %" not in frozen, "the baseline has no such fault"
    assert 'data-post="/api/v1/baselines"' in page and "/compare?base=baseline&head=9f2c41d7a" in page
    api.beside |= {"medians": {}, "trials": 0, "why_not": "it was measured on another machine"}
    assert "stands beside it: it was measured on another machine" in await body(pages, "/trials/t-r1")
    api.beside |= {"baseline": {**api.beside["baseline"], "code": api.beside["code"]}}
    page = await body(pages, "/trials/t-r1")
    assert "This trial is one of it." in page and "/api/v1/baselines" not in page
    api.beside |= {"baseline": None}
    assert "kill-in-backward has none." in await body(pages, "/trials/t-r1")


async def test_the_fault_console_strikes_the_run_that_trains(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.kinds[1] |= {"supported": False, "unsupported_reason": "no permission to stop processes"}
    api.faults[1] |= {"ttl_s": 60.0}
    page = await body(pages, "/faults")
    assert 'data-post="/api/v1/runs/r3/faults"' in page and "1 of 2 kinds" in page
    assert "Freeze process (not on this host)" in page and "no permission to stop processes" in page
    assert page.count(">Take back<") == 1, "what lasts can be taken back; a kill cannot"
    for phase in ("forward", "backward", "gradient_sync", "optimizer", "reconstruct"):
        assert f"<option>{phase}</option>" in page


async def test_without_a_run_the_console_says_how_to_get_one(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.runs = []
    page = await body(pages, "/faults")
    assert "No run trains now" in page and "phoenix inject process_kill --rank 2 --dry-run" in page


async def test_schedules_say_when_what_and_what_became_of_it(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/schedules")
    assert "0 2 * * * (Europe/Berlin)" in page and "02:00 CET" in page and "nightly, 5 trials" in page
    assert "every 6 h 0 min" in page and "Paused: the machine is lent" in page
    assert "bench-2" in page and "gone" in page


async def test_a_schedule_that_is_never_due_again_is_over_and_not_paused(
    api: FakeApi, pages: httpx.AsyncClient
) -> None:
    past = {"kind": "once", "at": iso(-7200), "cron": None, "next_due": None, "next_due_local": None}
    api.lists["schedules"] = [{**api.lists["schedules"][0], **past}]
    assert "<strong>over</strong>" in await body(pages, "/schedules")
    assert "each schedule is over or paused" in await body(pages, "/")
    api.lists["schedules"][0]["paused"] = True
    assert "all schedules are paused" in await body(pages, "/")


async def test_machines_say_where_they_differ_and_what_their_noise_costs(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/machines")
    assert "EPYC 7B13" in page and page.count("≠") == 1
    assert "8.0 %" in page and "more than 1000" in page and ">18<" in page


async def test_settings_show_tokens_without_their_secret(pages: httpx.AsyncClient) -> None:
    page = await body(pages, "/settings")
    assert "valid" in page and "expired" in page and "revoked" in page and "1 h ago" in page
    assert "the team's chat" in page and "the receiver said 503" in page
    assert "run.submit" in page


async def test_a_viewer_sees_no_form_that_would_be_refused(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.session |= {"role": "viewer", "required": True, "name": "guest"}
    api.forbidden = {"tokens", "webhooks", "audit"}
    for path in VIEWS:
        page = await body(pages, path)
        assert re.findall(r'data-(?:post|delete)="([^"]+)"', page) in ([], ["/api/v1/session"], ["/api/v1/session"] * 2)
    assert "needs the role admin" in await body(pages, "/settings")


async def test_who_has_not_signed_in_is_sent_to_do_so_and_comes_back(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.session |= {"role": None, "required": True, "authenticated": False, "name": None}
    answer = await pages.get("/history?scenario=stop-one")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fhistory%3Fscenario%3Dstop-one")
    page = await body(pages, answer.headers["location"])
    assert 'data-follow="/history?scenario=stop-one"' in page
    for evil in ("//evil.example", "/\\evil.example", "https:%2F%2Fevil.example"):
        assert 'data-follow="/"' in await body(pages, f"/login?next={evil}")


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/", "phoenix demo"),
        ("/runs", "phoenix serve"),
        ("/history", "curl -X POST http://pages/api/v1/runs"),
        ("/heatmap", "curl -X POST http://pages/api/v1/runs"),
        ("/compare", "phoenix compare --ab main HEAD"),
        ("/regressions", "/schedules#new"),
        ("/faults", "phoenix inject"),
        ("/schedules", "curl -X POST http://pages/api/v1/schedules"),
        ("/machines", "phoenix doctor"),
        ("/settings", "phoenix tokens create"),
    ],
)
async def test_an_empty_view_says_what_fills_it(
    api: FakeApi, pages: httpx.AsyncClient, path: str, command: str
) -> None:
    api.runs, api.series = [], {"items": [], "codes": [], "branches": [], "machines": []}
    api.lists = {name: [] for name in api.lists}
    assert command in await body(pages, path)


async def test_made_up_data_is_called_so(api: FakeApi, pages: httpx.AsyncClient) -> None:
    assert "Made-up data" not in await body(pages, "/runs")
    for run in api.runs:
        run["seeded"] = True
    api.series["seeded"] = True
    for path in ("/", "/runs", "/runs/r3", "/trials/t-r3", "/history", "/heatmap", "/regressions", "/machines"):
        assert "Made-up data" in await body(pages, path), path
    assert "Made-up data" in await body(pages, "/compare?base=aaaaaaaaaaaa&head=bbbbbbbbbbbb")


async def test_a_page_that_the_service_refuses_says_so(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.broken = {"schedules": problem(500, "Broken", "the disk is full")}
    assert "the disk is full" in await body(pages, "/schedules", 502)


async def test_faults_can_be_halted_from_where_something_went_wrong(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.broken = {"schedules": problem(422, "Invalid", "no such cursor"), "suites": problem(500, "Broken", "disk")}
    for path, status in (("/runs/nope", 404), ("/schedules", 422), ("/runs", 502), ("/nope", 404)):
        page = await body(pages, path, status)
        assert "Halt now" in page, path
        assert page.split("</nav>")[0].count('aria-current="page"') == (path != "/nope")
    api.session |= {"role": "viewer"}
    assert "Halt now" not in await body(pages, "/runs/nope", 404)
    api.broken["session"] = problem(500, "Broken", "the database is gone")
    assert "no run 'nope'" in await body(pages, "/runs/nope", 404)


async def test_a_run_of_a_suite_leads_to_the_runs_of_it(api: FakeApi, pages: httpx.AsyncClient) -> None:
    api.runs[1]["suite"] = "nightly"
    page = await body(pages, "/runs?state=FINISHED")
    assert 'href="/runs?state=FINISHED&suite=nightly">nightly</a>' in page
    assert 'href="/runs?state=FINISHED&scenario=kill-in-backward">kill-in-backward</a>' in page
    assert page.index(">Verdict</th>") < page.index(">State</th>") < page.index(">Run</th>")


async def test_peers_shows_what_was_published_and_else_how_to_measure_it(
    api: FakeApi, pages: httpx.AsyncClient
) -> None:
    page = await body(pages, "/peers")
    for said in (
        "Test CPU, 2 cores",
        "python -m benchmarks.peers",
        "never whole (nobody ends",
        "0.61 s (0.58-0.66) n=5",
    ):
        assert said in page
    assert 'src="/api/v1/peers/plot"' in page
    api.peers = None
    assert '<pre tabindex="0">make bench-peers</pre>' in await body(pages, "/peers")
