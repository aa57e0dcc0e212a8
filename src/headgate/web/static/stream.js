// The task stream: a row per worker, a colour per query, calls with late answers outlined.
import { color, count, cssVar, model, seconds, sharp } from "./model.js";
import { movable } from "./picture.js";

const canvas = document.getElementById("stream");
const ROW = 22, LEFT = 66, BOTTOM = 18;
const view = { span: 12, end: null };

function paint(box) {
  const queries = model.queriesOfBox[box] ?? [];
  return queries.length === 1 ? color(queries[0]) : queries.length === 0 ? cssVar("--edge") : "hsl(205 14% 58%)";
}

function lanes() {
  let most = model.last ? model.last.workers : 1;
  for (const call of model.calls) if (call[0] >= most) most = call[0] + 1;
  return Math.min(most, 64);
}

const end = () => view.end ?? (model.last ? model.last.t : 0);
const x = (time) => LEFT + (1 - (end() - time) / view.span) * (canvas.clientWidth - LEFT);

export function draw() {
  if (!model.last || !model.network) return;
  const rows = lanes();
  canvas.style.height = `${Math.max(60, rows * ROW + BOTTOM + 6)}px`;
  const [pen, width, height] = sharp(canvas);
  pen.font = "11px system-ui";
  const quiet = cssVar("--quiet"), grid = cssVar("--grid"), bad = cssVar("--bad"), selected = model.selected;
  const from = end() - view.span;
  const step = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60].find((s) => view.span / s <= 10) ?? 120;
  for (let time = Math.ceil(from / step) * step; time <= end(); time += step) {
    pen.fillStyle = grid;
    pen.fillRect(x(time), 0, 1, height - BOTTOM);
    pen.fillStyle = quiet;
    pen.fillText(`${+time.toFixed(3)} s`, x(time) + 3, height - 5);
  }
  pen.fillStyle = quiet;
  for (let worker = 0; worker < rows; worker++) pen.fillText(`worker ${worker}`, 6, worker * ROW + ROW / 2 + 6);
  const paints = new Map(), reached = new Array(rows).fill(-1);
  for (const [worker, box, , start, stop, late] of model.calls) {
    if (stop < from || start > end() || worker >= rows) continue;
    const left = Math.max(x(start), LEFT), right = Math.max(x(stop), left + 0.7);
    if (right <= reached[worker] && !late) continue; // within a pixel that is painted already
    reached[worker] = right;
    if (!paints.has(box)) paints.set(box, paint(box));
    pen.fillStyle = paints.get(box);
    const mine = (model.queriesOfBox[box] ?? []).includes(selected);
    const top = worker * ROW + 4, tall = ROW - 5;
    pen.globalAlpha = view.only && !mine ? 0.18 : 1;
    pen.fillRect(left, top, right - left, tall);
    if (late) {
      pen.strokeStyle = bad;
      pen.lineWidth = 1.5;
      if (right - left > 4) pen.strokeRect(left + 0.75, top + 0.75, right - left - 1.5, tall - 1.5);
      else { pen.fillStyle = bad; pen.fillRect(left, top, right - left, 2); pen.fillRect(left, top + tall - 2, right - left, 2); }
    }
    pen.globalAlpha = 1;
  }
}

function callAt(px, py) {
  const worker = Math.floor((py - 2) / ROW), time = end() - (1 - (px - LEFT) / (canvas.clientWidth - LEFT)) * view.span;
  const near = view.span / canvas.clientWidth * 2;
  let best = null;
  for (const call of model.calls) if (call[0] === worker && call[3] - near <= time && call[4] + near >= time)
    if (!best || call[4] - call[3] > best[4] - best[3]) best = call;
  return best;
}

movable(canvas, {
  homeText: "live", homeTitle: "Follow what happens now",
  pan(dx) { view.end = Math.min(end() - dx / (canvas.clientWidth - LEFT) * view.span, model.last?.t ?? 0); draw(); },
  zoom(factor, px) {
    const at = (px - LEFT) / (canvas.clientWidth - LEFT), time = end() - (1 - at) * view.span;
    view.span = Math.max(0.005, Math.min(240, view.span / factor));
    if (view.end !== null || at < 0.9) view.end = Math.min(time + (1 - at) * view.span, model.last?.t ?? 0);
    draw();
  },
  home() { view.end = null; view.span = 12; draw(); },
  at(px, py) {
    const call = callAt(px, py);
    if (!call) return "";
    const [worker, box, tuples, start, stop, late] = call, node = model.network.nodes[model.network.sources.length + box];
    const queries = (model.queriesOfBox[box] ?? []).map((query) => model.network.queries[query].name);
    const whose = queries.length > 4 ? `${queries.slice(0, 3).join(", ")} and ${queries.length - 3} more` : queries.join(", ");
    return `${node ? node.name : "a box that was removed"}\n${whose}\nworker ${worker}, ${count(tuples)} rows in ${seconds(stop - start)}${late ? "\nanswers are past their goal" : ""}`;
  },
  pick(px, py) {
    const call = callAt(px, py), queries = call ? model.queriesOfBox[call[1]] ?? [] : [];
    if (queries.length) canvas.dispatchEvent(new CustomEvent("query", { detail: queries[0], bubbles: true }));
  },
}, document.getElementById("stream-tools"));
