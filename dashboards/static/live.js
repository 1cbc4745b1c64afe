// Keeps a page true while one looks at it.
//
// The server renders a page whole; to bring it up to date the script fetches the same page again and swaps
// the parts marked `data-live` that changed. So nothing is rendered in two languages, and a page that lost
// its script still shows the truth of the moment at which it was loaded.

import { drawCharts } from "./charts.js";
import { all, find, say } from "./dom.js";
import { prepareForms } from "./forms.js";

const REFRESH_MS = 1000; // at most this often, however fast events come
const COST_FACTOR = 4; // and never more than a fifth of the time: a slow service must not be kept busy by its pages
const STREAMED = ["world_formed", "failure_detected", "spare_assigned", "generation_resumed", "spare_parked", "job_finished",
  "worker_spawned", "worker_exited", "step_committed", "state_restored", "fault_injected", "fault_missed", "fault_reverted",
  "trial_phase"];
const RECONNECT_MS = [1000, 2000, 5000, 10000];

let refreshing = false, refreshAgain = false, nextRefresh = 0, timer = 0;

/** Ask for a refresh: soon, not at once for each of a thousand events, and not while nobody looks. */
export function stale() {
  if (document.hidden || refreshing) { refreshAgain = true; return; }
  if (!timer) timer = setTimeout(refresh, Math.max(0, nextRefresh - performance.now()));
}

async function refresh() {
  const began = performance.now();
  timer = 0; refreshing = true; refreshAgain = false;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.redirected) location.reload(); // signed out meanwhile
    else if (answer.ok) swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
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
    keepWhatIsOurs(part, update);
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

/** What a form here has answered is not the server's to take back: it stays through an update. */
function keepWhatIsOurs(part, update) {
  for (const place of all(".answer[id]", part)) {
    find(`#${CSS.escape(place.id)}`, update)?.replaceChildren(...[...place.childNodes].map((node) => node.cloneNode(true)));
  }
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
  const typed = all("input[id], textarea[id]", part).filter((field) => field.value !== field.defaultValue);
  const scrolls = all(".scroll", part).map((element) => [element.scrollLeft, element.scrollTop]);
  part.replaceChildren(...update.childNodes);
  if (update.dataset.key !== undefined) part.dataset.key = update.dataset.key;
  open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
  for (const { id, value } of typed) {
    const field = document.getElementById(id);
    if (field && field.type !== "hidden") field.value = value;
  }
  all(".scroll", part).forEach((element, i) => { if (scrolls[i]) [element.scrollLeft, element.scrollTop] = scrolls[i]; });
  if (focused !== null) all(FOCUSED, part)[focused]?.focus({ preventScroll: true });
  prepareForms(part);
}

const FOCUSED = "a, summary, button, input, textarea, select, [tabindex]";
const focusPath = (part, element) => Math.max(0, all(FOCUSED, part).indexOf(element));

// --- the event stream of a run -----------------------------------------------------------------------------------

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
  document.body.dataset.streamed = "to the end";
}

export function prepareLive() {
  document.addEventListener("visibilitychange", () => { if (!document.hidden && refreshAgain) stale(); });
  document.addEventListener("changed", stale); // a form of this page changed something
  if (document.body.dataset.stream) connect();
  if (document.body.dataset.poll) setInterval(stale, Number(document.body.dataset.poll));
}
