// Numbers as text, and round numbers along an axis.
"use strict";

const known = (x) => x !== null && Number.isFinite(x);

const UNITS = {
  count: [[1e12, " T"], [1e9, " B"], [1e6, " M"], [1e4, " k", 1e3]],
  bytes: [[2 ** 30, " GiB"], [0, " MiB", 2 ** 20]],
};

// The unit of `x` as [divisor, name].
function unitOf(x, units) {
  const [from, name, divisor = from] = units.find(([least]) => Math.abs(x) >= least) ?? [1, ""];
  return [divisor, name];
}

const format = {
  // 1234567 -> "1.23 M"; `digits` are significant digits.
  count(x, digits = 3) {
    if (!known(x)) return "–";
    const [divisor, unit] = unitOf(x, UNITS.count);
    if (unit === "" && Number.isInteger(x)) return x.toLocaleString("en");
    return Number((x / divisor).toPrecision(digits)) + unit;
  },
  number(x, digits = 4) {
    if (!known(x)) return "–";
    if (x !== 0 && Math.abs(x) < 1e-3) return Number(x.toPrecision(digits)).toExponential();
    return String(Number(x.toPrecision(digits)));
  },
  power(x, digits = 3) { return x === 0 ? "0" : Number(x.toPrecision(digits)).toExponential(); },
  percent(x) { return known(x) ? `${Number((100 * x).toPrecision(3))} %` : "–"; },
  bytes(x) {
    if (!known(x)) return "–";
    const [divisor, unit] = unitOf(x, UNITS.bytes);
    return x === 0 ? "0" : Number((x / divisor).toPrecision(3)) + unit;
  },
  duration(seconds) {
    if (!known(seconds)) return "–";
    if (seconds < 10) return `${Number(seconds.toPrecision(2))} s`;
    const s = Math.round(seconds), pad = (n) => String(n).padStart(2, "0");
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${pad(s % 60)} s`;
    return `${Math.floor(s / 3600)} h ${pad(Math.floor(s % 3600 / 60))} min`;
  },
};

// One format for all numbers of a column: one unit, and the number of decimals that gives the
// largest number `digits` digits.
function alike(values, units = [], digits = 3, scale = 1) {
  const most = Math.max(0, ...values.filter(known).map((x) => Math.abs(scale * x)));
  const [divisor, unit] = unitOf(most, units);
  const whole = Math.max(1, Math.floor(Math.log10(Math.max(most / divisor, 1))) + 1);
  const decimals = values.every((x) => !known(x) || (unit === "" && Number.isInteger(scale * x))) ? 0 : Math.max(0, digits - whole);
  return (x) => (known(x) ? (scale * x / divisor).toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }) + unit : "–");
}

// Durations of a column: seconds with a decimal below two minutes, minutes below two hours.
function alikeDurations(values) {
  const most = Math.max(0, ...values.filter(known));
  if (most < 120) return alike(values, [[0, " s", 1]], 1 + String(Math.floor(most)).length);
  const [unit, part, names] = most < 7200 ? [60, 1, [" min ", " s"]] : [3600, 60, [" h ", " min"]];
  return (x) => {
    if (!known(x)) return "–";
    const parts = Math.round(x / part), each = unit / part;
    return Math.floor(parts / each) + names[0] + String(parts % each).padStart(2, "0") + names[1];
  };
}

// Round distances between the ticks of a linear axis.
const STEPS = {
  number: (rough) => {
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= rough * (1 - 1e-9));
  },
  bytes: (rough) => 2 ** Math.ceil(Math.log2(rough)),
  duration: (rough) => {
    const round = [60, 120, 300, 600, 1200, 1800, 3600, 7200, 4 * 3600, 8 * 3600, 12 * 3600, 86400];
    return rough <= 30 ? STEPS.number(rough) : round.find((step) => step >= rough) ?? 86400 * STEPS.number(rough / 86400);
  },
};

function linearTicks(min, max, step) {
  const ticks = [];
  for (let i = Math.ceil(min / step - 1e-9); i <= max / step + 1e-9; ++i) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

// Round numbers of a logarithmic axis, from many to few.
function* logTicks(min, max) {
  const first = Math.floor(Math.log10(min)), last = Math.ceil(Math.log10(max));
  const inside = (x) => x >= min * (1 - 1e-9) && x <= max * (1 + 1e-9);
  const dense = max / min < 3 ? [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9] : [1, 2, 3, 4, 5, 6, 7, 8, 9];
  for (const digits of [dense, [1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let power = first; power <= last; ++power) ticks.push(...digits.map((digit) => Number((digit * 10 ** power).toPrecision(3))));
    yield ticks.filter(inside);
  }
  for (let stride = 2; stride <= last - first; ++stride) {
    const ticks = [];
    for (let power = first; power <= last; power += stride) ticks.push(10 ** power);
    yield ticks.filter(inside);
  }
}
