// The fault form: its fields follow the chosen kind, and below it stands the same request for a shell.

import { all, find } from "./dom.js";
import { typed } from "./forms.js";

/** The body of POST /runs/{id}/faults as the form stands now; empty fields are left to the service's defaults. */
export function faultBody(form, dryRun) {
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
    recovery_phase: () => ({
      recovery_phase: value("recovery_phase"),
      ...(value("offset_s") === "" ? {} : { offset_s: Number(value("offset_s")) }),
    }),
    poisson: () => ({ poisson: { mtbf_s: Number(value("mtbf_s")), count: Number(value("count")) } }),
    trace: () => ({ trace: value("trace").split(",").map(Number) }),
  }[value("trigger")]();
  return { kind: value("kind"), target, trigger, params, reason: value("reason"), dry_run: dryRun };
}

/** Show what belongs to the chosen kind, target and trigger; disabled fields neither hold up the form nor count. */
export function arrange(form) {
  const kind = form.elements.kind.selectedOptions[0];
  if (!kind) return;
  for (const part of all("fieldset[data-kind]", form)) part.hidden = part.disabled = part.dataset.kind !== kind.value;
  find("button[value=inject]", form).disabled = Boolean(kind.dataset.unsupported);
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

export function prepareFaultForm(form) {
  form.addEventListener("input", () => arrange(form));
  // Reaching for a choice's field chooses it: one click less, and nothing is typed in vain.
  form.addEventListener("pointerdown", (event) => {
    const radio = find("input[type=radio]", event.target.closest(".choice") || document.createElement("i"));
    if (radio && !radio.checked && event.target.matches(":disabled")) { radio.checked = true; arrange(form); }
  });
  arrange(form);
}

export function outcome(said, dryRun) {
  if (!dryRun) return `Fault ${said.id} is ${String(said.state || "requested").toLowerCase()}: ${said.kind}.`;
  const would = said.would ?? {};
  if (Array.isArray(would.reverts)) return haltOutcome(would);
  return typeof would === "string" ? would : would.text ?? JSON.stringify(would);
}

function haltOutcome({ reverts, withdraws }) {
  const named = (list) => list.map((fault) => `${fault.kind}${fault.worker ? ` on ${fault.worker}` : ""} (${fault.run})`).join(", ");
  if (!reverts.length && !withdraws.length) return "No fault is applied or pending now; new ones would be refused.";
  return [["Taken back", reverts], ["Withdrawn", withdraws]].filter(([, list]) => list.length)
    .map(([what, list]) => `${what}: ${named(list)}.`).join(" ");
}
