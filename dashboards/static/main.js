// What the pages do beyond being read: draw charts, follow a run live, send forms, switch the theme.

import { drawCharts, prepareTheme } from "./charts.js";
import { prepareForms } from "./forms.js";
import { prepareLive } from "./live.js";

prepareTheme();
prepareForms();
prepareLive();
// Plotly is a deferred script after this one: it is there once the document is.
if (document.readyState === "complete") drawCharts();
else document.addEventListener("DOMContentLoaded", drawCharts);
