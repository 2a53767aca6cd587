// The trace as the page reads it. Times are nanoseconds, sizes bytes.
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);
const CATEGORIES = data.categories;
const K = CATEGORIES.length;
const nameOf = (number) => data.names[number];

// An allocation: [begin since the previous one, bytes, lifetime (-1: to the end), category, name,
// place]. A place: [phase, module, op, shapes, backward].
const allocations = (() => {
  let time = 0;
  return data.allocations.map(([since, bytes, life, category, name, place], index) => {
    time += since;
    const [phase, module, op, shapes, backward] = data.places[place];
    return {
      index, bytes, category, begin: time, end: life < 0 ? Infinity : time + life,
      life: life < 0 ? data.end - time : life, name: nameOf(name), phase: nameOf(phase),
      module: nameOf(module), op: nameOf(op), shapes: nameOf(shapes), backward: backward === 1,
    };
  });
})();

// Bytes in use after each change, by category: times[i], and sums[i K + category].
const timeline = (() => {
  const changes = [];
  for (const a of allocations) {
    changes.push([a.begin, a.bytes, a.category]);
    if (a.end !== Infinity) changes.push([a.end, -a.bytes, a.category]);
  }
  // At equal times releases come first, as in the trace's own peak.
  changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const times = new Float64Array(changes.length), sums = new Float64Array(changes.length * K);
  const now = new Float64Array(K);
  let count = 0;
  changes.forEach(([time, bytes, category], i) => {
    now[category] += bytes;
    if (i + 1 < changes.length && changes[i + 1][0] === time) return;
    times[count] = time;
    sums.set(now, count * K);
    count += 1;
  });
  return {times: times.subarray(0, count), sums: sums.subarray(0, count * K)};
})();

// Bytes held from the device after each change.
const reserved = (() => {
  const changes = [];
  for (const [begin, bytes, end] of data.segments) {
    changes.push([begin, bytes]);
    if (end >= 0) changes.push([end, -bytes]);
  }
  changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let now = 0;
  return changes.map(([time, bytes]) => [time, now += bytes]);
})();

// The last change at or before `time`; -1 before the first.
function changeAt(time) {
  let low = 0, high = timeline.times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (timeline.times[middle] <= time) low = middle + 1; else high = middle;
  }
  return low - 1;
}

function categoriesAt(time) {
  const i = changeAt(time);
  return i < 0 ? new Array(K).fill(0) : Array.from(timeline.sums.subarray(i * K, (i + 1) * K));
}

const reservedAt = (time) => {
  let bytes = 0;
  for (const [at, sum] of reserved) if (at <= time) bytes = sum;
  return bytes;
};

const liveAt = (time) => allocations.filter((a) => a.begin <= time && time < a.end);
const total = (sums) => sums.reduce((a, b) => a + b, 0);

const phaseAt = (time) => {
  const phase = data.phases.find(([, begin, end]) => begin <= time && time < end);
  return phase ? nameOf(phase[0]) : '';
};

function formatBytes(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0, value = bytes;
  while (Math.abs(value) >= 1024 && unit + 1 < units.length) { value /= 1024; unit += 1; }
  const digits = unit === 0 ? 0 : value >= 100 ? 1 : 2;
  return value.toFixed(digits) + ' ' + units[unit];
}

const formatExact = (bytes) => bytes.toLocaleString('en-US').replaceAll(',', '\u202f');

function formatTime(ns) {
  if (ns >= 1e9) return (ns / 1e9).toFixed(3) + ' s';
  if (ns >= 1e6) return (ns / 1e6).toFixed(2) + ' ms';
  return (ns / 1e3).toFixed(1) + ' µs';
}

// The whole trace, and the initial view, which starts shortly before the first phase.
const wholeSpan = () => [data.from, Math.max(data.end, data.from + 1)];
function homeSpan() {
  const [from, end] = wholeSpan();
  const first = data.phases.length > 0 ? data.phases[0][1] : from;
  const begin = Math.max(from, first - 0.04 * (end - first));
  return [data.peak.time < begin ? from : begin, end];
}

// The view's state: the selected moment and the visible categories.
const state = {
  moment: data.peak.time,
  shown: new Array(K).fill(true),
  reserved: true,
  begin: homeSpan()[0],
  end: homeSpan()[1],
};

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name);

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function swatch(category) {
  const node = element('span', {className: 'swatch'});
  node.style.background = `var(--${CATEGORIES[category]})`;
  return node;
}

// The tip beside the pointer. Without content it is hidden.
const tip = document.getElementById('tip');
function showTip(x, y, ...content) {
  tip.replaceChildren(...content);
  tip.hidden = content.length === 0;
  if (tip.hidden) return;
  const box = tip.getBoundingClientRect(), gap = 14;
  const left = x + gap + box.width > innerWidth ? x - gap - box.width : x + gap;
  tip.style.left = Math.max(6, left) + 'px';
  tip.style.top = Math.max(6, Math.min(y + gap, innerHeight - box.height - 6)) + 'px';
}
const hideTip = () => showTip(0, 0);

// A canvas's drawing context in CSS pixels, cleared.
function drawing(canvas) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const g = canvas.getContext('2d');
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  return {g, width, height};
}
