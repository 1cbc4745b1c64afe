// Runs before the first paint, so that a chosen theme does not flash. Everything else waits for live.js.
"use strict";
{
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* storage may be forbidden: then the system decides */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
