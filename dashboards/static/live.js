// What the pages do beyond being read: draw the chart, follow a run live, send forms, switch the theme.
//
// The server renders a page whole; to bring it up to date the script fetches the same page again and swaps
// the parts marked `data-live` that changed. So nothing is rendered in two languages, and a page that lost
// its script still shows the truth of the moment at which it was loaded.
"use strict";

const REFRESH_MS = 1000; // at most this often, however fast events come
const COST_FACTOR = 4; // and never more than a fifth of the time: a slow service must not be kept busy by its pages
const STREAMED = ["world_formed", "failure_detected", "spare_assigned", "generation_resumed", "spare_parked", "job_finished",
  "worker_spawned", "worker_exited", "step_committed", "state_restored", "fault_injected", "fault_missed", "fault_reverted",
  "trial_phase"];
const RECONNECT_MS = [1000, 2000, 5000, 10000];

const find = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// --- theme ---------------------------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];

function currentTheme() {
  return document.documentElement.dataset.theme || "auto";
}

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("theme", theme); } catch { /* not kept, then */ }
  showTheme();
  drawCharts();
}

function showTheme() {
  const button = find("#theme"), theme = currentTheme();
  button.textContent = `Theme: ${theme}`;
  button.setAttribute("aria-label", `Theme: ${theme === "auto" ? "as the system" : theme}. Change it.`);
}

// --- charts --------------------------------------------------------------------------------------------------

/** The colour that the style sheet gives `--name` now; the browser resolves light and dark. */
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

/** The figure with every "@name" replaced by the theme's colour. */
function coloured(value) {
  if (typeof value === "string") return value.startsWith("@") ? colour(value.slice(1)) : value;
  if (Array.isArray(value)) return value.some((part) => typeof part !== "number") ? value.map(coloured) : value;
  if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v)]));
  return value;
}

function drawCharts() {
  if (!window.Plotly) return; // not installed beside the service: the tables remain
  for (const chart of all("[data-figure]")) {
    const source = document.getElementById(chart.dataset.figure);
    if (!source) continue;
    const figure = coloured(JSON.parse(source.textContent));
    // A finger that scrolls the page must not draw a zoom box.
    if (matchMedia("(pointer: coarse)").matches) figure.layout.dragmode = false;
    find(".waiting", chart)?.remove();
    Plotly.react(chart, figure.data, figure.layout, { displayModeBar: false, responsive: true });
  }
}

// --- live parts ----------------------------------------------------------------------------------------------

let refreshing = false, refreshAgain = false, nextRefresh = 0, timer = 0;

/** Ask for a refresh: soon, not at once for each of a thousand events, and not while nobody looks. */
function stale() {
  if (document.hidden) { refreshAgain = true; return; }
  if (refreshing) { refreshAgain = true; return; }
  if (!timer) timer = setTimeout(refresh, Math.max(0, nextRefresh - performance.now()));
}

async function refresh() {
  const began = performance.now();
  timer = 0; refreshing = true; refreshAgain = false;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.ok) swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
    say(answer.ok ? "" : `The service answers ${answer.status}; showing what was known before.`);
  } catch {
    say("The service cannot be reached; showing what was known before.");
  }
  refreshing = false;
  nextRefresh = performance.now() + Math.max(REFRESH_MS, COST_FACTOR * (performance.now() - began));
  if (refreshAgain) stale();
}

function swap(fresh) {
  for (const part of all("[data-live]")) {
    const update = fresh.getElementById(part.id);
    if (!update) continue;
    const mode = part.dataset.live;
    if (mode === "text") {
      // The element stays, so that a screen reader hears the change, and only a change.
      if (part.textContent !== update.textContent) part.textContent = update.textContent;
    } else if (mode === "key" ? part.dataset.key !== update.dataset.key : !sameMarkup(part, update)) {
      replace(part, update);
    }
  }
  drawCharts();
  // The stream of a run that has ended says nothing more; closing it frees one of the browser's few connections.
  if (!fresh.body.dataset.stream) disconnect();
}

function sameMarkup(part, update) {
  // Which details are open is the reader's doing, not the server's.
  const open = all("details[open]", part);
  open.forEach((element) => element.removeAttribute("open"));
  const same = part.innerHTML === update.innerHTML;
  open.forEach((element) => element.setAttribute("open", ""));
  return same;
}

function replace(part, update) {
  const open = all("details[open]", part).map((element) => element.id);
  const focused = part.contains(document.activeElement) ? focusPath(part, document.activeElement) : null;
  const scrolls = all(".scroll", part).map((element) => [element.scrollLeft, element.scrollTop]);
  part.replaceChildren(...update.childNodes);
  if (update.dataset.key !== undefined) part.dataset.key = update.dataset.key;
  open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
  all(".scroll", part).forEach((element, i) => { if (scrolls[i]) [element.scrollLeft, element.scrollTop] = scrolls[i]; });
  if (focused !== null) all("a, summary, [tabindex]", part)[focused]?.focus({ preventScroll: true });
  prepareForms(part);
}

const focusPath = (part, element) => Math.max(0, all("a, summary, [tabindex]", part).indexOf(element));

function say(text) {
  const place = find("#connection");
  place.hidden = !text;
  if (place.textContent !== text) place.textContent = text;
}

// --- the event stream of a run ---------------------------------------------------------------------------------

let source = null, failures = 0, done = false;

function connect() {
  if (done) return;
  // Only what changes the page: the training phases alone are five events per step and rank.
  const kinds = STREAMED.map((kind) => `kind=${kind}`).join("&");
  source = new EventSource(`${document.body.dataset.stream}?${kinds}`);
  source.onopen = () => { failures = 0; say(""); stale(); };
  source.onmessage = stale;
  source.addEventListener("end", stale);
  source.onerror = () => {
    // The service closes the stream when the run ends, and when it stops itself: the page's own state tells which.
    stale();
    if (source.readyState !== EventSource.CLOSED) return; // the browser tries again by itself, from where it was
    source.close();
    setTimeout(connect, RECONNECT_MS[Math.min(failures++, RECONNECT_MS.length - 1)]);
  };
}

function disconnect() {
  done = true;
  source?.close();
}

// --- forms -----------------------------------------------------------------------------------------------------

function typed(input) {
  const text = input.value.trim(), type = input.dataset.type;
  if (type === "integer" || type === "number") return Number(text);
  if (type === "boolean") return text === "true";
  return type === "json" ? JSON.parse(text) : text;
}

/** The body of POST /runs/{id}/faults as the form stands now; empty fields are left to the service's defaults. */
function faultBody(form, dryRun) {
  const value = (name) => form.elements[name].value;
  const params = {};
  for (const input of all("fieldset[data-kind]:not([disabled]) [data-param]", form)) {
    if (input.value.trim() !== "") params[input.dataset.param] = typed(input);
  }
  const named = { rank: () => Number(value("rank")), node: () => value("node") };
  const target = { [value("target")]: (named[value("target")] ?? (() => true))() };
  const trigger = {
    now: () => ({ now: true }),
    at_step: () => ({ at_step: Number(value("at_step")) }),
    after_s: () => ({ after_s: Number(value("after_s")) }),
    phase: () => ({
      phase: value("phase"),
      ...(value("phase_step") === "" ? {} : { step: Number(value("phase_step")) }),
      occurrence: Number(value("occurrence") || 1),
    }),
  }[value("trigger")]();
  return { kind: value("kind"), target, trigger, params, reason: value("reason"), dry_run: dryRun };
}

const plainBody = (form) => Object.fromEntries(new FormData(form));

/** Show what belongs to the chosen kind, target and trigger; disabled fields neither hold up the form nor count. */
function arrange(form) {
  const kind = form.elements.kind.selectedOptions[0];
  if (!kind) return;
  for (const part of all("fieldset[data-kind]", form)) part.hidden = part.disabled = part.dataset.kind !== kind.value;
  for (const group of ["target", "trigger"]) {
    const allowed = kind.dataset[`${group}s`].split(" ");
    const radios = all(`input[name=${group}]`, form);
    for (const radio of radios) radio.disabled = !allowed.includes(radio.value);
    if (!radios.some((radio) => radio.checked && !radio.disabled)) radios.find((radio) => !radio.disabled).checked = true;
    for (const radio of radios) {
      const row = radio.closest(".choice");
      row.hidden = radio.disabled;
      all("input:not([type=radio]), select", row).forEach((input) => { input.disabled = !radio.checked; });
    }
  }
  let body;
  try { body = JSON.stringify(faultBody(form, false)); } catch { return; } // a JSON parameter that is half typed
  find("#fault-curl pre", form).textContent =
    `curl -X POST ${form.dataset.origin}${form.dataset.post} \\\n  -H 'Content-Type: application/json' \\\n  -d '${body.replaceAll("'", "'\\''")}'`;
}

function prepareForms(root = document) {
  for (const form of all("form[data-post]", root)) {
    form.addEventListener("submit", send);
    if (form.id !== "fault-form") continue;
    form.addEventListener("input", () => arrange(form));
    // Reaching for a choice's field chooses it: one click less, and nothing is typed in vain.
    form.addEventListener("pointerdown", (event) => {
      const radio = find("input[type=radio]", event.target.closest(".choice") || document.createElement("i"));
      if (radio && !radio.checked && event.target.matches(":disabled")) { radio.checked = true; arrange(form); }
    });
    arrange(form);
  }
}

async function send(event) {
  event.preventDefault();
  const form = event.target, isFault = form.id === "fault-form", dryRun = event.submitter?.value === "dry";
  const place = document.getElementById(form.dataset.answer);
  const buttons = all("button[type=submit]", form);
  buttons.forEach((button) => { button.disabled = true; });
  try {
    const body = isFault ? faultBody(form, dryRun) : plainBody(form);
    const headers = { "Content-Type": "application/json", "Idempotency-Key": newKey() };
    const answer = await fetch(form.dataset.post, { method: "POST", headers, body: JSON.stringify(body) });
    const said = await answer.json().catch(() => ({}));
    if (!answer.ok) showProblem(place, answer.status, said);
    else if (form.dataset.follow) location.assign(form.dataset.follow + encodeURIComponent(said.id));
    else show(place, "good", dryRun ? "Dry run" : "Accepted", isFault ? outcome(said, dryRun) : "The run is being ended.");
    if (answer.ok) stale();
  } catch (error) {
    show(place, "bad", "Not sent", `The service could not be reached (${error.message}). Nothing was changed as far as this page knows.`);
  }
  buttons.forEach((button) => { button.disabled = false; });
}

/** A key per press of the button: what a proxy or a browser repeats counts once. randomUUID needs https or loopback. */
const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

function outcome(said, dryRun) {
  if (!dryRun) return `Fault ${said.id} is ${String(said.state || "requested").toLowerCase()}: ${said.kind}.`;
  const would = said.would ?? {};
  return typeof would === "string" ? would : would.text ?? JSON.stringify(would);
}

function showProblem(place, status, problem) {
  const detail = typeof problem.detail === "string" ? problem.detail : "The service gave no reason.";
  const fields = (Array.isArray(problem.errors) ? problem.errors : []).map((error) => [error.field, error.message].filter(Boolean).join(": "));
  show(place, "bad", `${problem.title || "Refused"} (${status})`, detail, fields.filter((text) => text && !detail.includes(text)));
}

function show(place, tone, title, text, list = []) {
  const box = Object.assign(document.createElement("div"), { className: `note ${tone}` });
  box.append(Object.assign(document.createElement("strong"), { textContent: title }), " ", text);
  if (list.length) box.append(document.createElement("ul"));
  for (const item of list) box.lastChild.append(Object.assign(document.createElement("li"), { textContent: item }));
  place.replaceChildren(box);
}

// --- start -----------------------------------------------------------------------------------------------------

showTheme();
find("#theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length]));
for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", drawCharts);
document.addEventListener("visibilitychange", () => { if (!document.hidden && refreshAgain) stale(); });
prepareForms();
// Plotly is a deferred script after this one: it is there once the document is.
document.addEventListener("DOMContentLoaded", drawCharts);
if (document.body.dataset.stream) connect();
if (document.body.dataset.poll) setInterval(stale, Number(document.body.dataset.poll));
