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

async function refresh(force) {
  const [stats, metrics] = await Promise.all([get("/v1/kv/stats"), ask("/metrics").then((r) => (r.ok ? r.text() : ""))]);
  showMemory(stats);
  const m = showMetrics(metrics);
  const running = m["vllm:num_requests_running"] || 0, waiting = m["vllm:num_requests_waiting"] || 0;
  showState(running + waiting ? "busy" : "up",
    running + waiting ? `${running} running${waiting ? `, ${waiting} waiting` : ""}` : "ready");
  if (!chat.model) {
    chat.model = (await get("/v1/models")).data?.[0]?.id || stats.model || "";
    $("model").textContent = chat.model;
    document.title = `${chat.model} · Quire`;
  }
  const cache = JSON.stringify([stats.tokens, stats.evictions, stats.tiers?.map((t) => t.blocks), stats.pins]);
  if (!force && cache === seen.cache) return;
  seen.cache = cache;
  const [nodes, requests] = await Promise.all([get("/v1/kv/tree?depth=64&limit=400&sort=recent"), get("/v1/kv/requests?limit=50")]);
  tree.show(nodes);
  requestsView.show(requests.data || []);
}

async function poll(force = false) {
  if (seen.polling) { seen.again ||= force; return; }
  seen.polling = true;
  try {
    await refresh(force);
  } catch (e) {
    showState("down", e instanceof ApiError ? e.message : "not reachable");
  }
  seen.polling = false;
  if (seen.again) { seen.again = false; poll(true); }
}

setInterval(() => { if (!document.hidden) poll(); }, 1000);
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(true); });
poll(true);
