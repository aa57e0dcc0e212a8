// The network: sources, boxes and queries, with queues before boxes and rates on arrows.
import { B, Q, color, count, cssVar, level, model, seconds, sharp } from "./model.js";
import { APART, layout } from "./layout.js";
import { movable } from "./picture.js";

const canvas = document.getElementById("network");
const WIDE = 150, TALL = 20;
let placed = null, view = { scale: 1, x: 0, y: 0, mine: false }, way = new Set();

export function reset() {
  placed = layout(model.network.nodes, model.network.arrows);
  const { y, layer, layers } = placed, tall = Math.max(...y) - Math.min(...y) + 2 * APART;
  canvas.style.height = `${Math.round(Math.max(220, Math.min(tall * 0.8 + 20, innerWidth < 720 ? 380 : 760)))}px`;
  // Layers as far apart as the picture is wide, if it is shown as a whole.
  const scale = Math.min(1.15, canvas.clientHeight / tall), wide = canvas.clientWidth / scale - WIDE - 100;
  const step = Math.max(WIDE + 50, Math.min(WIDE + 190, wide / Math.max(1, layers - 1)));
  placed.x = layer.map((own) => own * step);
  view.mine = false;
  follow();
}

// The boxes on the way to the selected query.
export function follow() {
  way = new Set();
  if (!placed) return;
  const first = model.network.nodes.findIndex((node) => node.kind === "query");
  const todo = first < 0 ? [] : [first + model.selected];
  while (todo.length) {
    const node = todo.pop();
    if (way.has(node)) continue;
    way.add(node);
    todo.push(...placed.up[node]);
  }
}

function fit() {
  const { x, y } = placed, left = Math.min(...x) - 20, right = Math.max(...x) + WIDE + 70, top = Math.min(...y) - 30, bottom = Math.max(...y) + 30;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  view.scale = Math.min(1.15, width / (right - left), Math.max(height / (bottom - top), 0.2));
  view.x = (width - (right + left) * view.scale) / 2;
  view.y = (height - (bottom + top) * view.scale) / 2;
}

function figures(node) {
  const sources = model.network.sources.length, boxes = model.last.b.length, last = model.last;
  if (node < sources) return { out: model.rate((s) => s.s[node]?.[0] ?? 0), queued: 0, busy: 0 };
  if (node < sources + boxes) {
    const box = node - sources;
    return { out: model.rate((s) => s.b[box]?.[B.out] ?? 0), in: model.rate((s) => s.b[box]?.[B.in] ?? 0), queued: last.b[box][B.queued], busy: model.rate((s) => s.b[box]?.[B.busy] ?? 0) };
  }
  const query = node - sources - boxes;
  return { query, in: model.rate((s) => s.q[query]?.[Q.out] ?? 0), queued: 0, busy: 0, recent: model.recent(query) };
}

export function draw() {
  if (!model.last || !placed || placed.x.length !== model.network.nodes.length) return;
  if (!view.mine) fit();
  const [pen, width, height] = sharp(canvas), { nodes, arrows } = model.network, { x, y } = placed;
  const all = nodes.map((_, node) => figures(node)), far = view.scale < 0.4;
  const paint = Object.fromEntries(["card", "edge", "line", "text", "quiet", "accent", "box", "warn", "bad", "good", "turn", "work"].map((name) => [name, cssVar(`--${name}`)]));
  pen.translate(view.x, view.y);
  pen.scale(view.scale, view.scale);
  const seen = (node, margin = 260) => { const px = x[node] * view.scale + view.x, py = y[node] * view.scale + view.y; return px > -margin && px < width + margin && py > -60 && py < height + 60; };
  for (const marked of [false, true])
    for (const [from, to] of arrows) {
      const on = way.has(from) && way.has(to);
      if (on !== marked || !(seen(from) || seen(to))) continue;
      const x1 = x[from] + WIDE, y1 = y[from], x2 = x[to], y2 = y[to], middle = (x1 + x2) / 2, rate = all[from].out;
      pen.strokeStyle = on ? paint.accent : paint.edge;
      pen.globalAlpha = on ? 0.95 : 0.45;
      pen.lineWidth = Math.max(0.6, Math.min(5, Math.log10(1 + rate) * 0.8)) / Math.max(view.scale, 0.5);
      pen.beginPath();
      pen.moveTo(x1, y1);
      pen.bezierCurveTo(middle, y1, middle, y2, x2, y2);
      pen.stroke();
      pen.globalAlpha = 1;
    }
  pen.font = "13px system-ui";
  nodes.forEach((node, number) => {
    if (!seen(number)) return;
    const own = all[number], top = y[number] - TALL / 2, on = way.has(number);
    const state = node.kind === "query" ? model.last.q[own.query]?.[Q.state] : "";
    pen.fillStyle = node.kind === "box" ? paint.box : paint.card;
    pen.strokeStyle = state === "failed" ? paint.bad : on ? paint.accent : paint.edge;
    pen.lineWidth = on ? 2 : 1;
    pen.beginPath();
    pen.roundRect(x[number], top, WIDE, TALL, node.kind === "box" ? 4 : 12);
    pen.fill();
    if (own.busy > 0.002) { // what part of a worker's time it takes
      pen.save(); pen.clip(); pen.fillStyle = paint.work; pen.globalAlpha = 0.32;
      pen.fillRect(x[number], top, WIDE * Math.min(1, own.busy), TALL); pen.restore();
    }
    pen.stroke();
    if (node.kind === "query") {
      pen.fillStyle = state === "failed" || state === "waiting" ? paint.bad : { good: paint.good, warn: paint.warn, bad: paint.bad }[level(own.recent.utility)] ?? color(own.query);
      pen.beginPath(); pen.arc(x[number] + 12, y[number], 5, 0, 7); pen.fill();
    }
    if (own.queued > 0) { // its queue, before it
      const long = Math.min(46, 6 + Math.log10(1 + own.queued) * 8);
      pen.fillStyle = own.queued > 100000 ? paint.bad : paint.turn;
      pen.fillRect(x[number] - long, y[number] - 4, long, 8);
      if (!far) { pen.fillStyle = paint.text; pen.textAlign = "right"; pen.fillText(count(own.queued), x[number] - 3, y[number] - 7); pen.textAlign = "left"; }
    }
    if (far) return;
    pen.fillStyle = paint.text;
    const text = node.name.length > 18 ? `${node.name.slice(0, 17)}…` : node.name;
    pen.fillText(text, x[number] + (node.kind === "query" ? 22 : 8), y[number] + 4);
    if (own.out > 0.5 && view.scale > 0.45) { pen.fillStyle = paint.quiet; pen.fillText(`${count(Math.round(own.out))}/s`, x[number] + WIDE + 4, y[number] - 3); }
    if (node.kind === "query" && view.scale > 0.45 && own.in > 0.5) { pen.fillStyle = paint.quiet; pen.fillText(`${count(Math.round(own.in))}/s`, x[number] + WIDE + 4, y[number] + 4); }
  });
}

function nodeAt(px, py) {
  if (!placed) return -1;
  const gx = (px - view.x) / view.scale, gy = (py - view.y) / view.scale;
  return placed.x.findIndex((x, node) => gx >= x && gx <= x + WIDE && Math.abs(gy - placed.y[node]) <= TALL / 2 + 2);
}

movable(canvas, {
  homeText: "fit", homeTitle: "Show all",
  pan(dx, dy) { view.mine = true; view.x += dx; view.y += dy; draw(); },
  zoom(factor, px, py) {
    const scale = Math.max(0.05, Math.min(4, view.scale * factor)), change = scale / view.scale;
    view = { scale, x: px - (px - view.x) * change, y: py - (py - view.y) * change, mine: true };
    draw();
  },
  home() { view.mine = false; draw(); },
  at(px, py) {
    const number = nodeAt(px, py);
    if (number < 0 || !model.last) return "";
    const node = model.network.nodes[number], own = figures(number);
    const lines = [node.name, node.does.length > 200 ? `${node.does.slice(0, 200)}…` : node.does];
    if (node.kind === "box") lines.push(`${count(Math.round(own.in))} rows/s in, ${count(Math.round(own.out))} rows/s out`, `${count(own.queued)} rows wait; busy ${(own.busy * 100).toFixed(1)} % of a worker`);
    else if (node.kind === "source") lines.push(`${count(Math.round(own.out))} rows/s`);
    else lines.push(`${count(Math.round(own.in))} results/s, p50 ${seconds(own.recent.p50)}, p99 ${seconds(own.recent.p99)}`);
    return lines.filter(Boolean).join("\n");
  },
  pick(px, py) {
    const number = nodeAt(px, py);
    if (number < 0) return;
    const { nodes, sources } = model.network, box = number - sources.length;
    const query = nodes[number].kind === "query" ? number - (nodes.length - model.network.queries.length) : (model.queriesOfBox[box] ?? [])[0];
    if (query !== undefined) canvas.dispatchEvent(new CustomEvent("query", { detail: query, bubbles: true }));
  },
}, document.getElementById("network-tools"));
