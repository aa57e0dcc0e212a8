// Charts over time (uPlot), the QoS graph of a query, and the phases of Spark's steps.
import { Q, color, cssVar, model, seconds, sharp } from "./model.js";

const charts = new Map();
const PALETTE = ["#d1495b", "#2b7fb8", "#2f9e77", "#d98e04", "#8257c4", "#6b7a86"];

// A chart that has nothing to show yet is asked for the range of nothing, and its axis would never end.
const finite = (value) => (Number.isFinite(value) ? value : 0);
const span = (low, high) => (Number.isFinite(low) && high > low && Number.isFinite(high) ? [low, high] : [finite(low), finite(low) + 1]);

// A logarithmic axis counts up from its low end.  From one that is no round number it would never arrive.
export const decades = (u, low, high) => uPlot.rangeLog(Math.max(1e-4, finite(low) / 2), Math.max(finite(high) * 2, 1), 10, false);

function axes(format, log = false) {
  const stroke = cssVar("--quiet"), grid = { stroke: cssVar("--grid"), width: 1 };
  return {
    scales: { x: { time: false, range: (u, low, high) => span(low, high) }, y: log ? { distr: 3, range: decades } : { range: (u, low, high) => [0, Math.max(finite(high) * 1.08, 1)] } },
    axes: [{ stroke, grid, ticks: grid, values: (u, ticks) => ticks.map((tick) => `${tick} s`), size: 28, font: "11px system-ui" },
      { stroke, grid, ticks: grid, size: 56, font: "11px system-ui", values: (u, ticks) => ticks.map((tick) => tick === null ? "" : format(tick)) }],
  };
}

function plot(id, signature, options, data) {
  const holder = document.getElementById(id), width = holder.clientWidth;
  if (!width) return;
  let chart = charts.get(id);
  const wanted = `${signature}|${document.documentElement.dataset.theme}`;
  if (chart && chart.signature !== wanted) { chart.plot.destroy(); chart = null; }
  if (!chart) {
    const made = options();
    chart = { signature: wanted, plot: new uPlot({ width, height: made.height ?? 168, legend: { live: false }, cursor: { drag: { x: false, y: false } }, ...made }, data, holder) };
    charts.set(id, chart);
    return;
  }
  if (chart.plot.width !== width) chart.plot.setSize({ width, height: chart.plot.height });
  chart.plot.setData(data);
}

// Lines where another policy took over, or the workers changed.
function marks(u) {
  const ratio = devicePixelRatio || 1, pen = u.ctx, { left, top, height, width } = u.bbox;
  pen.save();
  pen.font = `${11 * ratio}px system-ui`;
  pen.strokeStyle = pen.fillStyle = cssVar("--quiet");
  pen.textBaseline = "top";
  pen.setLineDash([4 * ratio, 3 * ratio]);
  model.samples.forEach((sample, place) => {
    const before = model.samples[place - 1];
    if (!before || (sample.policy === before.policy && sample.workers === before.workers)) return;
    const x = u.valToPos(sample.t, "x", true);
    if (x < left || x > left + width) return;
    pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, top + height); pen.stroke();
    const said = sample.policy === before.policy ? `${sample.workers} workers` : sample.policy;
    const fits = x + pen.measureText(said).width + 8 * ratio < left + width;
    pen.textAlign = fits ? "left" : "right";
    pen.fillText(said, x + (fits ? 4 : -4) * ratio, top + 2 * ratio);
  });
  pen.restore();
}

// Goals in groups: queries whose results keep their full worth equally long.
export function groups() {
  const found = new Map();
  model.network.queries.forEach((query, number) => {
    if (query.goal === null) return;
    const name = `within ${seconds(query.goal).replace(".00", "")}`;
    if (!found.has(name)) found.set(name, { name, goal: query.goal, queries: [] });
    found.get(name).queries.push(number);
  });
  return [...found.values()].sort((a, b) => a.goal - b.goal).slice(0, PALETTE.length);
}

export function utilityChart() {
  const all = groups(), times = model.samples.map((sample) => sample.t);
  const lines = all.map(({ queries }) => {
    let kept = null, age = 0;
    return model.samples.map((sample) => {
      let worth = 0, number = 0;
      for (const query of queries) {
        const row = sample.q[query];
        if (row && row[Q.rows] && row[Q.utility] !== null) { worth += row[Q.utility]; number += 1; }
      }
      if (number) { kept = kept === null ? worth / number : kept * 0.5 + worth / number * 0.5; age = 0; } else age += 1;
      return age > 20 ? null : kept;
    });
  });
  const around = axes((value) => value.toFixed(1));
  const options = () => ({
    ...around, hooks: { draw: [marks] }, scales: { ...around.scales, y: { range: [0, 1.05] } },
    series: [{}, ...all.map(({ name, queries }, number) => ({ label: `${name} (${queries.length})`, stroke: PALETTE[number], width: 2.2, spanGaps: true, points: { show: false } }))],
  });
  plot("utility-chart", all.map(({ name, queries }) => name + queries.length).join(), options, [times, ...lines]);
}

export function loadChart() {
  const times = [], rates = [], backlog = [];
  model.samples.forEach((sample, place) => {
    if (!place) return;
    const before = model.samples[place - 1], sum = (s) => s.s.reduce((total, row) => total + row[0], 0);
    times.push(sample.t);
    rates.push(Math.max(0, sum(sample) - sum(before)) / (sample.t - before.t));
    backlog.push(sample.b.reduce((total, row) => total + row[0], 0));
  });
  const short = (value) => value >= 1e6 ? `${value / 1e6}M` : value >= 1e3 ? `${value / 1e3}k` : `${value}`;
  const options = () => ({
    ...axes(short), hooks: { draw: [marks] },
    series: [{}, { label: "rows in/s", stroke: cssVar("--accent"), width: 2, fill: `color-mix(in srgb, ${cssVar("--accent")} 14%, transparent)`, points: { show: false } },
      { label: "rows waiting", stroke: cssVar("--turn"), width: 2, points: { show: false } }],
  });
  plot("load-chart", "load", options, [times, rates, backlog]);
}

export function latencyChart() {
  const query = model.selected, goal = model.network.queries[query]?.goal ?? null;
  const times = [], p50 = [], p99 = [], goals = [];
  for (const sample of model.samples) {
    const row = sample.q[query];
    if (!row) continue;
    times.push(sample.t);
    p50.push(row[Q.rows] ? Math.max(row[Q.p50], 1e-4) : null);
    p99.push(row[Q.rows] ? Math.max(row[Q.p99], 1e-4) : null);
    goals.push(goal);
  }
  const options = () => ({
    ...axes(seconds, true), height: 150,
    series: [{}, { label: "p50", stroke: color(query), width: 2, spanGaps: true, points: { size: 4 } },
      { label: "p99", stroke: color(query), width: 1.2, dash: [4, 3], spanGaps: true, points: { show: false } },
      { label: "goal", stroke: cssVar("--bad"), width: 1.4, points: { show: false } }],
  });
  plot("latency-chart", `${query}`, options, [times, p50, p99, goals]);
}

export function qosGraph() {
  const canvas = document.getElementById("qos"), [pen, width, height] = sharp(canvas);
  const query = model.selected, points = model.network.queries[query]?.qos, recent = model.recent(query);
  pen.font = "11px system-ui";
  pen.fillStyle = cssVar("--quiet");
  if (!points) { pen.fillText("This query has no QoS graph; give it a goal below.", 8, 24); return; }
  const left = 30, right = width - 10, top = 10, bottom = height - 22;
  const end = Math.max(points[points.length - 1][0] * 1.2, (recent.p99 ?? 0) * 1.1, 1e-3);
  const x = (latency) => left + latency / end * (right - left), y = (utility) => bottom - utility * (bottom - top);
  pen.strokeStyle = cssVar("--grid");
  for (const utility of [0, 0.5, 1]) {
    pen.beginPath(); pen.moveTo(left, y(utility)); pen.lineTo(right, y(utility)); pen.stroke();
    pen.fillText(utility.toString(), 8, y(utility) + 4);
  }
  for (const part of [0, 0.5, 1]) pen.fillText(seconds(end * part), Math.min(x(end * part) - 8, right - 34), height - 6);
  pen.strokeStyle = cssVar("--accent");
  pen.lineWidth = 2.4;
  pen.beginPath();
  pen.moveTo(x(0), y(points[0][1]));
  for (const [latency, utility] of points) pen.lineTo(x(latency), y(utility));
  pen.lineTo(right, y(points[points.length - 1][1]));
  pen.stroke();
  const worth = (latency) => {
    if (latency <= points[0][0]) return points[0][1];
    for (let i = 1; i < points.length; i++) if (latency <= points[i][0])
      return points[i - 1][1] + (points[i][1] - points[i - 1][1]) * (latency - points[i - 1][0]) / (points[i][0] - points[i - 1][0]);
    return points[points.length - 1][1];
  };
  for (const [latency, fill] of [[recent.p99, cssVar("--card")], [recent.p50, color(query)]]) {
    if (latency === null) continue;
    pen.beginPath();
    pen.arc(x(latency), y(worth(latency)), 5, 0, 7);
    pen.fillStyle = fill; pen.fill();
    pen.strokeStyle = color(query); pen.lineWidth = 2; pen.stroke();
  }
}

const PHASES = { plan: "#8257c4", spark: "#6b7a86", scan: "#2b7fb8", boxes: "#2f9e77", state: "#d98e04", write: "#b8860b", exchange: "#d1495b", python: "#4c9aa8", commit: "#a03f6e" };

export function phases() {
  const spark = model.network.engine === "spark", section = document.getElementById("steps");
  section.hidden = !spark;
  if (!spark) return;
  const [pen, width, height] = sharp(document.getElementById("phases"));
  const bars = [];
  model.samples.forEach((sample, place) => {
    const before = model.samples[place - 1];
    if (!before || sample.steps <= before.steps) return;
    const number = sample.steps - before.steps;
    bars.push({ t: sample.t, parts: Object.keys(PHASES).map((name) => Math.max(0, (sample.phases[name] ?? 0) - (before.phases[name] ?? 0)) / number) });
  });
  const shown = bars.slice(-Math.floor((width - 60) / 7)), most = Math.max(0.05, ...shown.map(({ parts }) => parts.reduce((a, b) => a + b, 0)));
  pen.font = "11px system-ui";
  pen.fillStyle = cssVar("--quiet");
  pen.fillText(seconds(most), 4, 14);
  pen.fillText("0", 4, height - 6);
  shown.forEach(({ parts }, place) => {
    let y = height - 4;
    parts.forEach((part, number) => {
      const tall = part / most * (height - 12);
      pen.fillStyle = Object.values(PHASES)[number];
      pen.fillRect(56 + place * 7, y - tall, 6, tall);
      y -= tall;
    });
  });
  const legend = document.getElementById("phase-legend"), last = shown[shown.length - 1];
  const text = Object.keys(PHASES).map((name, n) => `${name} ${last ? seconds(last.parts[n]) : ""}`).join();
  if (legend.dataset.text === text) return;
  legend.dataset.text = text;
  legend.replaceChildren(...Object.entries(PHASES).flatMap(([name, paint], n) => {
    const box = document.createElement("i");
    box.style.background = paint;
    return [box, `${name} ${last ? seconds(last.parts[n]) : ""}`];
  }));
}
