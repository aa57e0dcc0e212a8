// The table of queries: rows are made once and only what has changed is written.
import { Q, WHY, color, count, level, model, seconds, share, sharp } from "./model.js";

const SHOWN = 100;
const rows = new Map();
const body = document.getElementById("rows");
let chosen = () => {};

export function onSelect(callback) { chosen = callback; }

export function forget() { rows.clear(); body.replaceChildren(); }

function made(query) {
  const line = document.createElement("tr");
  line.tabIndex = -1;
  line.dataset.query = model.network.queries[query].name;
  line.innerHTML = `<td class="name"><i></i><span></span></td><td class="bar"><canvas></canvas></td><td class="num"></td>
    <td class="num"></td><td class="num"></td><td class="spark"><canvas></canvas></td><td class="whys"><canvas></canvas></td>
    <td class="num"></td><td class="num"></td><td class="num"></td><td class="num"></td><td class="num"></td>`;
  const cells = [...line.children];
  cells[0].firstChild.style.background = color(query);
  cells[0].lastChild.textContent = model.network.queries[query].name;
  cells[0].title = model.network.queries[query].name;
  for (const [place, width] of [[1, 112], [5, 92], [6, 56]]) {
    cells[place].firstChild.style.width = `${width}px`;
    cells[place].firstChild.style.height = "18px";
  }
  line.addEventListener("click", () => { chosen(query); });
  return { line, cells, texts: [] };
}

function write(row, place, text, kind = "") {
  if (row.texts[place] === text + kind) return;
  row.texts[place] = text + kind;
  row.cells[place].textContent = text;
  row.cells[place].className = `num ${kind}`;
}

// How much a query deserves to be looked at.
function badness(query) {
  const state = model.last.q[query][Q.state];
  if (state === "failed") return 3;
  if (state === "waiting") return 2;
  const { utility } = model.recent(query);
  return utility === null ? -1 : 1 - utility;
}

export function order() {
  const filter = document.getElementById("filter").value.trim().toLowerCase();
  const sort = document.getElementById("sort").value, queries = model.network.queries, last = model.last;
  let found = queries.map((_, number) => number).filter((n) => queries[n].name.toLowerCase().includes(filter) &&
    !["removed", "gone"].includes(last.q[n]?.[Q.state] ?? "gone"));
  const by = {
    worst: badness, goal: (n) => -(queries[n].goal ?? 1e9), backlog: (n) => last.q[n][Q.backlog], name: null,
    rate: (n) => model.rate((s) => s.q[n][Q.out]),
  }[sort];
  if (by) {
    // Steps of a tenth, so that rows do not jump about with every sample.
    const value = new Map(found.map((n) => [n, sort === "worst" ? Math.round(by(n) * 10) : by(n)]));
    found.sort((a, b) => value.get(b) - value.get(a) || a - b);
  } else found.sort((a, b) => queries[a].name.localeCompare(queries[b].name));
  return found;
}

export function draw() {
  if (!model.last) return;
  const found = order(), shown = found.slice(0, SHOWN), styles = getComputedStyle(document.documentElement);
  const paint = (name) => styles.getPropertyValue(name).trim();
  const paints = { good: paint("--good"), warn: paint("--warn"), bad: paint("--bad"), "": paint("--quiet"),
    grid: paint("--grid"), text: paint("--text"), why: WHY.map(([name]) => paint(`--${name}`)) };
  const lines = shown.map((query) => {
    if (!rows.has(query)) rows.set(query, made(query));
    update(rows.get(query), query, paints);
    return rows.get(query).line;
  });
  lines.forEach((line, place) => { if (body.children[place] !== line) body.insertBefore(line, body.children[place] ?? null); });
  while (body.children.length > lines.length) body.lastChild.remove();
  const more = found.length - shown.length;
  document.getElementById("more").textContent = more > 0 ? `… and ${count(more)} more; filter to see them.` : "";
}

function update(row, query, paints) {
  const now = model.last.q[query], recent = model.recent(query), goal = model.network.queries[query].goal;
  row.line.classList.toggle("selected", query === model.selected);
  row.line.setAttribute("aria-selected", query === model.selected);
  const trouble = now[Q.state] === "failed" || now[Q.state] === "waiting";
  write(row, 2, seconds(recent.p50));
  write(row, 3, seconds(recent.p99), goal !== null && recent.p99 > goal ? "bad" : "");
  write(row, 4, trouble ? now[Q.state] : share(recent.utility), trouble ? "bad" : level(recent.utility));
  write(row, 7, count(Math.round(model.rate((s) => s.q[query][Q.in]))));
  write(row, 8, count(Math.round(model.rate((s) => s.q[query][Q.out]))));
  write(row, 9, count(now[Q.late]), now[Q.late] ? "warn" : "");
  write(row, 10, count(now[Q.shed]), now[Q.shed] ? "warn" : "");
  write(row, 11, count(now[Q.backlog]));
  bar(row.cells[1].firstChild, recent, goal, paints);
  spark(row.cells[5].firstChild, query, paints);
  whys(row.cells[6].firstChild, recent.why, paints);
}

const LOW = Math.log(0.001), HIGH = Math.log(100);
const along = (value, width) => Math.max(0, Math.min(1, (Math.log(Math.max(value, 0.001)) - LOW) / (HIGH - LOW))) * width;

function bar(canvas, recent, goal, paints) {
  const [pen, width, height] = sharp(canvas);
  pen.fillStyle = paints.grid;
  pen.fillRect(0, height / 2 - 1, width, 2);
  if (goal !== null) {
    pen.fillStyle = paints.text;
    pen.fillRect(along(goal, width) - 1, 1, 2, height - 2);
  }
  if (recent.p50 === null) return;
  const left = along(recent.p50, width), right = Math.max(along(recent.p99, width), left + 4);
  pen.fillStyle = goal === null ? paints[""] : recent.p99 <= goal ? paints.good : recent.p50 <= goal ? paints.warn : paints.bad;
  pen.beginPath();
  pen.roundRect(left, height / 2 - 4, right - left, 8, 3);
  pen.fill();
}

// Utility over the last two minutes.
function spark(canvas, query, paints) {
  const [pen, width, height] = sharp(canvas), end = model.last.t, span = 120;
  for (const sample of model.samples) {
    const row = sample.q[query];
    if (!row || !row[Q.rows] || sample.t < end - span) continue;
    const x = width - (end - sample.t) / span * width, utility = row[Q.utility];
    pen.fillStyle = paints[level(utility)];
    const tall = utility === null ? 2 : Math.max(1.5, utility * (height - 2));
    pen.fillRect(x - 1.5, height - 1 - tall, Math.max(1.2, sample.dt / span * width), tall);
  }
}

function whys(canvas, why, paints) {
  const [pen, width, height] = sharp(canvas), total = why ? why.reduce((a, b) => a + b, 0) : 0;
  if (!total) return;
  let x = 0;
  why.forEach((part, number) => {
    pen.fillStyle = paints.why[number];
    pen.fillRect(x, height / 2 - 4, part / total * width, 8);
    x += part / total * width;
  });
}
