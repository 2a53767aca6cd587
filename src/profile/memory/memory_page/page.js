// Puts the parts of the page together.
'use strict';

function drawFigures() {
  const phase = phaseAt(data.peak.time);
  const figures = [
    ['Peak in use', formatBytes(data.peak.bytes), formatExact(data.peak.bytes) + ' bytes'],
    ['At', formatTime(data.peak.time), phase ? 'in ' + phase : 'outside phases'],
    ['Held from the device', formatBytes(data.stats.reserved),
      data.stats.segments + (data.stats.segments === 1 ? ' segment' : ' segments') + ' at the end'],
    ['Allocations', formatExact(allocations.length),
      formatExact(data.stats.allocations) + ' in use at the end'],
  ];
  document.getElementById('figures').replaceChildren(...figures.map(([label, value, more]) =>
    element('div', {}, element('dt', {textContent: label}),
      element('dd', {}, value, element('small', {textContent: more})))));
  document.getElementById('device').textContent = 'on ' + data.device;
  document.getElementById('subject').textContent = data.subject;
  document.title = 'Memory: ' + data.subject;
  const notes = [];
  if (data.failure) {
    notes.push(`The trace ends out of memory: ${nameOf(data.failure.name)} asked for ` +
      `${formatBytes(data.failure.bytes)} more.`);
  }
  if (data.dropped > 0) {
    notes.push(`${formatExact(data.dropped)} allocations that ended early are not shown: ` +
      'the recording has a limit.');
  }
  const note = document.getElementById('note');
  note.hidden = notes.length === 0;
  note.textContent = notes.join(' ');
}

function drawLegend() {
  const button = (mark, label, pressed, toggle) => {
    const node = element('button', {type: 'button'}, mark, label);
    node.setAttribute('aria-pressed', String(pressed));
    node.addEventListener('click', () => { toggle(); drawLegend(); drawTimeline(); });
    return node;
  };
  const peak = categoriesAt(data.peak.time);
  const used = CATEGORIES.map((_, k) => k).filter((k) => peak[k] > 0 || allocations.some((a) => a.category === k));
  const buttons = used.map((k) => button(swatch(k), CATEGORIES[k], state.shown[k],
    () => { state.shown[k] = !state.shown[k]; }));
  if (reserved.length) {
    buttons.push(button(element('span', {className: 'swatch dashed'}), 'reserved', state.reserved,
      () => { state.reserved = !state.reserved; }));
  }
  document.getElementById('legend').replaceChildren(...buttons);
}

function drawMoment() {
  drawComposition();
  drawTreemap();
}

function setMoment(time) {
  state.moment = time;
  drawTimeline();
  drawMoment();
  if (filter.live) drawAllocations();
}

function drawAll() {
  drawFigures();
  drawLegend();
  drawTimeline();
  drawMoment();
}

watchTimeline(setMoment);
watchTreemap();
watchFilter();
document.getElementById('to-peak').addEventListener('click', () => setMoment(data.peak.time));
addEventListener('resize', () => { drawTimeline(); drawTreemap(); });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);
drawAll();
drawAllocations();
