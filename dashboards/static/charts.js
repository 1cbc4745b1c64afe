// Charts are Plotly figures that the server wrote into the page as data; here they get the theme's colours.

import { all, find } from "./dom.js";

const THEMES = ["auto", "light", "dark"];

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

export function drawCharts() {
  if (!window.Plotly) return; // not installed beside the service: the tables remain
  for (const chart of all("[data-figure]")) {
    const source = document.getElementById(chart.dataset.figure);
    if (!source) continue;
    const figure = coloured(JSON.parse(source.textContent));
    // A finger that scrolls the page must not draw a zoom box.
    if (matchMedia("(pointer: coarse)").matches) figure.layout.dragmode = false;
    thinLabels(chart, figure.layout.xaxis);
    find(".waiting", chart)?.remove();
    Plotly.react(chart, figure.data, figure.layout, { displayModeBar: false, responsive: true }).then(() => follow(chart));
  }
}

/** Where there is no room for all labels of an axis, every third has to do. */
function thinLabels(chart, axis) {
  if (!axis?.tickvals || chart.clientWidth > 600) return;
  for (const name of ["tickvals", "ticktext"]) axis[name] = axis[name].filter((_, index) => index % 3 === 0);
}

/** A point that carries an address of ours leads there. */
function follow(chart) {
  if (chart.dataset.follows) return;
  chart.dataset.follows = "yes";
  chart.on("plotly_click", ({ points }) => {
    const target = points[0]?.customdata;
    if (typeof target === "string" && target.startsWith("/")) location.assign(target);
  });
}

// --- theme: its choice is made before the first paint by theme.js ------------------------------------------------

const currentTheme = () => document.documentElement.dataset.theme || "auto";

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

export function prepareTheme() {
  showTheme();
  find("#theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length]));
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", drawCharts);
}
