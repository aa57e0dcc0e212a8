// What the application has sent: its network, and samples in which a query, a box and a call are rows.
export const Q = { state: 0, in: 1, out: 2, late: 3, shed: 4, backlog: 5, rows: 6, p50: 7, p99: 8, mean: 9,
  utility: 10, past: 11, turn: 12, work: 13, source: 14, sink: 15 };
export const B = { queued: 0, in: 1, out: 2, busy: 3 };
export const WHY = [["turn", "waiting for its turn"], ["work", "own work"], ["source", "source"], ["sink", "sink"]];
const KEPT = 480, CALLS = 30000;

export const model = {
  network: null, samples: [], events: [], calls: [], selected: 0, lanes: 1,
  get last() { return this.samples[this.samples.length - 1]; },

  setNetwork(network) {
    const name = this.network ? this.network.queries[this.selected]?.name : null;
    this.network = network;
    const place = new Map(network.queries.map((query, number) => [query.name, number]));
    this.selected = place.get(name) ?? 0;
    this.queriesOfBox = network.boxQueries.map((names) => names.map((each) => place.get(each)));
    this.samples = this.samples.filter((sample) => sample.v === network.v);
  },

  add(samples) {
    for (const sample of samples) {
      if (!this.network || sample.v !== this.network.v) continue;
      if (this.last && sample.t <= this.last.t) continue;
      this.samples.push(sample);
      for (const call of sample.c) this.calls.push([...call, this.isLate(call[1], sample)]);
    }
    if (this.samples.length > KEPT) this.samples.splice(0, this.samples.length - KEPT);
    if (this.calls.length > CALLS) this.calls.splice(0, this.calls.length - CALLS);
  },

  // A call counts as late if most queries that it works for hand over answers past their goals.
  isLate(box, sample) {
    const queries = this.queriesOfBox[box] ?? [];
    const late = queries.filter((query) => sample.q[query] && sample.q[query][Q.past] > 0);
    return queries.length > 0 && late.length * 2 > queries.length;
  },

  // Sums over the last seconds of one query.
  recent(query, seconds = 10) {
    const end = this.last ? this.last.t : 0;
    let rows = 0, worth = 0, judged = 0, past = 0, p99 = 0, p50 = null;
    const why = [0, 0, 0, 0];
    for (let i = this.samples.length - 1; i >= 0 && this.samples[i].t > end - seconds; i--) {
      const row = this.samples[i].q[query];
      if (!row || !row[Q.rows]) continue;
      rows += row[Q.rows]; past += row[Q.past];
      if (p50 === null) p50 = row[Q.p50];
      p99 = Math.max(p99, row[Q.p99]);
      if (row[Q.utility] !== null) { worth += row[Q.utility] * row[Q.rows]; judged += row[Q.rows]; }
      for (let part = 0; part < 4; part++) why[part] += row[Q.turn + part] * row[Q.rows];
    }
    return { rows, past, p50, p99: rows ? p99 : null, utility: judged ? worth / judged : null,
      why: rows ? why.map((part) => part / rows) : null };
  },

  // A second's growth of a counter over the last seconds: what(sample) gives it.
  rate(what, seconds = 4) {
    const last = this.last;
    if (!last) return 0;
    let first = last;
    for (let i = this.samples.length - 2; i >= 0; i--) {
      if (this.samples[i].t < last.t - seconds && first !== last) break;
      first = this.samples[i];
    }
    return last.t > first.t ? Math.max(0, what(last) - what(first)) / (last.t - first.t) : 0;
  },
};

export const color = (query) => `hsl(${(query * 137.508 + 200) % 360} 58% 52%)`;
export const cssVar = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value >= 100) return `${value.toFixed(0)} s`;
  if (value >= 1) return `${value.toFixed(2)} s`;
  if (value >= 0.001) return `${(value * 1e3).toFixed(value >= 0.1 ? 0 : 1)} ms`;
  return value === 0 ? "0" : `${(value * 1e6).toFixed(0)} µs`;
}
export function count(value) {
  if (value === null || value === undefined) return "–";
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (value >= limit) return `${(value / (unit === "k" ? 1e3 : limit)).toPrecision(3)}${unit}`;
  return value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toPrecision(2);
}
export const share = (value) => value === null || value === undefined ? "–" : value.toFixed(value >= 0.995 ? 2 : 3);
export const level = (utility) => utility === null ? "" : utility >= 0.9 ? "good" : utility >= 0.5 ? "warn" : "bad";
export const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

// A canvas as sharp as the screen: its context, in CSS pixels.
export function sharp(canvas) {
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return [pen, width, height];
}
