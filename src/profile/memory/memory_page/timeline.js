// The timeline: memory in use, stacked by category, with the phases above it.
'use strict';

const chart = document.getElementById('timeline');
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
const MARGIN = {left: 66, right: 10, top: 30, bottom: 26};
const SHORT_PHASES = {forward: 'fwd', backward: 'bwd', optimizer: 'opt'};
const plotWidth = () => Math.max(1, chart.clientWidth - MARGIN.left - MARGIN.right);
const xOf = (time) => MARGIN.left + (time - state.begin) / (state.end - state.begin) * plotWidth();
const timeOf = (x) => {
  const share = Math.min(1, Math.max(0, (x - MARGIN.left) / plotWidth()));
  return state.begin + share * (state.end - state.begin);
};
let pointer = null;  // the hovered x
let drag = null;     // the x that a drag began at

const shownSum = (i) => {
  let sum = 0;
  for (let k = 0; k < K; ++k) if (state.shown[k]) sum += timeline.sums[i * K + k];
  return sum;
};

// For each pixel column: the change with the largest sum, counting the one before the column. So
// each column shows its exact maximum.
function columnsOf(width) {
  const columns = [];
  let at = changeAt(state.begin);
  for (let x = 0; x < width; ++x) {
    const end = state.begin + (x + 1) / width * (state.end - state.begin);
    let best = at, most = at < 0 ? 0 : shownSum(at);
    while (at + 1 < timeline.times.length && timeline.times[at + 1] < end) {
      at += 1;
      const sum = shownSum(at);
      if (sum > most) { most = sum; best = at; }
    }
    columns.push(best);
  }
  return columns;
}

// The reserved line is drawn only while all categories are shown.
const showsReserved = () => state.reserved && reserved.length > 0 && state.shown.every(Boolean);

// The smallest power of two, in bytes, that divides `most` into at most `count` steps.
function byteStep(most, count) {
  let step = 1;
  while (most / step > count) step *= 2;
  return step;
}

function timeStep(span, count) {
  let step = 1;
  for (let i = 0; span / step > count; ++i) step *= i % 3 === 1 ? 2.5 : 2;  // 1, 2, 5, 10 ...
  return step;
}

// In a unit chosen from the step, without needless digits.
function formatOfStep(bytes, step) {
  const unit = 1024 ** Math.floor(Math.log2(step * 2) / 10);
  const name = formatBytes(unit).split(' ')[1];
  return bytes / unit + ' ' + name;
}

function drawPhases(g, bottom) {
  const back = color('grid');
  data.phases.forEach(([name, begin, end], i) => {
    const from = Math.max(MARGIN.left, xOf(begin));
    const to = Math.min(MARGIN.left + plotWidth(), xOf(end));
    if (to <= from) return;
    g.fillStyle = back;
    g.globalAlpha = i % 2 ? 0.5 : 1;
    g.fillRect(from, MARGIN.top, to - from, bottom - MARGIN.top);
    g.globalAlpha = 1;
    g.fillStyle = color('line');
    g.fillRect(from, 6, Math.max(1, to - from - 1), 18);
    g.fillStyle = color('text');
    const fits = (label) => g.measureText(label).width < to - from - 6;
    const label = [nameOf(name), SHORT_PHASES[nameOf(name)] ?? ''].find(fits);
    if (label) g.fillText(label, (from + to) / 2, 15);
  });
}

function drawAxes(g, most, yOf) {
  g.textAlign = 'right';
  const step = byteStep(most, chart.clientHeight / 45);
  for (let bytes = 0; bytes <= most; bytes += step) {
    g.strokeStyle = color('line');
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(MARGIN.left, Math.round(yOf(bytes)) + 0.5);
    g.lineTo(MARGIN.left + plotWidth(), Math.round(yOf(bytes)) + 0.5);
    g.stroke();
    g.fillStyle = color('soft');
    g.fillText(formatOfStep(bytes, step), MARGIN.left - 8, yOf(bytes));
  }
  g.textAlign = 'center';
  const span = state.end - state.begin, tick = timeStep(span, plotWidth() / 110);
  for (let t = Math.ceil(state.begin / tick) * tick; t <= state.end; t += tick) {
    const label = formatTick(t, tick);
    const half = g.measureText(label).width / 2;
    const x = Math.min(Math.max(xOf(t), MARGIN.left + half), chart.clientWidth - half - 2);
    g.fillStyle = color('soft');
    g.fillText(label, x, chart.clientHeight - 10);
  }
}

function formatTick(ns, step) {
  const [unit, name] = state.end >= 2e9 ? [1e9, 's'] : state.end >= 2e6 ? [1e6, 'ms'] : [1e3, 'µs'];
  const digits = Math.max(0, Math.min(3, Math.ceil(-Math.log10(step / unit) - 1e-9)));
  return (ns / unit).toFixed(digits) + ' ' + name;
}

function drawStack(g, columns, yOf) {
  const base = new Float64Array(columns.length);
  for (let k = 0; k < K; ++k) {
    if (!state.shown[k]) continue;
    g.fillStyle = color(CATEGORIES[k]);
    g.beginPath();
    columns.forEach((at, x) => {
      const low = base[x], high = low + (at < 0 ? 0 : timeline.sums[at * K + k]);
      base[x] = high;
      if (high > low) g.rect(MARGIN.left + x, yOf(high), 1, yOf(low) - yOf(high));
    });
    g.fill();
  }
}

function drawReserved(g, yOf) {
  if (!showsReserved()) return;
  g.strokeStyle = color('reserved');
  g.setLineDash([5, 4]);
  g.lineWidth = 1.4;
  g.beginPath();
  const end = MARGIN.left + plotWidth();
  let y = yOf(reservedAt(state.begin));
  g.moveTo(MARGIN.left, y);
  for (const [time, bytes] of reserved) {
    if (time <= state.begin || time > state.end) continue;
    g.lineTo(xOf(time), y);
    g.lineTo(xOf(time), y = yOf(bytes));
  }
  g.lineTo(end, y);
  g.stroke();
  g.setLineDash([]);
}

function drawMark(g, x, bottom, style) {
  g.strokeStyle = style;
  g.lineWidth = 1.5;
  g.beginPath();
  g.moveTo(x, MARGIN.top - 4);
  g.lineTo(x, bottom);
  g.stroke();
}

// "peak 53.1 GiB" in a box beside its line.
function drawPeakLabel(g, x) {
  const label = 'peak ' + formatBytes(data.peak.bytes), width = g.measureText(label).width + 14;
  const left = x + 6 + width > MARGIN.left + plotWidth() ? x - 6 - width : x + 6;
  g.fillStyle = color('text');
  g.beginPath();
  g.roundRect(left, MARGIN.top + 4, width, 21, 5);
  g.fill();
  g.fillStyle = color('card');
  g.textAlign = 'center';
  g.fillText(label, left + width / 2, MARGIN.top + 15);
}

function drawTimeline() {
  const {g, height} = drawing(chart);
  const bottom = height - MARGIN.bottom;
  g.font = FONT;
  g.textBaseline = 'middle';
  g.textAlign = 'center';
  const columns = columnsOf(Math.floor(plotWidth()));
  let most = 1;
  for (const at of columns) if (at >= 0) most = Math.max(most, shownSum(at));
  if (showsReserved()) for (const [, bytes] of reserved) most = Math.max(most, bytes);
  most *= 1.06;
  const yOf = (bytes) => bottom - bytes / most * (bottom - MARGIN.top);
  drawPhases(g, bottom);
  drawAxes(g, most, yOf);
  drawStack(g, columns, yOf);
  drawReserved(g, yOf);
  const inside = (time) => time >= state.begin && time <= state.end;
  if (inside(data.peak.time)) {
    drawMark(g, xOf(data.peak.time), bottom, color('text'));
    drawPeakLabel(g, xOf(data.peak.time));
  }
  if (state.moment !== data.peak.time && inside(state.moment)) {
    drawMark(g, xOf(state.moment), bottom, color('accent'));
  }
  if (pointer !== null) drawMark(g, pointer, bottom, color('soft'));
  if (drag !== null && pointer !== null) {
    g.fillStyle = color('accent');
    g.globalAlpha = 0.2;
    g.fillRect(Math.min(drag, pointer), MARGIN.top, Math.abs(pointer - drag), bottom - MARGIN.top);
    g.globalAlpha = 1;
  }
}

// The moment shown by a pixel column.
function momentAt(x) {
  const column = Math.min(Math.floor(plotWidth()) - 1, Math.max(0, Math.floor(x - MARGIN.left)));
  const at = columnsOf(Math.floor(plotWidth()))[column];
  return at < 0 ? timeOf(x) : Math.max(timeline.times[at], state.begin);
}

function timelineTip(event, time) {
  const sums = categoriesAt(time), phase = phaseAt(time);
  const rows = element('tbody');
  for (let k = K - 1; k >= 0; --k) {
    if (sums[k] === 0) continue;
    rows.append(element('tr', {className: state.shown[k] ? '' : 'off'},
      element('td', {}, swatch(k), CATEGORIES[k]),
      element('td', {className: 'number', textContent: formatBytes(sums[k])})));
  }
  rows.append(element('tr', {}, element('td', {}, element('b', {textContent: 'in use'})),
    element('td', {className: 'number'}, element('b', {textContent: formatBytes(total(sums))}))));
  if (reserved.length) {
    rows.append(element('tr', {}, element('td', {textContent: 'reserved'}),
      element('td', {className: 'number', textContent: formatBytes(reservedAt(time))})));
  }
  showTip(event.clientX, event.clientY,
    element('b', {textContent: formatTime(time)}), phase ? ' · ' + phase : '',
    element('table', {}, rows));
}

function watchTimeline(onMoment) {
  const localX = (event) => {
    const x = event.clientX - chart.getBoundingClientRect().left;
    return Math.min(MARGIN.left + plotWidth(), Math.max(MARGIN.left, x));
  };
  chart.addEventListener('pointermove', (event) => {
    pointer = localX(event);
    timelineTip(event, momentAt(pointer));
    drawTimeline();
  });
  chart.addEventListener('pointerleave', () => {
    pointer = drag = null;
    hideTip();
    drawTimeline();
  });
  chart.addEventListener('pointerdown', (event) => { drag = localX(event); });
  chart.addEventListener('pointerup', (event) => {
    const from = drag, to = localX(event);
    drag = null;
    if (from === null) return;
    if (Math.abs(to - from) > 8) {
      [state.begin, state.end] = [timeOf(Math.min(from, to)), timeOf(Math.max(from, to))];
      drawTimeline();
    } else {
      onMoment(momentAt(to));
    }
  });
  chart.addEventListener('dblclick', () => {  // the initial span first, then the whole trace
    const home = homeSpan(), atHome = state.begin === home[0] && state.end === home[1];
    [state.begin, state.end] = atHome ? wholeSpan() : home;
    drawTimeline();
  });
  chart.addEventListener('keydown', (event) => {  // step from change to change
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step) return;
    event.preventDefault();
    const at = changeAt(state.moment) + step;
    if (at >= 0 && at < timeline.times.length) onMoment(timeline.times[at]);
  });
}
