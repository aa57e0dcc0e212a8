// A layered layout of a loop-free graph (Sugiyama): layers by longest way, order by barycentres, then places.
export const APART = 26; // between two nodes of a layer
const TALL = APART;

export function layout(nodes, arrows) {
  const up = nodes.map(() => []), down = nodes.map(() => []);
  for (const [from, to] of arrows) { down[from].push(to); up[to].push(from); }
  const layer = new Array(nodes.length).fill(0), waiting = up.map((ups) => ups.length);
  const todo = nodes.map((_, n) => n).filter((n) => !waiting[n]);
  for (let place = 0; place < todo.length; place++)
    for (const next of down[todo[place]]) {
      layer[next] = Math.max(layer[next], layer[todo[place]] + 1);
      if (--waiting[next] === 0) todo.push(next);
    }
  const layers = [];
  nodes.forEach((_, n) => (layers[layer[n]] ??= []).push(n));
  const y = new Array(nodes.length).fill(0);
  const spread = () => layers.forEach((own) => own.forEach((n, place) => { y[n] = (place - (own.length - 1) / 2) * TALL; }));
  const mean = (others) => others.reduce((sum, n) => sum + y[n], 0) / others.length;
  spread();
  for (let sweep = 0; sweep < 6; sweep++) {
    const forward = sweep % 2 === 0, near = forward ? up : down;
    for (const own of forward ? layers : [...layers].reverse()) {
      const wish = new Map(own.map((n) => [n, near[n].length ? mean(near[n]) : y[n]]));
      own.sort((a, b) => wish.get(a) - wish.get(b) || a - b);
      own.forEach((n, place) => { y[n] = (place - (own.length - 1) / 2) * TALL; });
    }
  }
  // Straighten: each node moves towards its neighbours as far as its place in the order lets it.
  for (let sweep = 0; sweep < 12; sweep++)
    for (const own of sweep % 2 ? layers : [...layers].reverse()) {
      own.forEach((n) => { const near = [...up[n], ...down[n]]; if (near.length) y[n] = y[n] * 0.4 + mean(near) * 0.6; });
      let shift = 0;
      for (let place = 1; place < own.length; place++) if (y[own[place]] < y[own[place - 1]] + TALL) {
        const push = y[own[place - 1]] + TALL - y[own[place]];
        y[own[place]] += push;
        shift += push;
      }
      own.forEach((n) => { y[n] -= shift / own.length; });
    }
  return { layer, layers: layers.length, y, up, down };
}
