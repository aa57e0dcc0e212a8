// Puts the page together: the stream comes in, the parts are drawn, and forms become commands.
import { B, Q, WHY, count, escape, level, model, seconds, share } from "./model.js";
import { command, follow, network, token } from "./link.js";
import * as charts from "./charts.js";
import * as net from "./network.js";
import * as stream from "./stream.js";
import * as table from "./table.js";

const $ = (id) => document.getElementById(id);

// --- what is seen ------------------------------------------------------------------------------------

let due = false;
function soon() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; drawAll(); });
}

const inSight = new Set(), parts = new Map([["tasks", stream.draw], ["net", net.draw], ["steps", charts.phases], ["queries", table.draw], ["detail", detail]]);
const watching = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) isIntersecting ? inSight.add(target.id) : inSight.delete(target.id);
  soon();
}, { rootMargin: "200px" });
for (const id of parts.keys()) watching.observe($(id));

function drawAll() {
  if (!model.network || !model.last || document.hidden) return;
  head();
  kpis();
  charts.utilityChart();
  charts.loadChart();
  for (const [id, draw] of parts) if (inSight.has(id) || id === "steps") draw();
}

const clock = (t) => t < 120 ? `${Math.floor(t)} s` : t < 7200 ? `${Math.floor(t / 60)} min` : `${Math.floor(t / 3600)} h`;

function head() {
  const { network: net, last } = model;
  document.title = `${net.app} – Headgate`;
  $("app").textContent = net.app;
  $("engine").textContent = `${net.engine} · running for ${clock(last.t)}`;
  const policy = $("policy"), names = net.policies.map(({ name }) => name);
  if (policy.dataset.names !== names.join()) {
    policy.dataset.names = names.join();
    policy.replaceChildren(...net.policies.map(({ name, does }) => Object.assign(new Option(name, name), { title: does })));
  }
  if (!names.includes(last.policy) && ![...policy.options].some(({ value }) => value === last.policy)) policy.add(new Option(last.policy, last.policy));
  for (const [input, value] of [[policy, last.policy], [$("workers"), last.workers], [$("period"), last.settings.period === undefined ? "" : seconds(last.settings.period)], [$("batch"), last.settings.batch ?? ""]])
    if (document.activeElement !== input && input.value !== `${value}`) input.value = value;
  for (const name of ["period", "batch"]) $(`${name}-of`).hidden = !(name in last.settings);
  $("unlock").classList.toggle("has", Boolean(token.value));
  const banner = $("banner"), failed = last.q.flatMap((row, n) => ["failed", "waiting"].includes(row[Q.state]) ? [n] : []);
  const text = [...failed.slice(0, 3).map((n) => `Query '${net.queries[n].name}' ${last.q[n][Q.state]}: ${last.x[net.queries[n].name] ?? ""}`), ...last.problems].join("\n");
  banner.hidden = !text;
  if (banner.textContent !== text) banner.textContent = text;
}

function kpis() {
  const { last, network: net } = model;
  const states = net.queries.map((_, n) => n).filter((n) => last.q[n] && !["removed", "gone"].includes(last.q[n][Q.state]));
  const judged = states.map((n) => model.recent(n)).filter(({ utility }) => utility !== null);
  const met = judged.filter(({ utility }) => utility >= 0.9).length;
  const mean = judged.length ? judged.reduce((sum, { utility }) => sum + utility, 0) / judged.length : null;
  const failed = states.filter((n) => last.q[n][Q.state] === "failed").length;
  const busy = model.rate((s) => s.b.reduce((sum, row) => sum + row[B.busy], 0)) / Math.max(1, last.workers);
  const backlog = last.b.reduce((sum, row) => sum + row[B.queued], 0);
  const shown = [
    ["rows in a second", count(Math.round(model.rate((s) => s.s.reduce((sum, row) => sum + row[0], 0)))), ""],
    ["results a second", count(Math.round(model.rate((s) => s.q.reduce((sum, row) => sum + row[Q.out], 0)))), ""],
    ["queries in their goals", judged.length ? `${met} of ${judged.length}` : "–", judged.length ? (met === judged.length ? "good" : "bad") : ""],
    ["mean utility, last 10 s", share(mean), level(mean)],
    ["rows waiting", count(backlog), ""],
    ["workers busy", `${Math.min(100, busy * 100).toFixed(0)} %`, busy > 0.95 ? "warn" : ""],
    ["queries", failed ? `${states.length}, ${failed} failed` : `${states.length}`, failed ? "bad" : ""],
  ];
  if (net.engine === "spark") shown.push(["steps", `${count(last.steps)}`, ""]);
  const text = shown.map(([name, value, kind]) => `<div class="kpi ${kind}"><b>${escape(value)}</b><span>${escape(name)}</span></div>`).join("");
  if ($("kpis").dataset.text !== text) { $("kpis").dataset.text = text; $("kpis").innerHTML = text; }
}

function detail() {
  const query = model.selected, own = model.network.queries[query], now = model.last.q[query];
  if (!own || !now) return;
  const recent = model.recent(query);
  $("d-name").textContent = own.name;
  $("d-state").textContent = now[Q.state];
  $("d-state").className = `pill ${now[Q.state] === "running" ? "good" : now[Q.state] === "failed" ? "bad" : "warn"}`;
  const text = model.last.x[own.name];
  $("d-error").hidden = !text;
  $("d-error").textContent = text ?? "";
  $("restart").hidden = now[Q.state] !== "failed" || !model.network.commands.includes("restart");
  charts.qosGraph();
  charts.latencyChart();
  const total = recent.why ? recent.why.reduce((a, b) => a + b, 0) : 0;
  const main = total ? WHY[recent.why.indexOf(Math.max(...recent.why))][1] : "";
  const late = recent.past ? `${count(recent.past)} of ${count(recent.rows)} results of the last 10 s came past the goal; most of the time went to ${main}.` : recent.rows ? `All results of the last 10 s were within the goal.` : "No results in the last 10 s.";
  const why = total ? `<div class="why">${recent.why.map((part, n) => `<i class="${WHY[n][0]}" data-share="${part / total}"></i>`).join("")}</div>
    <div class="legend">${recent.why.map((part, n) => `<i class="${WHY[n][0]}"></i>${WHY[n][1]} ${seconds(part)}`).join("")}</div>` : "";
  const html = `${own.goal === null ? "" : `<div>${escape(late)}</div>`}${why}`;
  if ($("d-why").dataset.html !== html) {
    $("d-why").dataset.html = html;
    $("d-why").innerHTML = html;
    for (const part of $("d-why").querySelectorAll("[data-share]")) part.style.width = `${part.dataset.share * 100}%`;
  }
  const figures = [["p50", seconds(recent.p50)], ["p99", seconds(recent.p99)], ["utility", share(recent.utility)], ["rows in", count(now[Q.in])], ["results", count(now[Q.out])],
    ["late rows", count(now[Q.late])], ["shed", count(now[Q.shed])], ["backlog", count(now[Q.backlog])]];
  const list = figures.map(([name, value]) => `<div><dt>${name}</dt><dd>${escape(value)}</dd></div>`).join("");
  if ($("d-figures").dataset.list !== list) { $("d-figures").dataset.list = list; $("d-figures").innerHTML = list; }
  const goal = $("goal");
  if (document.activeElement !== goal && goal.dataset.query !== `${query}/${model.network.v}`) {
    goal.dataset.query = `${query}/${model.network.v}`;
    goal.value = own.qos ? own.qos.map(([latency, utility]) => `${latency}:${utility}`).join(", ") : "";
  }
}

function happened(events) {
  if (!events.length) return;
  model.events.push(...events);
  model.events.splice(0, Math.max(0, model.events.length - 100));
  $("events").replaceChildren(...[...model.events].reverse().map(({ kind, query, message, at }) => {
    const line = document.createElement("li"), time = document.createElement("time");
    time.textContent = seconds(at);
    line.append(time, query ? `${query} ` : "", Object.assign(document.createElement("b"), { textContent: kind, className: ["failed", "goal missed", "problem"].includes(kind) ? "bad" : kind === "waiting" ? "warn" : "good" }), ` ${message}`);
    return line;
  }));
}

// --- what is changed ---------------------------------------------------------------------------------

function toast(text, bad = false) {
  const made = Object.assign(document.createElement("div"), { className: `toast ${bad ? "bad" : ""}`, textContent: text });
  $("toasts").append(made);
  setTimeout(() => made.remove(), bad ? 9000 : 4000);
}

async function ask(name, given, done) {
  if (!token.value && !await askToken()) return false;
  try {
    const answer = await command(name, given);
    if (done) toast(done);
    return answer ?? true;
  } catch (error) {
    toast(error.message, true);
    if (error.status === 401) { token.value = ""; await askToken(); }
    return false;
  }
}
const set = (what, value, done) => ask("set", { what, value }, done);

function askToken() {
  const dialog = $("token-dialog");
  $("token").value = "";
  dialog.showModal();
  return new Promise((answer) => dialog.addEventListener("close", () => {
    if (dialog.returnValue === "ok" && $("token").value) token.value = $("token").value.trim();
    soon();
    answer(Boolean(token.value));
  }, { once: true }));
}

const points = (text) => text.split(",").map((point) => point.split(":").map((part) => Number(part.trim())));
$("policy").addEventListener("change", async ({ target }) => { await set("policy", target.value, `Policy ${target.value} is in force.`); target.blur(); });
for (const what of ["workers", "period", "batch"]) $(what).addEventListener("change", async ({ target }) => {
  await set(what, what === "period" ? target.value.replace(/\s+/g, "") : target.value, `${what} is ${target.value} now.`);
  target.blur();
});
$("settings").addEventListener("submit", (event) => { event.preventDefault(); document.activeElement.blur(); });
$("unlock").addEventListener("click", askToken);
$("goal-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { name } = model.network.queries[model.selected];
  $("goal").blur();
  await set("qos", { query: name, points: points($("goal").value) }, `'${name}' has another goal.`);
});
$("remove").addEventListener("click", async () => {
  const { name } = model.network.queries[model.selected];
  if (confirm(`Remove query '${name}'? Its results so far stay.`)) await set("remove", name, `'${name}' was removed.`);
});
$("restart").addEventListener("click", () => { const { name } = model.network.queries[model.selected]; ask("restart", { query: name }, `'${name}' was restarted.`); });
function toAdd() {
  const given = { name: $("add-name").value.trim(), sql: $("add-sql").value, to: $("add-to").value.trim() || "console", start: "now" };
  if ($("add-goal").value.trim()) given.goal = $("add-goal").value.trim();
  return given;
}
$("add-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = toAdd();
  if (await ask("add", given, `'${given.name}' was added.`)) event.target.reset();
});
$("add-check").addEventListener("click", async () => {
  if (!$("add-form").reportValidity()) return;
  $("add-note").textContent = "Simulating…";
  const answer = await ask("add", { ...toAdd(), check: true });
  $("add-note").textContent = answer ? answer.says : "";
});

function select(query) {
  model.selected = query;
  net.follow();
  soon();
}
table.onSelect(select);
document.addEventListener("query", ({ detail: query }) => select(query));
for (const id of ["filter", "sort"]) $(id).addEventListener("input", soon);
$("why-legend").innerHTML = WHY.map(([name, text]) => `<i class="${name}"></i>${text}`).join("");

function theme(wanted) {
  document.documentElement.dataset.theme = wanted;
  localStorage.setItem("headgate-theme", wanted);
  soon();
}
theme(localStorage.getItem("headgate-theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
const turn = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
$("theme").addEventListener("click", turn);

const sections = ["queries", "tasks", "net", "adding", "happened"];
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|TEXTAREA|SELECT/.test(document.activeElement.tagName)) {
    if (event.key === "Escape") document.activeElement.blur();
    return;
  }
  const step = { j: 1, k: -1 }[event.key];
  if (event.key === "/") { $("filter").focus(); event.preventDefault(); }
  else if (event.key === "t") turn();
  else if (sections[event.key - 1]) { $(sections[event.key - 1]).scrollIntoView({ behavior: "smooth" }); }
  else if (step && model.last) {
    const found = table.order(), place = found.indexOf(model.selected);
    select(found[Math.max(0, Math.min(found.length - 1, place + step))] ?? model.selected);
    document.querySelector("#rows .selected")?.scrollIntoView({ block: "nearest" });
  }
});
window.addEventListener("resize", soon);
document.addEventListener("visibilitychange", soon);

// --- the stream --------------------------------------------------------------------------------------

async function load() {
  const data = await network();
  model.setNetwork(data);
  model.selected = Math.min(model.selected, data.queries.length - 1);
  table.forget();
  net.reset();
  const sources = data.sources.map(({ name, columns }) => `${name} (${columns.join(", ")})`).join("; ");
  $("add-sources").textContent = sources.length > 400 ? `${sources.slice(0, 400)}…` : sources;
  const can = data.commands.includes("add");
  for (const input of $("add-form").elements) input.disabled = !can;
  $("add-note").textContent = can ? "" : "This run takes no queries as SQL.";
}

async function take({ samples, events }) {
  const newest = samples[samples.length - 1];
  if (newest && (!model.network || newest.v !== model.network.v)) await load();
  model.add(samples);
  happened(events);
  soon();
}

function say(text, kind) { $("link").textContent = text; $("link").className = `pill ${kind}`; }

async function live() {
  let pause = 500;
  for (;;) {
    try {
      await load();
      say("live", "good");
      pause = 500;
      await follow(take);
      say("the run is over", "warn");
    } catch (error) {
      if (error.status === 401) { say("needs the token", "warn"); await askToken(); continue; }
      say(model.network ? "not connected" : "waiting for the run", "warn");
    }
    await new Promise((go) => setTimeout(go, pause));
    pause = Math.min(pause * 1.5, 8000);
  }
}
live();
