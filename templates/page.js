// What the page can do beyond being read: themes, sorting, downloads, scenarios that are put aside, and an address that
// remembers all of it. Without script the page shows everything.
(() => {
'use strict';
const doc = document, root = doc.documentElement, $ = (s, at = doc) => [...at.querySelectorAll(s)];
const HUES = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#0072B3', '#D55E01', '#009E74', '#CC79A8'];
const state = { at: '', theme: '', hide: new Set(), sort: new Map(), open: new Set() };
const tables = $('main table').filter((table) => table.tHead), details = $('main details');
// What is open at first is open unless the address says that it was turned over, and the other way round.
const first = details.map((one) => one.open);
const say = doc.getElementById('status');

const read = () => {
  const [at, ...parts] = decodeURIComponent(location.hash.slice(1)).split(';');
  state.at = doc.getElementById(at) ? at : '';
  state.theme = ''; state.hide.clear(); state.sort.clear(); state.open.clear();
  for (const part of parts) {
    const [key, value = ''] = part.split('='), list = value.split(',').filter(Boolean);
    if (key === 'theme' && /^(light|dark)$/.test(value)) state.theme = value;
    if (key === 'hide') list.filter((id) => /^\d+$/.test(id)).forEach((id) => state.hide.add(id));
    if (key === 'open') list.map(Number).filter((at) => details[at]).forEach((at) => state.open.add(at));
    if (key === 'sort') for (const one of list) {
      const [, table, column, way] = one.match(/^(\d+)\.(\d+)([ad])$/) || [];
      if (table && tables[table] && tables[table].tHead.rows[0].cells[column]) state.sort.set(+table, [+column, way]);
    }
  }
};
const write = () => {
  const parts = [state.at];
  if (state.theme) parts.push('theme=' + state.theme);
  if (state.hide.size) parts.push('hide=' + [...state.hide].join());
  if (state.open.size) parts.push('open=' + [...state.open].join());
  if (state.sort.size) parts.push('sort=' + [...state.sort].map(([t, [c, w]]) => t + '.' + c + w).join());
  const hash = parts.length > 1 || state.at ? '#' + parts.join(';') : location.pathname + location.search;
  history.replaceState(null, '', hash);
};

const value = (cell) => {
  const raw = cell.dataset.v ?? cell.textContent.trim();
  return raw === '' || raw === '–' ? null : isNaN(raw) ? raw : +raw;
};
const compare = (a, b) => (typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b)));
const sort = (table, column, way) => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => {
    if (at === column) head.setAttribute('aria-sort', way === 'a' ? 'ascending' : 'descending');
    else head.removeAttribute('aria-sort');
  });
  for (const body of table.tBodies) {
    const rows = [...body.rows].map((row, at) => ({ row, at: +(row.dataset.at ??= at), v: value(row.cells[column] || row.cells[0]) }));
    rows.sort((a, b) => {
      if (a.v === null || b.v === null) return (a.v === null) - (b.v === null) || a.at - b.at;
      return (way === 'a' ? 1 : -1) * compare(a.v, b.v) || a.at - b.at;
    });
    body.append(...rows.map((one) => one.row));
  }
};

const aside = doc.createElement('style');
doc.head.append(aside);
const show = () => {
  if (state.theme) root.dataset.theme = state.theme; else delete root.dataset.theme;
  $('[data-theme-is]').forEach((one) => one.setAttribute('aria-pressed', String(one.dataset.themeIs === state.theme)));
  $('[data-toggle]').forEach((one) => one.setAttribute('aria-pressed', String(!state.hide.has(one.dataset.toggle))));
  aside.textContent = [...state.hide].map((id) => `[data-s="${id}"]{display:none}` + (HUES[id]
    ? `.by-scenario :is(polyline,circle,path)[stroke="${HUES[id]}"],.by-scenario circle[fill="${HUES[id]}"]{display:none}` : '')).join('');
  details.forEach((one, at) => { one.open = first[at] !== state.open.has(at); });
  state.sort.forEach(([column, way], at) => sort(tables[at], column, way));
};

const save = (name, type, text) => {
  const link = doc.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  if (say) say.textContent = name + ' saved';
};
const quote = (text) => {
  // A spreadsheet takes a text with such a beginning for a formula.
  const safe = isNaN(text) && /^[=+\-@\t\r]/.test(text) ? "'" + text : text;
  return /[",\r\n]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
};
const text = (cell) => (cell.dataset.v ?? cell.textContent).replace(/\s+/g, ' ').trim();
const csv = (table) => [...table.rows].filter((row) => !row.querySelector('[scope="rowgroup"]'))
  .map((row) => [...row.cells].map((cell) => quote(text(cell) === '–' ? '' : text(cell))).join()).join('\r\n') + '\r\n';
const button = (label, act) => {
  const made = doc.createElement('button');
  made.type = 'button';
  made.textContent = label;
  made.addEventListener('click', act);
  return made;
};
const nameOf = (node) => node.closest('section')?.id || 'data';

tables.forEach((table, at) => {
  const heads = table.tHead.rows[0].cells;
  if (table.tHead.rows.length === 1 && table.tBodies.length === 1 && !table.querySelector('[rowspan],[colspan]')) [...heads].forEach((head, column) => {
    const made = button('', () => {
      const way = head.getAttribute('aria-sort') === 'ascending' ? 'd' : 'a';
      state.sort.set(at, [column, way]);
      sort(table, column, way);
      write();
    });
    made.className = 'sort';
    made.append(...head.childNodes);
    head.append(made);
  });
  const count = tables.slice(0, at).filter((other) => nameOf(other) === nameOf(table)).length + 1;
  const tools = doc.createElement('p');
  tools.className = 'tools';
  tools.append(button('CSV', () => save(`${nameOf(table)}-${count}.csv`, 'text/csv', csv(table))));
  tools.firstChild.setAttribute('aria-label', `Download table ${count} of ${nameOf(table)} as CSV`);
  (table.closest('.scroll') || table).after(tools);
});
$('.chart.wide').forEach((chart, at) => {
  const svg = chart.querySelector('svg');
  const tools = doc.createElement('p');
  tools.className = 'tools';
  tools.append(button('SVG', () => {
    const copy = svg.cloneNode(true), seen = [svg, ...$('*', svg)], made = [copy, ...$('*', copy)];
    copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
    copy.style.background = getComputedStyle(doc.body).backgroundColor;
    seen.forEach((node, at) => { for (const key of ['fill', 'stroke']) if (node.hasAttribute(key)) made[at].setAttribute(key, getComputedStyle(node)[key]); });
    save(`${nameOf(chart)}-${at + 1}.svg`, 'image/svg+xml', new XMLSerializer().serializeToString(copy));
  }));
  tools.firstChild.setAttribute('aria-label', 'Download figure as SVG: ' + (svg.getAttribute('aria-label') || ''));
  chart.after(tools);
});
details.forEach((one, at) => one.addEventListener('toggle', () => {
  const turned = one.open !== first[at];
  if (printing || turned === state.open.has(at)) return;
  if (turned) state.open.add(at); else state.open.delete(at);
  write();
}));
let printing = false;
addEventListener('beforeprint', () => { printing = true; details.forEach((one) => { one.open = true; }); });
addEventListener('afterprint', () => { details.forEach((one, at) => { one.open = first[at] !== state.open.has(at); }); setTimeout(() => { printing = false; }); });

$('[data-theme-is]').forEach((one) => one.addEventListener('click', () => { state.theme = one.dataset.themeIs; show(); write(); }));
$('[data-toggle]').forEach((one) => one.addEventListener('click', () => {
  const id = one.dataset.toggle;
  if (!state.hide.delete(id)) state.hide.add(id);
  show();
  write();
}));
const data = doc.getElementById('report-data');
// The data of the page is gzip in base 64.
const unpacked = () => new Response(new Blob([Uint8Array.from(atob(data.textContent), (letter) => letter.charCodeAt(0))]).stream()
  .pipeThrough(new DecompressionStream('gzip'))).text();
const holds = data.dataset.holds;
$('[data-json]').forEach((one) => {
  if (!self.DecompressionStream) one.hidden = true;
  if (holds !== 'report') one.textContent = 'Summary as JSON (all is in report.json)';
  one.addEventListener('click', () => unpacked().then((text) => save(holds + '.json', 'application/json', text)));
});
$('a[href^="#"]').forEach((one) => one.addEventListener('click', (event) => {
  const target = doc.getElementById(one.getAttribute('href').slice(1));
  if (!target) return;
  event.preventDefault();
  state.at = target.id;
  write();
  target.scrollIntoView();
  target.tabIndex = -1;
  target.focus({ preventScroll: true });
}));
addEventListener('hashchange', () => { read(); show(); doc.getElementById(state.at)?.scrollIntoView(); });
root.classList.add('script');
read();
show();
if (state.at) doc.getElementById(state.at).scrollIntoView();
})();
