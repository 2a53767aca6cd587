// The page's charts: metric, axes and drawing of each.
"use strict";

const AXES = {
  step: { title: "step", steps: STEPS.number, tick: (x) => format.count(x), tip: (x) => `step ${x.toLocaleString("en")}` },
  tokens: { title: "tokens", steps: STEPS.number, tick: (x) => format.count(x), tip: (x) => `${format.count(x, 4)} tokens` },
  seconds: { title: "training time", steps: STEPS.duration, tick: format.duration, tip: (x) => format.duration(x) },
};

// Charts in the page's order. `zero`: the axis starts there. `exact`: no smoothing.
const CHARTS = [
  { id: "loss", title: "Loss", unit: "nats a token", size: "large", validation: true, tick: (y) => format.number(y, 5) },
  { id: "lr", title: "Learning rate", size: "half", zero: true, exact: true, tick: format.power },
  { id: "grad_norm", title: "Gradient norm", unit: "before clipping", size: "half", tick: (y) => format.number(y, 4) },
  { id: "tokens_per_s", title: "Speed", unit: "tokens a second", zero: true, tick: (y) => format.count(y, 4) },
  { id: "mfu", title: "MFU", unit: "of the measured peak", zero: true, tick: format.percent },
  { id: "memory_bytes", title: "Memory", unit: "most in use so far", zero: true, exact: true, steps: STEPS.bytes, tick: format.bytes },
  { id: "z_loss", title: "z-loss", unit: "added to the training loss", tick: (y) => format.number(y, 4) },
];

const runColor = (run) => css(`--run-${run.index % 8}`);

// Averages each value with its neighbours on both sides. Weights fall off exponentially, to 1/e
// over `width` of the axis. A symmetric window keeps the curve from lagging behind its values.
function smoothed(points, width, along) {
  const values = points.filter((p) => p.y !== null);
  if (width <= 0 || values.length < 2) return points;
  const reach = width * (along(values[values.length - 1].x) - along(values[0].x));
  const sums = values.map((p) => ({ value: -p.y, weight: -1 })); // both passes below count it
  for (const order of [values.keys(), [...values.keys()].reverse()]) {
    let value = 0, weight = 0, last = null;
    for (const i of order) {
      const at = along(values[i].x), keep = last === null ? 0 : Math.exp(-Math.abs(at - last) / reach);
      value = keep * value + values[i].y;
      weight = keep * weight + 1;
      last = at;
      sums[i].value += value;
      sums[i].weight += weight;
    }
  }
  let next = 0;
  return points.map(({ x, y }) => (y === null ? { x, y } : { x, y: sums[next].value / sums[next++].weight }));
}

// A run's curve of one metric, and its validation losses. Behind the curve: each record's value, or
// with many records the band between the smallest and the largest.
function runCurves(run, chart, view) {
  const series = run.series[chart.id], color = runColor(run), xs = run.series[view.axis];
  const along = view.logX ? Math.log : (x) => x;
  const usable = (p) => p.x !== null && (!view.logX || p.x > 0) && !(view.logY && chart.validation && p.y <= 0 && p.y !== null);
  const points = (ys) => ys.map((y, i) => ({ x: xs[i], y })).filter(usable);
  const mean = points(series.mean), width = chart.exact ? 0 : view.smoothing ** 2 * 0.2;
  const curve = { run, label: run.name, color, width: 2, points: smoothed(mean, width, along), dot: mean.length === 1 && color };
  const curves = [curve];
  if (series.low) {
    curve.band = series.low.map((y, i) => ({ x: xs[i], y, high: series.high[i] })).filter(usable);
  } else if (width > 0) {
    curves.push({ run, behind: true, color: faded(color, 0.24), width: 1.5, points: mean });
  }
  if (chart.validation && run.validation.step.length > 0) {
    const validated = run.validation.val_loss.map((y, i) => ({ x: run.xOf(run.validation.step[i], view.axis), y })).filter(usable);
    curves.push({ run, label: `${run.name}, validation`, color, width: 1.75, points: validated, dash: [5, 4], dot: validated.length <= 40 && css("--card") });
  }
  return curves;
}

// The curves as text for a screen reader.
function chartLabel(chart, runs) {
  const parts = runs.map((run) => {
    const values = run.series[chart.id].mean.filter(known);
    return values.length ? `${run.name} from ${chart.tick(values[0])} to ${chart.tick(values[values.length - 1])}` : `${run.name} without data`;
  });
  return `${chart.title}. ${parts.join("; ")}`;
}

// Draws the runs in a plot as `view` says: { axis, logX, logY, smoothing }.
function drawChart(plot, spec, runs, view) {
  const shown = runs.filter((run) => run.series.step.length + run.validation.step.length > 0);
  const placed = (run) => run.validation.step.map((step) => run.xOf(step, view.axis));
  let { min, max } = rangeOf(shown.flatMap((run) => [...run.series[view.axis], ...placed(run)]), view.logX);
  if (max === -Infinity) [min, max] = [1, 10];
  if (!view.logX) min = 0;
  if (min >= max) [min, max] = view.logX ? [max / 2, 2 * max] : [0, 1];
  const axis = AXES[view.axis];
  plot.show({
    curves: shown.flatMap((run) => runCurves(run, spec, view)),
    x: { ...axis, min, max, log: view.logX, title: spec.size === "large" && axis.title },
    y: { steps: spec.steps ?? STEPS.number, tick: spec.tick, zero: spec.zero, log: view.logY && spec.validation, most: spec.size === "large" ? 8 : 5 },
  });
  plot.canvas.setAttribute("aria-label", chartLabel(spec, shown));
}
