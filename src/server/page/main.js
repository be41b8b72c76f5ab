// Keeps the page up to date: once a second while it is seen, and the tree only when it may have changed.
"use strict";

function show(view) {
  document.body.dataset.view = view;
  document.querySelectorAll(".tabs button").forEach((b) => b.setAttribute("aria-current", String(b.dataset.show === view)));
  if (view === "cache") tree.draw();
}
document.querySelectorAll(".tabs button").forEach((b) => b.addEventListener("click", () => show(b.dataset.show)));

function showState(kind, text) {
  $("state").className = `state ${kind}`;
  $("state").lastChild.textContent = text;
}

const seen = {cache: "", turn: 0, polling: false, again: false};

// The model and how it is sampled: all that the chat needs, whatever else this key may see.
async function learnModel() {
  if (chat.model) return;
  const [models, props] = await Promise.all([get("/v1/models"), get("/props").catch(() => null)]);
  chat.model = models.data?.[0]?.id || "";
  whatif.learn(models.data?.[0]?.kv?.formats);
  $("model").textContent = $("model").title = chat.model;
  document.title = `${chat.model} · Quire`;
  const settings = props?.default_generation_settings;
  if (settings) $("temperature").placeholder = `${settings.temperature}${settings.from_model ? " (model)" : ""}`;
}

async function refresh(force) {
  await learnModel();
  const [stats, metrics] = await Promise.all([
    getFor("memory", "/v1/kv/stats"), ask("/metrics").then((r) => (r.ok ? r.text() : ""))]);
  if (stats) showMemory(stats);
  const m = metrics ? showMetrics(metrics) : {};
  if (!metrics)
    $("charts").replaceChildren(element("div", {className: "empty locked"}, "This needs an admin key, or metrics are off."));
  const running = m["vllm:num_requests_running"] || 0, waiting = m["vllm:num_requests_waiting"] || 0;
  showState(running + waiting ? "busy" : "up",
    running + waiting ? `${running} running${waiting ? `, ${waiting} waiting` : ""}` : "ready");
  // Where this key sees no statistics, the tree is looked at every few seconds.
  const cache = stats ? JSON.stringify([stats.tokens, stats.evictions, stats.tiers?.map((t) => t.blocks), stats.pins])
    : String(Math.floor(Date.now() / 4000));
  if (!force && cache === seen.cache) return;
  seen.cache = cache;
  const [nodes, requests, sessions] = await Promise.all([
    getFor("tree", "/v1/kv/tree?depth=64&limit=400&sort=recent"), getFor("requests", "/v1/kv/requests?limit=50"),
    getFor("sessions", "/v1/kv/sessions?limit=200")]);
  if (sessions) sessionsView.show(sessions.data || []);
  if (nodes) tree.show(nodes);
  if (requests) requestsView.show(requests.data || []);
}

async function poll(force = false) {
  if (seen.polling) { seen.again ||= force; return; }
  seen.polling = true;
  try {
    await refresh(force);
  } catch (e) {
    showState("down", e instanceof ApiError ? (e.status === 401 ? "needs an API key" : e.message) : "not reachable");
  }
  seen.polling = false;
  if (seen.again) { seen.again = false; poll(true); }
}

setInterval(() => { if (!document.hidden) poll(); }, 1000);
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(true); });
poll(true);
