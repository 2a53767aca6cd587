// Curves on chart.js: datasets from the report's data, axes, tooltip, a crosshair that all charts share.
"use strict";

const format = {
  // 1234567 -> "1.23 M"; `digits` are significant ones.
  count(x, digits = 3) {
    if (x === null || !Number.isFinite(x)) return "–";
    const units = [[1e12, " T"], [1e9, " B"], [1e6, " M"], [1e4, " k", 1e3]];
    for (const [from, unit, divisor = from] of units) {
      if (Math.abs(x) >= from) return Number((x / divisor).toPrecision(digits)) + unit;
    }
    return Number.isInteger(x) ? x.toLocaleString("en") : String(Number(x.toPrecision(digits)));
  },
  number(x, digits = 4) {
    if (x === null || !Number.isFinite(x)) return "–";
    if (x !== 0 && Math.abs(x) < 1e-3) return Number(x.toPrecision(digits)).toExponential();
    return String(Number(x.toPrecision(digits)));
  },
  power(x, digits = 3) { return x === 0 ? "0" : Number(x.toPrecision(digits)).toExponential(); },
  percent(x) { return x === null ? "–" : `${Number((100 * x).toPrecision(3))} %`; },
  bytes(x) {
    if (x === null) return "–";
    if (x === 0) return "0";
    const gibi = x / 2 ** 30;
    return gibi >= 1 ? `${Number(gibi.toPrecision(3))} GiB` : `${Number((x / 2 ** 20).toPrecision(3))} MiB`;
  },
  duration(seconds) {
    if (seconds === null || !Number.isFinite(seconds)) return "–";
    if (seconds < 10) return `${Number(seconds.toPrecision(2))} s`;
    const s = Math.round(seconds), pad = (n) => String(n).padStart(2, "0");
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${pad(s % 60)} s`;
    return `${Math.floor(s / 3600)} h ${pad(Math.floor(s % 3600 / 60))} min`;
  },
};

const AXES = {
  step: { title: "step", tick: (x) => format.count(x), tip: (x) => `step ${x.toLocaleString("en")}` },
  tokens: { title: "tokens", tick: (x) => format.count(x), tip: (x) => `${format.count(x, 4)} tokens` },
  seconds: { title: "training time", tick: format.duration, tip: (x) => format.duration(x) },
};

// Charts in the page's order. `zero`: the axis starts there. `exact`: nothing to smooth.
const CHARTS = [
  { id: "loss", title: "Loss", unit: "nats a token", size: "large", validation: true, tick: (y) => format.number(y, 5) },
  { id: "lr", title: "Learning rate", size: "half", zero: true, exact: true, tick: format.power },
  { id: "grad_norm", title: "Gradient norm", unit: "before clipping", size: "half", tick: (y) => format.number(y, 4) },
  { id: "tokens_per_s", title: "Speed", unit: "tokens a second", zero: true, tick: (y) => format.count(y, 4) },
  { id: "mfu", title: "MFU", unit: "of the measured peak", zero: true, tick: format.percent },
  { id: "memory_bytes", title: "Memory", unit: "most in use so far", zero: true, exact: true, bytes: true, tick: format.bytes },
];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const runColor = (run) => css(`--run-${run.index % 8}`);

// "#rrggbb" with an opacity.
const faded = (color, opacity) => color + Math.round(255 * opacity).toString(16).padStart(2, "0");

// Each value averaged with its neighbours on both sides, whose weights fall off exponentially, to 1/e
// over `width` of the axis: so a smoothed curve does not lag behind its values.
function smoothed(points, width, along) {
  const known = points.filter((p) => p.y !== null);
  if (width <= 0 || known.length < 2) return points;
  const reach = width * (along(known[known.length - 1].x) - along(known[0].x));
  const sums = known.map((p) => ({ value: -p.y, weight: -1 })); // both passes below count it
  for (const order of [known.keys(), [...known.keys()].reverse()]) {
    let value = 0, weight = 0, last = null;
    for (const i of order) {
      const at = along(known[i].x), keep = last === null ? 0 : Math.exp(-Math.abs(at - last) / reach);
      value = keep * value + known[i].y;
      weight = keep * weight + 1;
      last = at;
      sums[i].value += value;
      sums[i].weight += weight;
    }
  }
  let next = 0;
  return points.map(({ x, y }) => (y === null ? { x, y } : { x, y: sums[next].value / sums[next++].weight }));
}

// A run's curve of one metric, and what stands behind it: each record's value, or where there are too
// many of them the band between the smallest and largest.
function runDatasets(run, chart, view) {
  const series = run.series[chart.id], color = runColor(run), xs = run.series[view.axis];
  const along = view.logX ? Math.log : (x) => x;
  const usable = (p) => p.x !== null && (!view.logX || p.x > 0) && !(view.logY && chart.validation && p.y <= 0 && p.y !== null);
  const points = (ys) => ys.map((y, i) => ({ x: xs[i], y })).filter(usable);
  const base = { run, clip: 8, borderColor: color, borderWidth: 2, pointRadius: 0, pointHoverRadius: 4, pointHoverBackgroundColor: color, borderJoinStyle: "round", spanGaps: false };
  const behind = { ...base, decoration: true, pointHoverRadius: 0, borderWidth: 0 };
  const mean = points(series.mean), width = chart.exact ? 0 : view.smoothing ** 2 * 0.2;
  const datasets = [{ ...base, label: run.name, data: smoothed(mean, width, along), pointRadius: mean.length === 1 ? 3 : 0, pointBackgroundColor: color }];
  if (series.low) {
    datasets.push({ ...behind, data: points(series.high), backgroundColor: faded(color, 0.16), fill: "+1" });
    datasets.push({ ...behind, data: points(series.low) });
  } else if (width > 0) {
    datasets.push({ ...behind, data: mean, borderWidth: 1.5, borderColor: faded(color, 0.24) });
  }
  if (chart.validation && run.validation.step.length > 0) {
    const data = run.validation.val_loss.map((y, i) => ({ x: run.xOf(run.validation.step[i], view.axis), y })).filter(usable);
    datasets.push({ ...base, label: `${run.name}, validation`, data, borderDash: [5, 4], borderWidth: 1.75, pointRadius: data.length > 40 ? 0 : 3, pointBackgroundColor: css("--card"), pointBorderWidth: 1.75 });
  }
  return datasets;
}

// Of each curve the point nearest to the pointer's x, of those curves that have one about there.
Chart.Interaction.modes.nearestOfEach = (chart, event, options, useFinalPosition) => {
  const { x } = Chart.helpers.getRelativePosition(event, chart);
  const area = chart.chartArea;
  if (!area || x < area.left - 4 || x > area.right + 4) return [];
  const found = [];
  chart.data.datasets.forEach((dataset, datasetIndex) => {
    if (dataset.decoration) return;
    let best = null;
    chart.getDatasetMeta(datasetIndex).data.forEach((element, index) => {
      const distance = Math.abs(element.x - x);
      if (!element.skip && (best === null || distance < best.distance)) best = { element, datasetIndex, index, distance };
    });
    if (best) found.push(best);
  });
  const nearest = Math.min(...found.map((f) => f.distance));
  return found.filter((f) => f.distance <= nearest + 16);
};

// A vertical line under the pointer, in every chart at the same place of the axis.
const crosshair = {
  id: "crosshair",
  x: null,
  afterEvent(chart, { event }) {
    const inside = event.type !== "mouseout" && chart.chartArea && event.x >= chart.chartArea.left && event.x <= chart.chartArea.right;
    crosshair.move(inside ? chart.scales.x.getValueForPixel(event.x) : null);
  },
  move(x) {
    if (x === crosshair.x) return;
    crosshair.x = x;
    if (crosshair.waiting) return;
    crosshair.waiting = true;
    requestAnimationFrame(() => {
      crosshair.waiting = false;
      charts.forEach((chart) => chart.draw());
    });
  },
  beforeDatasetsDraw(chart) {
    if (crosshair.x === null) return;
    const x = chart.scales.x.getPixelForValue(crosshair.x), { top, bottom, left, right } = chart.chartArea;
    if (!(x >= left && x <= right)) return;
    const context = chart.ctx;
    context.save();
    context.strokeStyle = css("--muted");
    context.globalAlpha = 0.6;
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, bottom);
    context.stroke();
    context.restore();
  },
};

const charts = [];

// On a logarithmic axis 1, 2 and 5 of each decade; all of them on one of less than a decade.
function logTick(label) {
  return (value, index, ticks) => {
    const wide = ticks[ticks.length - 1].value / ticks[0].value >= 10;
    const digit = Number(value.toExponential().split("e")[0]);
    return !wide || [1, 2, 5].includes(digit) ? label(value) : null;
  };
}

// Round numbers within a logarithmic axis, the closer the less it spans.
function logTicks(scale) {
  const span = scale.max / scale.min;
  const digits = span < 2 ? [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9] : span < 30 ? [1, 1.5, 2, 3, 4, 5, 7] : [1, 2, 5];
  scale.ticks = [];
  for (let power = Math.floor(Math.log10(scale.min)); power <= Math.log10(scale.max); ++power) {
    for (const digit of digits) {
      const value = Number((digit * 10 ** power).toPrecision(3));
      if (value >= scale.min && value <= scale.max) scale.ticks.push({ value });
    }
  }
}

// Ticks at round numbers of MiB or GiB, where chart.js would take round numbers of bytes.
function wholeBytes(scale) {
  const rough = scale.max / 5;
  const power = 2 ** Math.floor(Math.log2(rough));
  const step = rough > 1.5 * power ? 2 * power : power;
  scale.ticks = [];
  for (let value = 0; value <= scale.max; value += step) scale.ticks.push({ value });
}

function axisOptions(chart, view, xRange, yRange) {
  const logY = view.logY && chart.validation, axis = AXES[view.axis];
  const ticks = { color: css("--muted"), maxRotation: 0, font: { size: 11.5 } };
  const grid = { color: css("--grid"), borderColor: css("--line"), tickColor: "transparent" };
  return {
    x: {
      type: view.logX ? "logarithmic" : "linear",
      min: xRange.min,
      max: xRange.max,
      grid: { ...grid, display: false },
      title: { display: chart.size === "large", text: axis.title, color: css("--muted"), font: { size: 12 }, padding: { top: 2 } },
      ticks: { ...ticks, autoSkipPadding: 18, maxTicksLimit: 11, callback: view.logX ? logTick(axis.tick) : axis.tick },
    },
    y: {
      type: logY ? "logarithmic" : "linear",
      beginAtZero: Boolean(chart.zero),
      grace: chart.zero ? "8%" : "3%",
      afterBuildTicks: chart.bytes ? wholeBytes : logY ? logTicks : undefined,
      ...(logY ? yRange : {}),
      grid,
      ticks: { ...ticks, maxTicksLimit: chart.size === "large" ? 9 : 6, padding: 6, autoSkip: !logY, callback: chart.tick },
    },
  };
}

function tooltipOptions(chart, view) {
  return {
    backgroundColor: css("--ink"),
    titleColor: css("--card"),
    bodyColor: css("--card"),
    padding: 10,
    cornerRadius: 8,
    boxWidth: 9,
    boxHeight: 9,
    boxPadding: 5,
    usePointStyle: true,
    callbacks: {
      title: (items) => (items.length ? AXES[view.axis].tip(items[0].parsed.x) : ""),
      label(item) {
        const x = item.parsed.x, first = item.chart.tooltip.dataPoints?.[0].parsed.x ?? x;
        return `${item.dataset.label}: ${chart.tick(item.parsed.y)}${x === first ? "" : ` (${AXES[view.axis].tip(x)})`}`;
      },
      labelColor: (item) => ({ borderColor: item.dataset.borderColor, backgroundColor: item.dataset.borderColor }),
      labelPointStyle: () => ({ pointStyle: "circle" }),
    },
  };
}

// What a screen reader says in place of the curves.
function chartLabel(chart, runs) {
  const parts = runs.map((run) => {
    const known = run.series[chart.id].mean.filter((y) => y !== null);
    return known.length ? `${run.name} from ${chart.tick(known[0])} to ${chart.tick(known[known.length - 1])}` : `${run.name} without data`;
  });
  return `${chart.title}. ${parts.join("; ")}`;
}

function makeChart(canvas) {
  const chart = new Chart(canvas, {
    type: "line",
    data: { datasets: [] },
    options: {
      animation: false,
      normalized: true,
      parsing: false,
      responsive: true,
      maintainAspectRatio: false,
      layout: { padding: { right: 6, top: 4 } },
      interaction: { mode: "nearestOfEach", intersect: false },
      plugins: { legend: { display: false } },
    },
    plugins: [crosshair],
  });
  charts.push(chart);
  return chart;
}

// The smallest and largest of the numbers that are known, and positive if need be.
function rangeOf(values, positive) {
  const range = { min: Infinity, max: -Infinity };
  for (const x of values) {
    if (x === null || (positive && !(x > 0))) continue;
    range.min = Math.min(range.min, x);
    range.max = Math.max(range.max, x);
  }
  return range;
}

// Shows the runs in a chart the way `view` says: { axis, logX, logY, smoothing }.
function drawChart(chart, spec, runs, view) {
  const shown = runs.filter((run) => run.series.step.length + run.validation.step.length > 0);
  const placed = (run) => run.validation.step.map((step) => run.xOf(step, view.axis));
  const xs = rangeOf(shown.flatMap((run) => [...run.series[view.axis], ...placed(run)]), view.logX);
  const xRange = xs.max > -Infinity ? { min: view.logX ? xs.min : 0, max: xs.max } : {};
  if (xRange.min === xRange.max) delete xRange.min;
  chart.data.datasets = shown.flatMap((run) => runDatasets(run, spec, view));
  const ys = rangeOf(chart.data.datasets.flatMap((set) => set.data.map((p) => p.y)), true);
  const yRange = ys.max > -Infinity ? { min: 0.96 * ys.min, max: 1.04 * ys.max } : {};
  chart.options.scales = axisOptions(spec, view, xRange, yRange);
  chart.options.plugins.tooltip = tooltipOptions(spec, view);
  chart.canvas.setAttribute("aria-label", chartLabel(spec, shown));
  chart.update("none");
}
