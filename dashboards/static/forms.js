// Forms that send JSON to the REST API and say what it answered.
//
//   <form data-post="/api/v1/..."> (or data-delete)   data-answer   id of the element for the answer
//   data-said    what to say when it worked             data-follow   where to go then
//   data-follow-id  adds the answer's id to that        data-once    a field of the answer that is shown now and never again
// A field's name is its place in the body: `run.trials` goes into the object `run`, `events[]` into a list. Empty fields
// are left to the service's defaults; data-type says what a text stands for.

import { all, find, show } from "./dom.js";
import { arrange, faultBody, outcome, prepareFaultForm } from "./faultform.js";

export function prepareForms(root = document) {
  for (const form of all("form[method=get]", root)) form.addEventListener("formdata", withoutEmpty);
  for (const form of all("form[data-post], form[data-delete]", root)) {
    form.addEventListener("submit", send);
    if (form.id === "fault-form") prepareFaultForm(form);
    for (const picker of all("select[data-shows]", form)) {
      picker.addEventListener("input", () => choose(form, picker));
      choose(form, picker);
    }
  }
}

/** What is not chosen has no place in the address that a form leads to. */
function withoutEmpty({ formData }) {
  for (const [name, value] of [...formData]) if (value === "") formData.delete(name);
}

/** Of the parts of a form that belong to one choice each, show the chosen one; the others do not count. */
function choose(form, picker) {
  for (const part of all(`[data-when="${picker.dataset.shows}"]`, form)) {
    part.hidden = part.dataset.value !== picker.value;
    all("input, select", part).forEach((field) => { field.disabled = part.hidden; });
  }
}

export function typed(field) {
  const text = field.value.trim(), type = field.dataset.type;
  if (type === "integer" || type === "number") return Number(text);
  if (type === "boolean") return text === "true";
  if (type === "moment") return new Date(text).toISOString();
  return type === "json" ? JSON.parse(text) : text;
}

function plainBody(form) {
  const body = {};
  for (const field of all("[name]:not(:disabled)", form)) {
    if (field.type === "checkbox" ? !field.checked : field.value.trim() === "") continue;
    const path = field.name.split(".");
    const last = path.pop(), inner = path.reduce((object, part) => (object[part] ??= {}), body);
    if (last.endsWith("[]")) (inner[last.slice(0, -2)] ??= []).push(typed(field));
    else if (last === "target") Object.assign(inner, targetOf(field.value)); // "suite:nightly", "scenario:kill-one"
    else inner[last] = typed(field);
  }
  return body;
}

function targetOf(value) {
  const [kind, name] = [value.slice(0, value.indexOf(":")), value.slice(value.indexOf(":") + 1)];
  return kind === "suite" ? { suite: name } : { scenario_name: name };
}

async function send(event) {
  event.preventDefault();
  const form = event.target, isFault = form.id === "fault-form", dryRun = event.submitter?.value === "dry";
  const place = document.getElementById(form.dataset.answer);
  const buttons = all("button[type=submit]", form);
  buttons.forEach((button) => { button.disabled = true; });
  try {
    const body = isFault ? faultBody(form, dryRun) : { ...plainBody(form), ...(dryRun ? { dry_run: true } : {}) };
    const answer = await ask(form, body);
    const said = await answer.json().catch(() => ({}));
    if (!answer.ok) showProblem(place, answer.status, said);
    else if (form.dataset.follow) location.assign(form.dataset.follow + ("followId" in form.dataset ? encodeURIComponent(said.id) : ""));
    else if (form.dataset.once) show(place, "good", "Copy it now, it is not shown again:", said[form.dataset.once]);
    else show(place, "good", dryRun ? "Dry run" : "Done", dryRun || isFault ? outcome(said, dryRun) : form.dataset.said || "");
    if (answer.ok && !dryRun) document.dispatchEvent(new Event("changed"));
  } catch (error) {
    show(place, "bad", "Not sent", `The service could not be reached (${error.message}). Nothing was changed as far as this page knows.`);
  }
  buttons.forEach((button) => { button.disabled = false; });
  if (isFault) arrange(form);
}

function ask(form, body) {
  const csrf = find("meta[name=csrf-token]")?.content;
  const headers = { "Content-Type": "application/json", ...(csrf ? { "X-CSRF-Token": csrf } : {}) };
  if (form.dataset.delete) return fetch(form.dataset.delete, { method: "DELETE", headers });
  headers["Idempotency-Key"] = newKey();
  return fetch(form.dataset.post, { method: "POST", headers, body: JSON.stringify(body) });
}

/** A key per press of the button: what a proxy or a browser repeats counts once. randomUUID needs https or loopback. */
const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

function showProblem(place, status, problem) {
  const detail = typeof problem.detail === "string" ? problem.detail : "The service gave no reason.";
  const fields = (Array.isArray(problem.errors) ? problem.errors : []).map((error) => [error.field, error.message].filter(Boolean).join(": "));
  show(place, "bad", `${problem.title || "Refused"} (${status})`, detail, fields.filter((text) => text && !detail.includes(text)));
}
