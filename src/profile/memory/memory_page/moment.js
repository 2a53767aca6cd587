// One moment: what was in use, as a bar and a table by category and as a treemap of allocations.
'use strict';

const treemap = document.getElementById('treemap');
const MOST_TILES = 600;
let tiles = [];  // as drawn: {x, y, width, height, category, bytes, allocation or count}

function drawComposition() {
  const sums = categoriesAt(state.moment), all = total(sums);
  const share = (bytes) => all === 0 ? '' : (100 * bytes / all).toFixed(1) + ' %';
  const cell = (text) => element('td', {className: 'number', textContent: text});
  const row = (first, bytes) => element('tr', {}, element('td', {}, ...first),
    cell(formatExact(bytes)), cell(formatBytes(bytes)), cell(share(bytes)));
  const order = [...sums.keys()].filter((k) => sums[k] > 0).sort((a, b) => sums[b] - sums[a]);
  document.querySelector('#categories tbody').replaceChildren(
    ...order.map((k) => row([swatch(k), CATEGORIES[k]], sums[k])));
  document.querySelector('#categories tfoot').replaceChildren(row(['all'], all));
  document.getElementById('bar').replaceChildren(...order.map((k) => {
    const part = element('i', {title: `${CATEGORIES[k]} ${formatBytes(sums[k])}`});
    part.style.cssText = `flex: ${sums[k]} 0 0; background: var(--${CATEGORIES[k]})`;
    return part;
  }));
  const peak = state.moment === data.peak.time, phase = phaseAt(state.moment);
  const when = formatTime(state.moment) + (phase ? ', ' + phase : '');
  document.getElementById('moment-title').textContent =
    (peak ? 'At the peak' : 'At a moment') + ' (' + when + ')';
  document.getElementById('to-peak').hidden = peak;
  document.getElementById('live-label').textContent =
    peak ? 'in use at the peak' : 'in use at that moment';
}

// Squarified treemap (Bruls, Huizing and van Wijk, 2000): items, largest first, in rows along the
// shorter side, a row growing while its tiles get squarer.
function squarify(items, box, put) {
  let {x, y, width, height} = box, rest = items.reduce((sum, item) => sum + item.bytes, 0);
  let begin = 0;
  while (begin < items.length && rest > 0 && width > 0 && height > 0) {
    const side = Math.min(width, height), scale = width * height / rest;
    const worst = (sum, largest, smallest) => Math.max(
      side * side * largest * scale / (sum * scale) ** 2, (sum * scale) ** 2 / (side * side * smallest * scale));
    let end = begin + 1, sum = items[begin].bytes;
    while (end < items.length) {
      const next = sum + items[end].bytes;
      if (worst(next, items[begin].bytes, items[end].bytes) >
          worst(sum, items[begin].bytes, items[end - 1].bytes)) break;
      sum = next;
      end += 1;
    }
    const depth = sum * scale / side;
    let at = 0;
    for (let i = begin; i < end; ++i) {
      const length = items[i].bytes / sum * side;
      if (width >= height) put(items[i], x, y + at, depth, length);
      else put(items[i], x + at, y, length, depth);
      at += length;
    }
    if (width >= height) { x += depth; width -= depth; } else { y += depth; height -= depth; }
    rest -= sum;
    begin = end;
  }
}

// Allocations in use, by category. Beyond MOST_TILES, the smallest of a category share one tile.
function treeGroups() {
  const groups = CATEGORIES.map((_, category) => ({category, bytes: 0, items: []}));
  const live = liveAt(state.moment).filter((a) => a.bytes > 0).sort((a, b) => b.bytes - a.bytes);
  live.forEach((allocation, i) => {
    const group = groups[allocation.category];
    group.bytes += allocation.bytes;
    if (i < MOST_TILES) return group.items.push({bytes: allocation.bytes, allocation});
    group.rest ??= {bytes: 0, count: 0};
    group.rest.bytes += allocation.bytes;
    group.rest.count += 1;
  });
  for (const group of groups) if (group.rest) group.items.push(group.rest);
  for (const group of groups) group.items.sort((a, b) => b.bytes - a.bytes);
  return groups.filter((group) => group.bytes > 0).sort((a, b) => b.bytes - a.bytes);
}

// White, or black where the tile is light (relative luminance, WCAG 2).
function textOn(fill) {
  const parts = fill.trim().slice(1).match(/../g).map((hex) => parseInt(hex, 16) / 255);
  const [r, green, b] = parts.map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * green + 0.0722 * b > 0.36 ? '#14171d' : '#fff';
}

function labelTile(g, tile, ink) {
  const name = tile.allocation ? tile.allocation.name : tile.count + ' smaller';
  if (tile.height < 18 || tile.width < 44) return;
  g.save();
  g.beginPath();
  g.rect(tile.x, tile.y, tile.width - 4, tile.height);
  g.clip();
  g.fillStyle = ink;
  g.font = '600 12px system-ui, sans-serif';
  g.fillText(name, tile.x + 7, tile.y + 14);
  g.font = FONT;
  g.globalAlpha = 0.88;
  if (tile.height > 34) g.fillText(formatBytes(tile.bytes), tile.x + 7, tile.y + 29);
  const module = tile.allocation ? tile.allocation.module.replace(/^model\./, '') : '';
  if (tile.height > 50 && module) g.fillText(module, tile.x + 7, tile.y + 44);
  g.restore();
}

function drawTreemap() {
  const {g, width, height} = drawing(treemap);
  g.textBaseline = 'middle';
  tiles = [];
  squarify(treeGroups(), {x: 0, y: 0, width, height}, (group, x, y, w, h) => {
    squarify(group.items, {x, y, width: w, height: h}, (item, tx, ty, tw, th) => {
      tiles.push({...item, category: group.category, x: tx, y: ty, width: tw, height: th});
    });
  });
  const base = CATEGORIES.map(color), ink = base.map(textOn);
  for (const tile of tiles) {
    g.fillStyle = base[tile.category];
    g.fillRect(tile.x, tile.y, Math.max(0.5, tile.width - 1.5), Math.max(0.5, tile.height - 1.5));
    labelTile(g, tile, ink[tile.category]);
  }
}

// The tip's lines for an allocation.
function describe(a) {
  const lines = [element('b', {textContent: a.name}), element('br'), swatch(a.category),
    `${CATEGORIES[a.category]} · ${formatBytes(a.bytes)} (${formatExact(a.bytes)} bytes)`];
  const line = (label, text) => { if (text) lines.push(element('br'), `${label} ${text}`); };
  line('op', a.op && a.op + (a.backward ? ' (backward)' : '') + (a.shapes ? ' ' + a.shapes : ''));
  line('module', a.module);
  line('phase', a.phase);
  line('from', formatTime(a.begin) + (a.end === Infinity ? ' to the end' : ' for ' + formatTime(a.life)));
  return lines;
}

function watchTreemap() {
  treemap.addEventListener('pointermove', (event) => {
    const box = treemap.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const tile = tiles.find((t) => x >= t.x && x < t.x + t.width && y >= t.y && y < t.y + t.height);
    if (!tile) return hideTip();
    if (tile.allocation) return showTip(event.clientX, event.clientY, ...describe(tile.allocation));
    showTip(event.clientX, event.clientY, element('b', {textContent: tile.count + ' smaller'}),
      element('br'), swatch(tile.category),
      `${CATEGORIES[tile.category]} · ${formatBytes(tile.bytes)}`);
  });
  treemap.addEventListener('pointerleave', hideTip);
}
