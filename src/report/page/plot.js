// A plot on a canvas: axes, bands and curves; over it a crosshair, dots and the values at the pointer.
"use strict";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const plots = [];

// Maps the values of an axis to pixels.
class Scale {
  constructor({ min, max, log }, from, to) {
    Object.assign(this, { min, max, log, from, to });
    this.along = log ? Math.log : (value) => value;
  }
  place(value) {
    const share = (this.along(value) - this.along(this.min)) / (this.along(this.max) - this.along(this.min));
    return this.from + share * (this.to - this.from);
  }
  value(pixel) {
    const share = (pixel - this.from) / (this.to - this.from);
    const at = this.along(this.min) + share * (this.along(this.max) - this.along(this.min));
    return this.log ? Math.exp(at) : at;
  }
  // The largest set of ticks that fits. `apart(a, b)`: the pixels that two neighbour labels need.
  ticks(steps, most, apart) {
    const fit = (ticks) => ticks.length > 1 && ticks.every((tick, i) => i === 0 || Math.abs(this.place(tick) - this.place(ticks[i - 1])) >= apart(ticks[i - 1], tick));
    if (this.log) {
      for (const ticks of logTicks(this.min, this.max)) if (fit(ticks)) return ticks;
    }
    for (let count = most; count > 1; --count) {
      const ticks = linearTicks(this.min, this.max, steps((this.max - this.min) / count));
      if (fit(ticks)) return ticks;
    }
    return [this.min];
  }
}

class Plot {
  // `box` has a height; the canvas fills it.
  constructor(box, canvas) {
    this.box = box;
    this.canvas = canvas;
    this.cross = make("i", { class: "cross", hidden: "" });
    this.dots = make("div");
    this.tip = make("div", { class: "tip", hidden: "" });
    box.append(canvas, this.cross, this.dots, this.tip);
    canvas.tabIndex = 0;
    for (const kind of ["pointermove", "pointerdown"]) canvas.addEventListener(kind, (event) => this.point(event.offsetX, event.offsetY));
    canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.leave());
    canvas.addEventListener("blur", () => this.leave());
    canvas.addEventListener("keydown", (event) => this.step(event));
    plots.push(this);
    new ResizeObserver(() => this.draw()).observe(box);
  }

  // `curves`: { run, label, color, width, points: [{ x, y }], dash, dot, behind, band: [{ x, y, high }] }. y null: a gap.
  // Curves with `behind` show no values at the pointer. `x`: { min, max, log, steps, tick, tip, title }. `y`: { log, zero,
  // steps, tick, most }; its range follows the curves.
  show(content) {
    Object.assign(this, content);
    this.leave();
    this.draw();
  }

  // The range of y: a margin around the curves, and ticks at both ends of a linear one.
  yRange() {
    const { log, zero, steps, most } = this.y;
    const values = this.curves.flatMap(({ points, band = [] }) => [...points, ...band].flatMap((p) => [p.y, p.high ?? null]));
    let { min, max } = rangeOf(values, log);
    if (max === -Infinity) return { min: 0, max: 1 };
    if (log) return { log, min: 0.96 * min, max: 1.04 * max };
    if (zero) min = Math.min(0, min);
    const spread = max - min > 1e-9 * Math.max(Math.abs(min), Math.abs(max)) ? max - min : 0; // else rounding
    const margin = (zero ? 0.08 : 0.03) * (spread || Math.abs(max) || 1);
    const step = steps((max + margin - (zero ? min : min -= margin)) / most);
    return { min: Math.floor(min / step + 1e-9) * step, max: Math.ceil((max + margin) / step - 1e-9) * step };
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (!this.curves || width === 0) return;
    const dense = window.devicePixelRatio, g = this.canvas.getContext("2d");
    this.canvas.width = Math.round(width * dense);
    this.canvas.height = Math.round(height * dense);
    g.scale(dense, dense);
    g.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
    const bottom = height - (this.x.title ? 44 : 24), textWidth = (text) => g.measureText(text).width;
    const most = Math.max(2, Math.min(this.y.most, Math.floor(bottom / 26)));
    this.y.scale = new Scale(this.yRange(), bottom, 10);
    const yTicks = this.y.scale.ticks(this.y.steps, most, () => 22);
    const left = Math.ceil(Math.max(...yTicks.map((y) => textWidth(this.y.tick(y))))) + 12;
    this.x.scale = new Scale(this.x, left, width - 12);
    const xTicks = this.x.scale.ticks(this.x.steps, 11, (a, b) => (textWidth(this.x.tick(a)) + textWidth(this.x.tick(b))) / 2 + 16);
    this.drawAxes(g, xTicks, yTicks, { width, height, left, bottom });
    g.save();
    g.beginPath();
    g.rect(left - 5, 0, width - left, bottom + 5);
    g.clip();
    for (const curve of [...this.curves].reverse()) this.drawCurve(g, curve); // the first on top
    g.restore();
  }

  drawAxes(g, xTicks, yTicks, { width, height, left, bottom }) {
    g.textBaseline = "middle";
    g.textAlign = "right";
    const line = (x0, y0, x1, y1, color) => {
      g.strokeStyle = css(color);
      g.beginPath();
      g.moveTo(x0, y0);
      g.lineTo(x1, y1);
      g.stroke();
    };
    const muted = css("--muted");
    g.fillStyle = muted;
    for (const tick of yTicks) {
      const y = Math.round(this.y.scale.place(tick)) + 0.5;
      line(left, y, width - 12, y, "--grid");
      g.fillText(this.y.tick(tick), left - 8, y);
    }
    line(left + 0.5, 10, left + 0.5, bottom, "--line");
    line(left, bottom + 0.5, width - 12, bottom + 0.5, "--line");
    g.textAlign = "center";
    for (const tick of xTicks) {
      const text = this.x.tick(tick), half = g.measureText(text).width / 2;
      g.fillText(text, Math.min(Math.max(this.x.scale.place(tick), half), width - half), bottom + 14);
    }
    if (this.x.title) g.fillText(this.x.title, (left + width - 12) / 2, height - 9);
    if (this.curves.every((curve) => curve.points.every((p) => p.y === null))) g.fillText("no values", (left + width - 12) / 2, bottom / 2);
  }

  drawCurve(g, { points, color, width, dash, dot, band }) {
    const place = (p) => [this.x.scale.place(p.x), this.y.scale.place(p.y)];
    if (band) this.drawBand(g, band, color, place);
    g.strokeStyle = color;
    g.lineWidth = width;
    g.lineJoin = "round";
    g.setLineDash(dash ?? []);
    g.beginPath();
    let drawing = false;
    for (const p of points) {
      if (p.y !== null) g[drawing ? "lineTo" : "moveTo"](...place(p));
      drawing = p.y !== null;
    }
    g.stroke();
    g.setLineDash([]);
    if (!dot) return;
    for (const p of points.filter((each) => each.y !== null)) {
      g.beginPath();
      g.arc(...place(p), 3, 0, 2 * Math.PI);
      g.fillStyle = dot;
      g.fill();
      g.stroke();
    }
  }

  drawBand(g, band, color, place) {
    g.fillStyle = faded(color, 0.16);
    for (let begin = 0; begin < band.length;) {
      let end = begin;
      while (end < band.length && band[end].y !== null) ++end;
      const part = band.slice(begin, end);
      g.beginPath();
      for (const { x, high } of part) g.lineTo(...place({ x, y: high }));
      for (const p of part.reverse()) g.lineTo(...place(p));
      g.fill();
      begin = end + 1;
    }
  }

  // The point of each curve nearest to the pixel; leaves out curves without a point near it.
  nearest(pixel) {
    const found = [];
    for (const curve of this.curves.filter((each) => !each.behind)) {
      let best = null;
      for (const p of curve.points) {
        const distance = Math.abs(this.x.scale.place(p.x) - pixel);
        if (p.y !== null && (best === null || distance < best.distance)) best = { ...p, curve, distance };
      }
      if (best) found.push(best);
    }
    const least = Math.min(...found.map((p) => p.distance));
    return found.filter((p) => p.distance <= least + 16);
  }

  point(pixel, height) {
    const { from, to } = this.x.scale;
    if (pixel < from - 5 || pixel > to + 5) return this.leave();
    this.pixel = Math.min(Math.max(pixel, from), to);
    for (const plot of plots) plot.mark(this.x.scale.value(this.pixel), plot === this);
    const points = this.nearest(this.pixel);
    this.tip.hidden = points.length === 0;
    if (points.length === 0) return;
    this.dots.replaceChildren(...points.map((p) => make("i", { class: "at", style: `left: ${this.x.scale.place(p.x)}px; top: ${this.y.scale.place(p.y)}px; background: ${p.curve.color}` })));
    const other = (p) => (p.x === points[0].x ? "" : ` (${this.x.tip(p.x)})`);
    this.tip.replaceChildren(make("b", {}, this.x.tip(points[0].x)), ...points.map((p) =>
      make("span", { style: `--color: ${p.curve.color}` }, `${p.curve.label}: ${this.y.tick(p.y)}${other(p)}`)));
    const { offsetWidth: width, offsetHeight: tall } = this.tip;
    const beside = this.pixel + 14 + width <= this.box.clientWidth ? this.pixel + 14 : this.pixel - 14 - width;
    this.tip.style.left = `${Math.max(0, beside)}px`;
    this.tip.style.top = `${Math.min(Math.max(0, height - tall / 2), Math.max(0, this.box.clientHeight - tall))}px`;
  }

  // The crosshair at a value of x; null: none.
  mark(x, own) {
    const place = x === null || !this.curves ? NaN : this.x.scale.place(x);
    const inside = place >= this.x?.scale?.from - 1 && place <= this.x.scale.to + 1;
    this.cross.hidden = !inside;
    if (inside) Object.assign(this.cross.style, { left: `${place}px`, bottom: `${this.box.clientHeight - this.y.scale.from}px` });
    if (own) return;
    this.dots.replaceChildren();
    this.tip.hidden = true;
  }

  leave() {
    this.pixel = null;
    for (const plot of plots) plot.mark(null, false);
  }

  step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const { from, to } = this.x.scale, pixel = this.pixel ?? (by > 0 ? from : to);
    this.point(Math.min(Math.max(pixel + by * (to - from) / 60, from), to), this.y.scale.from / 2);
  }
}

// "#rrggbb" with an opacity.
const faded = (color, opacity) => color + Math.round(255 * opacity).toString(16).padStart(2, "0");

// The smallest and largest of the known numbers; with `positive` only of those above 0.
function rangeOf(values, positive) {
  const range = { min: Infinity, max: -Infinity };
  for (const x of values) {
    if (!known(x) || (positive && !(x > 0))) continue;
    range.min = Math.min(range.min, x);
    range.max = Math.max(range.max, x);
  }
  return range;
}
