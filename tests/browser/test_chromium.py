"""The pages in a real browser, in both widths and themes; see conftest for what none of them may do."""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest
from playwright.sync_api import expect

from tests.browser import fake_service
from tests.browser.conftest import Site, Watched
from tests.browser.fake_api import problem, step_json
from tests.browser.views import VIEWS

pytestmark = pytest.mark.browser

# What a page does is tried once wide and once narrow; how it looks, in all four of the fixture's cases.
once = pytest.mark.parametrize("watched", [(1280, "light")], indirect=True, ids=["wide"])
twice = pytest.mark.parametrize("watched", [(1280, "light"), (390, "dark")], indirect=True, ids=["wide", "narrow"])


@once
@pytest.mark.parametrize("path", VIEWS)
def test_every_view_fits_and_can_be_read(watched: Watched, path: str) -> None:
    """In both widths and both themes, without loading it anew: nothing may depend on how a view was first seen."""
    page = watched.open(path)
    expect(page.locator("h1")).to_be_attached()
    for chart in page.locator(".chart").all():
        expect(chart.locator(".main-svg").first).to_be_visible()
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        watched.until(lambda: watched.overflow() == 0, f"the page fits {width} px")
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            assert page.evaluate(CONTRAST) == [], f"{theme} at {width} px"
    page.set_viewport_size({"width": 760, "height": 900})
    page.emulate_media(media="print")
    watched.until(lambda: watched.overflow() == 0, "the page fits on paper")
    assert page.locator("form:visible").count() == 0, "nobody fills in a printed form"


@twice
def test_the_chart_is_drawn_with_its_points_and_faults(watched: Watched) -> None:
    page = watched.open("/runs/r3")
    chart = page.locator(".chart")
    expect(chart.locator(".annotation-text")).to_have_text(["1", "2"])
    curve = chart.locator(".scatterlayer .trace .js-line").first.get_attribute("d") or ""
    assert len(re.findall(r"[MLHV]", curve)) > 60, "the curve is a path of the run's points"
    expect(chart.locator(".xtitle")).to_have_text("seconds since the run started")
    assert chart.locator(".trace .point").count() >= 2
    assert watched.overflow() == 0


@once
def test_the_table_of_faults_is_not_cut(watched: Watched, site: Site) -> None:
    site.api.faults[0] |= {"trigger": {"phase": "gradient_sync", "step": 120, "occurrence": 3}, "state": "REQUESTED"}
    table = watched.open("/runs/r3").locator("#faults .scroll")
    expect(table).to_be_visible()
    assert table.evaluate("e => e.scrollWidth - e.clientWidth") == 0


@once
def test_a_table_that_is_cut_shows_a_shade(watched: Watched) -> None:
    table = watched.open("/runs/r3").locator("#recoveries .scroll").first
    expect(table).to_have_css("background-attachment", "local, local, scroll, scroll")


@twice
def test_a_step_appears_without_a_reload(watched: Watched, site: Site) -> None:
    page = watched.open("/runs/r3")
    expect(page.locator(".chart .main-svg").first).to_be_visible()
    page.evaluate("window.stays = true")
    page.locator("#loss-table summary").click()
    wait_for_stream(watched, site)
    site.api.steps.append(step_json(130))
    site.api.runs[0] |= {"step": 199, "part": "twin"}
    site.api.push({"offset": 1, "kind": "step_committed", "step": 130})
    expect(page.locator("#heading")).to_contain_text("200 of 200 steps committed · undisturbed twin")
    expect(page.locator("#announcement")).to_contain_text("100 percent")
    expect(page.locator("#loss-table")).to_have_attribute("open", "")
    points = page.evaluate("document.querySelector('.chart').data[0].x.length")
    assert points == 131
    assert page.evaluate("window.stays") is True


@once
def test_the_stream_is_taken_up_again_and_ends_with_the_run(watched: Watched, site: Site) -> None:
    page = watched.open("/runs/r3")
    wait_for_stream(watched, site)
    first = set(site.api.streams)
    site.api.push(None)
    wait_for_stream(watched, site, other_than=first)
    site.api.runs[0] |= {"state": "FINISHED", "verdict": "PASS", "part": "done", "step": 199}
    site.api.push({"offset": 2, "kind": "job_finished"})
    expect(page.locator("#heading")).to_contain_text("PASS")
    expect(page.locator("#inject")).to_contain_text("nothing left to strike")
    expect(page.locator("body")).to_have_attribute("data-streamed", "to the end")


def wait_for_stream(watched: Watched, site: Site, other_than: Collection[object] = ()) -> None:
    watched.until(lambda: any(stream not in other_than for stream in site.api.streams), "the page opens a stream")


@twice
def test_the_form_posts_what_it_says(watched: Watched, site: Site) -> None:
    page = watched.open("/runs/r3")
    page.get_by_label("Fault", exact=True).select_option("process_stop")
    expect(page.get_by_text("A spare")).to_be_hidden()
    page.get_by_label("Seconds until it is resumed").fill("12.5")
    page.get_by_label("Rank", exact=True).select_option("3")
    page.get_by_label("On entering a phase").check()
    page.get_by_label("Phase", exact=True).select_option("backward")
    page.get_by_label("of step").fill("150")
    page.get_by_label("Reason (kept with the run)").fill("does it's work?")
    page.locator("#fault-curl summary").click()
    expect(page.locator("#fault-curl pre")).to_contain_text('"trigger":{"phase":"backward","step":150,"occurrence":1}')
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator("#fault-answer")).to_contain_text("would kill w4 (rank 2, pid 41011)")
    page.get_by_role("button", name="Inject fault").click()
    expect(page.locator("#fault-answer")).to_contain_text("Fault f3 is requested: process_stop.")
    (_, dry_headers, dry), (path, headers, wet) = site.api.posted
    assert path == "/api/v1/runs/r3/faults"
    assert wet == {
        "kind": "process_stop",
        "target": {"rank": 3},
        "trigger": {"phase": "backward", "step": 150, "occurrence": 1},
        "params": {"ttl_s": 12.5},
        "reason": "does it's work?",
        "dry_run": False,
    }
    assert dry == {**wet, "dry_run": True}
    assert re.fullmatch(r"[0-9a-f]{32}", headers["idempotency-key"])
    assert headers["idempotency-key"] != dry_headers["idempotency-key"]


@pytest.mark.parametrize(
    ("choose", "trigger"),
    [
        ([], {"now": True}),
        ([("At a step", "Step", "20")], {"at_step": 20}),
        ([("After seconds", "Seconds from now", "1.5")], {"after_s": 1.5}),
    ],
)
@once
def test_each_trigger_and_target(
    watched: Watched, site: Site, choose: list[tuple[str, str, str]], trigger: dict[str, object]
) -> None:
    page = watched.open("/runs/r3")
    page.get_by_label("A spare").check()
    for radio, name, value in choose:
        page.get_by_label(radio).check()
        page.get_by_label(name, exact=True).fill(value)
    page.get_by_role("button", name="Inject fault").click()
    expect(page.locator("#fault-answer")).to_contain_text("is requested")
    body = site.api.posted[0][2]
    assert (body["kind"], body["target"], body["trigger"], body["params"]) == (
        "process_kill",
        {"spare": True},
        trigger,
        {},
    )


@twice
def test_a_refused_fault_is_told_in_words(watched: Watched, site: Site) -> None:
    errors = [{"field": "target.rank", "message": "rank 7 does not exist: ranks are 0..3"}]
    site.api.refusal = problem(422, "Unprocessable Content", "the fault cannot be injected", errors=errors)
    page = watched.open("/runs/r3")
    page.get_by_role("button", name="Inject fault").click()
    answer = page.locator("#fault-answer")
    expect(answer).to_contain_text("Unprocessable Content (422) the fault cannot be injected")
    expect(answer.locator("li")).to_have_text("target.rank: rank 7 does not exist: ranks are 0..3")
    expect(page.get_by_role("button", name="Inject fault")).to_be_enabled()
    # Chromium itself writes a line into the console for each answer of 4xx; that is no error of the page.
    watched.complaints[:] = [line for line in watched.complaints if "status of 422" not in line]


@once
def test_a_run_is_started_and_opened(watched: Watched, site: Site) -> None:
    page = watched.open("/runs")
    page.get_by_label("Scenario", exact=True).select_option("kill-in-backward")
    page.get_by_role("button", name="Start a run").click()
    page.wait_for_url("**/runs/r3")
    assert site.api.posted[0][2] == {"scenario_name": "kill-in-backward"}


@twice
def test_a_run_is_cancelled_with_a_reason(watched: Watched, site: Site) -> None:
    page = watched.open("/runs/r3")
    page.get_by_text("Cancel this run").click()
    page.locator("#cancel-reason").fill("wrong seed")
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.locator("#cancel-answer")).to_contain_text("The run is being ended.")
    assert (site.api.posted[0][0], site.api.posted[0][2]) == ("/api/v1/runs/r3/cancel", {"reason": "wrong seed"})


@once
def test_the_theme_is_chosen_and_kept(watched: Watched) -> None:
    page = watched.open("/runs/r3")
    expect(page.locator(".chart .main-svg").first).to_be_visible()
    button = page.locator("#theme")
    for theme, background in (("light", "rgb(245, 246, 248)"), ("dark", "rgb(14, 18, 23)")):
        button.click()
        expect(button).to_have_text(f"Theme: {theme}")
        expect(page.locator("body")).to_have_css("background-color", background)
    line = page.locator(".chart .js-line").first
    expect(line).to_have_css("stroke", "rgb(111, 179, 245)")
    page.reload()
    expect(page.locator("body")).to_have_css("background-color", "rgb(14, 18, 23)")


@once
def test_by_keyboard_alone_one_reaches_the_content(watched: Watched) -> None:
    page = watched.open("/")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"


CONTRAST = """() => {
  const linear = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  // What is mixed of two colours is told in parts of one, everything else in parts of 255.
  const scale = (text) => (text.startsWith("color(") ? 255 : 1);
  const rgb = (text) => text.match(/[\\d.]+/g).map((v, i) => Number(v) * (i < 3 ? scale(text) : 1));
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0.99) return c;
    }
    return [255, 255, 255];
  };
  const speaks = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())
    && e.checkVisibility() && !e.matches("option, :disabled, svg *");
  const ratio = (e) => {
    const [a, b] = [luminance(rgb(getComputedStyle(e).color)), luminance(behind(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const all = [...document.querySelectorAll("main *, header *")].filter(speaks);
  return all.filter((e) => ratio(e) < 4.5).map((e) => e.outerHTML.slice(0, 80));
}"""


@once
def test_a_trial_of_the_history_is_a_click_away(watched: Watched) -> None:
    page = watched.open("/history?scenario=stop-one")
    expect(page.locator(".chart .main-svg").first).to_be_visible()
    dots = page.locator(".chart .scatterlayer .trace").first.locator(".point")
    expect(dots).to_have_count(150)
    expect(page.locator(".chart .annotation-text")).to_have_text(["+25 %", "other machine", "note"])
    page.evaluate("document.querySelector('.chart').emit('plotly_click', {points: [{customdata: '/trials/t-r1'}]})")
    page.wait_for_url("**/trials/t-r1")


@twice
def test_all_faults_are_halted_from_any_page(watched: Watched, site: Site) -> None:
    page = watched.open("/machines")
    page.get_by_text("Halt faults").click()
    reason = page.get_by_label("Reason", exact=True)
    reason.fill("the switch is being replaced")
    assert watched.overflow() == 0
    assert reason.evaluate("field => field.offsetWidth") > 150, "what was written can be read"
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator("#halt-answer")).to_contain_text(
        "Taken back: process_stop on w1 (r3). Withdrawn: process_kill (r3)."
    )
    site.api.lists["halts"] = [fake_service.halt()]
    page.get_by_role("button", name="Halt now").click()
    expect(page.locator("#frame-notes")).to_contain_text("Faults are halted")
    (_, _, dry), (path, _, wet) = site.api.posted
    assert (path, wet) == ("/api/v1/halts", {"reason": "the switch is being replaced"})
    assert dry == {**wet, "dry_run": True}


@once
def test_a_halt_is_released_with_a_reason(watched: Watched, site: Site) -> None:
    site.api.lists["halts"] = [fake_service.halt()]
    page = watched.open("/faults")
    page.get_by_label("Reason for the release").fill("it is replaced")
    update = "document.dispatchEvent(new Event('changed'))"
    site.api.lists["halts"] = [fake_service.halt(by="grace")]
    page.evaluate(update)
    expect(page.locator("#halts")).to_contain_text("by grace")
    page.get_by_role("button", name="Release the halt").click()
    expect(page.locator("#release-answer")).to_contain_text("Released")
    assert site.api.posted[0][0] == "/api/v1/halts/h1/release"
    site.api.lists["halts"] = [fake_service.halt(active=False)]
    page.evaluate(update)
    expect(page.get_by_label("Reason for the release")).to_have_count(0)
    expect(page.locator("#release-answer")).to_contain_text("Released")


@once
def test_a_fault_in_a_recovery_and_faults_at_random(watched: Watched, site: Site) -> None:
    site.api.kinds[0]["triggers"] = ["now", "recovery_phase", "poisson", "trace"]
    site.api.kinds[0]["targets"] = ["node"]
    page = watched.open("/faults")
    page.get_by_label("All of a node").check()
    page.get_by_label("Node", exact=True).select_option("n2")
    page.get_by_label("In a recovery").check()
    page.get_by_label("Phase of the recovery").select_option("restore")
    page.get_by_role("button", name="Inject fault").click()
    expect(page.locator("#fault-answer")).to_contain_text("is requested")
    page.get_by_label("At random").check()
    page.get_by_role("button", name="Inject fault").click()
    page.get_by_label("At given times").check()
    page.get_by_label("Seconds, separated by commas").fill("1.5, 9")
    page.get_by_role("button", name="Inject fault").click()
    expect(page.locator("button:disabled")).to_have_count(0)
    assert [(body["target"], body["trigger"]) for _, _, body in site.api.posted] == [
        ({"node": "n2"}, {"recovery_phase": "restore"}),
        ({"node": "n2"}, {"poisson": {"mtbf_s": 30, "count": 3}}),
        ({"node": "n2"}, {"trace": [1.5, 9]}),
    ]


@once
def test_a_schedule_is_made(watched: Watched, site: Site) -> None:
    page = watched.open("/schedules")
    page.get_by_label("Name").fill("weekly")
    page.get_by_label("Runs", exact=True).select_option("suite:nightly")
    page.get_by_label("Trials of it each time").fill("5")
    page.get_by_label("Cron expression").fill("0 3 * * 0")
    page.get_by_role("button", name="Make it").click()
    expect(page.locator("#new-answer")).to_contain_text("It stands in the list.")
    page.get_by_label("When").select_option("interval")
    expect(page.get_by_label("Cron expression")).to_be_hidden()
    page.get_by_label("Seconds between two").fill("7200")
    page.get_by_role("button", name="Make it").click()
    expect(page.locator("button:disabled")).to_have_count(0)
    cron, interval = (body for _, _, body in site.api.posted)
    shared = {"name": "weekly", "run": {"suite": "nightly", "trials": 5}, "overlap": "skip"}
    assert cron == {**shared, "kind": "cron", "cron": "0 3 * * 0", "timezone": "UTC"}
    assert interval == {**shared, "kind": "interval", "every_s": 7200}


@once
def test_a_token_is_shown_once_and_changes_carry_the_csrf_value(watched: Watched, site: Site) -> None:
    site.api.session |= {"required": True, "csrf": "c5rf"}
    page = watched.open("/settings")
    page.get_by_label("Name", exact=True).fill("ci")
    page.get_by_label("Role").select_option("operator")
    page.locator("form[data-post='/api/v1/tokens'] button").click()
    expect(page.locator("#token-answer")).to_contain_text("phx_shown_once")
    path, headers, body = site.api.posted[0]
    assert (path, body) == ("/api/v1/tokens", {"name": "ci", "role": "operator"})
    assert headers["x-csrf-token"] == "c5rf"


@once
def test_signing_in_leads_back(watched: Watched, site: Site) -> None:
    page = watched.open("/login?next=%2Fmachines")
    page.get_by_label("Token", exact=True).fill("phx_secret")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/machines")
    assert site.api.posted[0][0] == "/api/v1/session"
    assert site.api.posted[0][2] == {"token": "phx_secret"}


@twice
def test_home_is_narrowed_and_stays_so(watched: Watched, site: Site) -> None:
    site.api.series["branches"].append("W" * 200)
    page = watched.open("/?verdict=PASS")
    page.locator(".narrow summary").click()
    page.get_by_label("Branch").select_option("main")
    page.get_by_label("Host").select_option("bench-1")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_url("**/?verdict=PASS&host=bench-1&branch=main")
    site.api.runs = []
    page.evaluate("document.dispatchEvent(new Event('changed'))")
    expect(page.locator("#home")).to_contain_text("Nothing runs now")
    expect(page.locator(".filters [aria-current]")).to_have_text(["PASS", "host bench-1 ×", "branch main ×"])
    page = watched.open(f"/?branch={'W' * 200}")
    watched.until(lambda: watched.overflow() == 0, "the page fits")


@once
def test_the_code_of_a_trial_becomes_the_baseline(watched: Watched, site: Site) -> None:
    page = watched.open("/trials/t-r1")
    page.get_by_label("Why").fill("the release")
    page.get_by_role("button", name="as baseline").click()
    expect(page.locator("#baseline-answer")).to_contain_text("It is the baseline of kill-in-backward from now on.")
    told = {"scenario": "kill-in-backward", "code": site.api.beside["code"], "reason": "the release"}
    assert site.api.posted[0][0::2] == ("/api/v1/baselines", told)


@once
def test_a_printed_page_is_light_and_has_no_forms(watched: Watched) -> None:
    page = watched.open("/faults")
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
    expect(page.locator("#fault-form")).to_be_hidden()
    expect(page.locator("#halt-menu")).to_be_hidden()


@once
def test_one_long_word_makes_no_page_wider(watched: Watched, site: Site) -> None:
    """Nobody's reasons, names and addresses have to hold a blank."""
    word = "W" * 900
    site.api.lists["halts"] = [fake_service.halt(reason=word)]
    site.api.lists["webhooks"][0] = {**site.api.lists["webhooks"][0], "url": f"https://{word}.example"}
    site.api.lists["schedules"][0] = {**site.api.lists["schedules"][0], "name": word[:100]}
    for path in ("/faults", "/schedules", "/settings"):
        page = watched.open(path)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            watched.until(lambda: watched.overflow() == 0, f"{path} fits {width} px")
