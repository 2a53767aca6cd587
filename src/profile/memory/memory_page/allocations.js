// The table of allocations, filtered and sorted.
'use strict';

const PAGE = 25;
const filter = {text: '', category: '', least: 0, live: false, key: 'bytes', down: true};
let rowsShown = PAGE;

const searched = (a) =>
  [a.name, a.op, a.module, a.phase, a.shapes, CATEGORIES[a.category]].join('\n').toLowerCase();

function matching() {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const category = filter.category === '' ? -1 : Number(filter.category);
  return allocations.filter((a) =>
    a.bytes >= filter.least && (category < 0 || a.category === category) &&
    (!filter.live || (a.begin <= state.moment && state.moment < a.end)) &&
    (words.length === 0 || words.every((word) => searched(a).includes(word))));
}

function allocationRow(a, most) {
  const bar = element('i');
  bar.style.cssText = `width: ${Math.max(1, 100 * a.bytes / most)}%; background: var(--${CATEGORIES[a.category]})`;
  const op = a.op + (a.backward ? ' (backward)' : '');
  const cell = (text, className = '') => element('td', {className, textContent: text});
  const opCell = cell(op, 'wide');
  if (a.shapes) opCell.append(element('span', {className: 'sub', textContent: a.shapes}));
  const row = element('tr', {},
    element('td', {className: 'number size', title: formatExact(a.bytes) + ' bytes'},
      formatBytes(a.bytes), bar),
    element('td', {}, a.name,
      element('span', {className: 'sub'}, swatch(a.category), ' ' + CATEGORIES[a.category]),
      element('span', {className: 'sub narrow', textContent: [op, a.module, a.phase].filter(Boolean).join(' · ')})),
    opCell, cell(a.module, 'wide'), cell(a.phase, 'wide'), cell(formatTime(a.begin), 'number wide'),
    cell(a.end === Infinity ? 'to the end' : formatTime(a.life), 'number wide'));
  row.addEventListener('pointermove', (event) => {
    if (event.pointerType === 'mouse') showTip(event.clientX, event.clientY, ...describe(a));
  });
  row.addEventListener('pointerleave', hideTip);
  return row;
}

function drawAllocations() {
  const found = matching();
  const life = (a) => filter.key === 'life' ? (a.end === Infinity ? Infinity : a.life) : a[filter.key];
  const sign = filter.down ? -1 : 1;
  found.sort((a, b) => {
    const x = life(a), y = life(b);
    return x === y ? a.index - b.index : x < y ? -sign : sign;
  });
  const most = found.reduce((bytes, a) => Math.max(bytes, a.bytes), 1);
  const sum = found.reduce((bytes, a) => bytes + a.bytes, 0);
  document.getElementById('count').textContent =
    `${found.length} of ${allocations.length}, ${formatBytes(sum)}`;
  document.querySelector('#allocations tbody').replaceChildren(
    ...found.slice(0, rowsShown).map((a) => allocationRow(a, most)));
  document.getElementById('more').hidden = found.length <= rowsShown;
  for (const button of document.querySelectorAll('#allocations th button')) {
    button.setAttribute('aria-pressed', String(button.dataset.key === filter.key));
  }
}

function watchFilter() {
  const refilter = () => { rowsShown = PAGE; drawAllocations(); };
  const read = (id, key, property, convert = (value) => value) => {
    const input = document.getElementById(id);
    input.addEventListener('input', () => { filter[key] = convert(input[property]); refilter(); });
  };
  const category = document.getElementById('category');
  CATEGORIES.forEach((name, k) => category.append(element('option', {value: String(k), textContent: name})));
  read('text', 'text', 'value');
  read('category', 'category', 'value');
  read('least', 'least', 'value', Number);
  read('live', 'live', 'checked');
  document.getElementById('filter').addEventListener('submit', (event) => event.preventDefault());
  document.getElementById('more').addEventListener('click', () => { rowsShown += PAGE; drawAllocations(); });
  for (const button of document.querySelectorAll('#allocations th button')) {
    button.addEventListener('click', () => {
      filter.down = button.dataset.key === filter.key ? !filter.down : true;
      filter.key = button.dataset.key;
      refilter();
    });
  }
}
