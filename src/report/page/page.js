// The page: the table of runs, the controls, samples and configuration around the charts.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const view = { axis: "step", logX: false, logY: false, smoothing: 0 };
const byId = (id) => document.getElementById(id);

// make("td", { class: "x" }, child, ...): an element; strings become text, never markup.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const charts = [];
const runs = data.runs.map((run, index) => ({
  ...run,
  index,
  on: true,
  matches: true,
  // The position of a step on an axis, interpolated between the curve's nearest points.
  xOf(step, axis) {
    const steps = run.series.step, xs = run.series[axis];
    if (axis === "step") return step;
    let i = steps.findIndex((s) => s >= step);
    if (i < 0) return xs.length ? xs[xs.length - 1] : null;
    if (i === 0 || steps[i] === step) return xs[i];
    const part = (step - steps[i - 1]) / (steps[i] - steps[i - 1]);
    return xs[i - 1] + part * (xs[i] - xs[i - 1]);
  },
}));
const shownRuns = () => runs.filter((run) => run.on && run.matches);
const runVariable = (run) => `--color: var(--run-${run.index % 8})`;

// The table's columns. `of`: the sort key. `text`: the number format for all of a column.
const COLUMNS = [
  { label: "Run", of: (run) => run.name },
  { label: "Loss", of: (run) => run.summary.loss, text: (all) => alike(all, [], 5), remark: ({ summary: s }) => (s.step ? `at step ${s.step.toLocaleString("en")}` : "") },
  { label: "Best validation", of: (run) => run.summary.best_val_loss, text: (all) => alike(all, [], 5),
    remark: ({ summary: s }) => (s.best_val_loss === null ? "not validated" : `at step ${s.best_step.toLocaleString("en")}`) },
  { label: "Tokens", of: (run) => run.summary.tokens, text: (all) => alike(all, UNITS.count), more: true,
    remark: (run) => (run.series.step.length
      ? `${format.count(run.series.tokens.at(-1) / run.series.step.at(-1))} a step` : "") },
  { label: "Time", of: ({ summary: s }) => s.wall_seconds ?? s.train_seconds, text: alikeDurations,
    remark: ({ summary: s }, text) => (s.wall_seconds === null ? "in steps" : `${text(s.train_seconds)} in steps`) },
  { label: "Tokens/s", of: (run) => run.summary.tokens_per_s, text: (all) => alike(all, UNITS.count), more: true, remark: () => "median" },
  { label: "MFU", of: (run) => run.summary.mfu || null, text: (all) => alike(all, [[0, " %", 1]], 3, 100), more: true, remark: (run) => (run.summary.mfu ? "median" : "not known") },
  { label: "Memory", of: (run) => run.summary.memory_bytes || null, text: (all) => alike(all, UNITS.bytes), remark: () => "most in use" },
  { label: "Device", of: ({ summary: s }) => s.device || (s.parameters ? "–" : "not recorded"),
    remark: ({ summary: s }) => (s.parameters ? `${format.count(s.parameters)} parameters` : "") },
].filter(({ label, of }) => label !== "MFU" || runs.some((run) => known(of(run))));

// The run with the lowest validation loss; without validations, with the lowest loss.
function bestRun() {
  const key = runs.some((run) => known(run.summary.best_val_loss)) ? "best_val_loss" : "loss";
  const ranked = runs.filter((run) => known(run.summary[key])).sort((a, b) => a.summary[key] - b.summary[key]);
  return runs.length > 1 ? ranked[0] : undefined;
}

function runRow(run, texts, best) {
  const toggle = make("button", { type: "button", class: "toggle", "aria-pressed": "true", style: runVariable(run), title: "Show or hide this run's curves" }, run.name);
  toggle.addEventListener("click", () => {
    run.on = !run.on;
    drawAll();
  });
  const skipped = run.summary.skipped ? `, ${run.summary.skipped} skipped` : "";
  const mark = run === best ? [make("span", { class: "best" }, "best")] : [];
  const row = make("tr", {}, make("th", { scope: "row" }, toggle, ...mark, make("small", {}, run.summary.status + skipped)));
  COLUMNS.slice(1).forEach((column, i) => {
    const text = texts[i + 1], value = column.of(run);
    const cell = make("strong", typeof value === "string" ? { class: "words" } : {}, text ? text(value) : value);
    row.append(make("td", { "data-label": column.label }, cell, make("small", {}, column.remark(run, text))));
  });
  run.row = row;
  run.toggle = toggle;
  return row;
}

// Sorts the rows by a column, best first; a second call reverses the order. Unknown values stay
// last.
function sortRuns(column, heads) {
  const head = heads[COLUMNS.indexOf(column)];
  const first = column.more ? "descending" : "ascending", other = column.more ? "ascending" : "descending";
  const order = head.getAttribute("aria-sort") === first ? other : first;
  for (const each of heads) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  const unknown = (run) => column.of(run) === null;
  const sorted = [...runs].sort((a, b) => unknown(a) - unknown(b) || (unknown(a) ? 0 : sign * compare(column.of(a), column.of(b))));
  byId("runs").tBodies[0].append(...sorted.map((run) => run.row));
}

function buildRuns() {
  const heads = COLUMNS.map((column) => {
    const button = make("button", { type: "button" }, column.label);
    button.addEventListener("click", () => sortRuns(column, heads));
    return make("th", { scope: "col" }, runs.length > 1 ? button : column.label);
  });
  const texts = COLUMNS.map((column) => column.text?.(runs.map(column.of)));
  const best = bestRun();
  byId("runs").append(make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...runs.map((run) => runRow(run, texts, best))));
  byId("runs").classList.toggle("single", runs.length === 1);
  const narrow = matchMedia("(max-width: 1020px)");
  const arrange = () => byId("runs").classList.toggle("blocks", narrow.matches || runs.length === 1);
  narrow.addEventListener("change", arrange);
  arrange();
}

// Leaves out charts without values; the others fill their row.
function buildCharts() {
  charts.push(...CHARTS.filter(({ id, validation }) => validation || runs.some((run) => run.series[id].mean.some(known))));
  const small = charts.filter((spec) => !spec.size);
  if (small.length < 3) for (const spec of small) spec.size = small.length === 1 ? "large" : "half";
  for (const spec of charts) {
    const canvas = make("canvas", { id: `chart-${spec.id}`, role: "img" });
    const caption = make("figcaption", {}, make("b", {}, spec.title));
    const validated = spec.validation && runs.some((run) => run.validation.step.length > 0);
    if (validated) {
      const key = make("span", { class: "key" }, make("span", {}, make("i"), "training"), make("span", {}, make("i", { class: "dashed" }), "validation"), spec.unit);
      caption.append(key);
    } else {
      caption.append(make("span", {}, spec.unit ?? ""));
    }
    const box = make("div", { class: "plot" });
    byId("charts").append(make("figure", { class: `card ${spec.size ?? ""}` }, caption, box));
    spec.plot = new Plot(box, canvas);
  }
}

function drawCharts() {
  for (const spec of charts) drawChart(spec.plot, spec, shownRuns(), view);
}

const sampleSteps = [...new Set(runs.flatMap((run) => run.samples.map((s) => s.step)))].sort((a, b) => a - b);

// Draws each run's newest sample up to the chosen step.
function drawSamples() {
  if (sampleSteps.length === 0) return;
  const step = sampleSteps[Number(byId("sample-step").value)];
  byId("sample-value").textContent = step.toLocaleString("en");
  const cards = shownRuns().filter((run) => run.samples.length > 0).map((run) => {
    const sample = run.samples.filter((s) => s.step <= step).pop();
    const head = make("h3", { style: runVariable(run) }, run.name, make("span", {}, sample ? `step ${sample.step.toLocaleString("en")}` : "none yet"));
    return make("article", { class: "card sample" }, head, make("pre", { tabindex: "0", "aria-label": `Sample of ${run.name}` }, sample ? sample.text.trim() : ""));
  });
  byId("samples").replaceChildren(...cards);
}

function keyCell(key) {
  return make("th", { scope: "row", title: key.help }, make("span", {}, `${key.section}.`), key.name);
}

function configHead(columns) {
  const cells = columns.map((column) => {
    if (typeof column === "string") return make("th", { scope: "col" }, column);
    return make("th", { scope: "col" }, make("span", { class: "dot", style: runVariable(column) }), column.name);
  });
  return make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Key"), ...cells));
}

// Lists the keys with wanted(index): each run's value, and with `standard` the default.
function fillConfig(table, shown, wanted, standard) {
  const body = make("tbody");
  data.keys.forEach((key, k) => {
    if (!wanted(k)) return;
    const row = make("tr", {}, keyCell(key));
    for (const run of shown) {
      const usual = run.config.values[k] === run.config.defaults[k];
      row.append(make("td", usual ? { class: "default" } : {}, run.config.values[k]));
    }
    if (standard) row.append(make("td", { class: "default" }, shown[0].config.defaults[k]));
    body.append(row);
  });
  table.replaceChildren(configHead(standard ? [...shown, "Default"] : shown), body);
  return body.childElementCount;
}

// Shows the differences between several runs, or of one run from the defaults.
function drawConfig() {
  const shown = shownRuns().filter((run) => run.config);
  byId("config-section").hidden = shown.length === 0;
  if (shown.length === 0) return;
  const single = shown.length === 1;
  const set = (k) => data.keys[k].section !== "run";
  const differs = single
    ? (k) => set(k) && shown[0].config.values[k] !== shown[0].config.defaults[k]
    : (k) => set(k) && shown.some((run) => run.config.values[k] !== shown[0].config.values[k]);
  const count = fillConfig(byId("config"), shown, differs, single);
  const keys = count === 1 ? ["1 key", "differs"] : [`${count} keys`, "differ"];
  byId("config").parentElement.hidden = count === 0;
  byId("config-note").textContent = single
    ? (count ? `${keys.join(" ")} from the default.` : "All keys are at their defaults.")
    : (count ? `${keys.join(" ")} between the runs shown. Defaults are grey.` : "The runs shown have the same configuration.");
  fillConfig(byId("config-all"), shown, () => true, single);
}

function drawAll() {
  const filter = byId("filter").value.trim().toLowerCase();
  for (const run of runs) {
    run.matches = run.name.toLowerCase().includes(filter);
    run.row.classList.toggle("filtered", !run.matches);
    run.row.classList.toggle("off", !run.on);
    run.toggle.setAttribute("aria-pressed", String(run.on));
  }
  drawCharts();
  drawSamples();
  drawConfig();
}

function listen() {
  for (const button of byId("axis").children) {
    button.addEventListener("click", () => {
      view.axis = button.dataset.axis;
      for (const other of byId("axis").children) other.setAttribute("aria-pressed", String(other === button));
      drawCharts();
    });
  }
  byId("log-x").addEventListener("change", (event) => { view.logX = event.target.checked; drawCharts(); });
  byId("log-y").addEventListener("change", (event) => { view.logY = event.target.checked; drawCharts(); });
  byId("smoothing").addEventListener("input", (event) => {
    view.smoothing = Number(event.target.value) / 100;
    const width = view.smoothing ** 2 * 20;
    byId("smoothing-value").textContent = width > 0 ? `${Number(width.toPrecision(2))} % of axis` : "off";
    drawCharts();
  });
  byId("filter").addEventListener("input", drawAll);
  byId("sample-step").addEventListener("input", drawSamples);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
}

function start() {
  byId("title").textContent = data.title;
  byId("written").textContent = `Written ${new Date(1000 * data.written).toLocaleString("en", { dateStyle: "long", timeStyle: "short" })}`;
  byId("footer").textContent = `Quern ${data.version}.`;
  for (const run of runs) byId("warnings").append(...run.warnings.map((text) => make("p", {}, text)));
  byId("filter-label").hidden = runs.length < 2;
  byId("samples-section").hidden = sampleSteps.length === 0;
  byId("sample-step").max = String(Math.max(0, sampleSteps.length - 1));
  byId("sample-step").value = byId("sample-step").max;
  buildRuns();
  buildCharts();
  listen();
  drawAll();
  document.documentElement.dataset.ready = "true"; // for tests: everything is drawn
}

start();
