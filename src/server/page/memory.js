// Cache memory: where blocks lie and what moves between the places: memory, and below it a disk and a shared store. Each has
// a bar of what it holds; the line to it says what went down and came back, and how fast just now.
"use strict";

const kStates = [
  ["active", "in use"],
  ["pinned", "pinned"],
  ["cached", "cached"],
  ["free", "free"],
];

const kPlaces = {cpu: "memory", gpu: "GPU memory", disk: "disk", remote: "shared store", peer: "peers"};

function barView(tier) {
  const blocks = tier.blocks || {};
  const total = blocks.total || 1;
  const stack = element("div", {className: "stack"});
  const legend = element("div", {className: "legend"});
  for (const [state, name] of kStates) {
    const count = blocks[state] || 0;
    if (state !== "free" && count > 0)
      stack.append(element("i", {className: `is-${state}`, title: `${name}: ${tokens(count)} blocks`,
                                 style: {flexBasis: `${100 * count / total}%`}}));
    if (count > 0 || state !== "pinned")
      legend.append(element("span", {}, element("i", {className: `is-${state}`}), `${name} ${tokens(count)}`));
  }
  return [stack, legend];
}

// Bytes per second between two looks at a counter that only grows.
const flow = {};
function rate(name, value) {
  const now = performance.now(), before = flow[name];
  flow[name] = {now, value};
  return before && now > before.now && value > before.value ? 1000 * (value - before.value) / (now - before.now) : 0;
}

function wayView(name, way, sign, said, moved) {
  const speed = rate(`${name} ${way}`, moved.bytes || 0);
  return element("span", {className: speed > 0 ? `way ${way} moving` : `way ${way}`, title: `${tokens(moved.blocks || 0)} blocks`},
    element("i", {ariaHidden: "true"}, sign), ` ${bytes(moved.bytes || 0)} ${said}`,
    speed > 0 ? element("b", {}, ` ${bytes(speed)}/s`) : "");
}

// A place below memory.
function belowView(tier) {
  const waiting = (tier.queue_bytes?.read || 0) + (tier.queue_bytes?.write || 0);
  const bad = [[tier.corrupt, "damaged"], [tier.read?.failed, "not read"], [tier.refused, "refused"]].filter(([n]) => n > 0);
  return element("div", {className: "below", dataset: {tier: tier.name}},
    element("div", {className: "flow"}, wayView(tier.name, "down", "↓", "written", tier.written || {}),
            wayView(tier.name, "up", "↑", "loaded", tier.read || {}),
            waiting > 0 ? element("span", {}, `${bytes(waiting)} waiting`) : ""),
    element("div", {className: "top"},
      element("span", {}, element("i", {className: tier.open ? "dot open" : "dot"}), kPlaces[tier.name] || tier.name),
      element("span", {}, !tier.open ? "closed, tried again by itself"
        : tier.capacity_bytes > 0 && tier.used_bytes > 0 ? `${bytes(tier.used_bytes)} of ${bytes(tier.capacity_bytes)}`
        : tier.capacity_bytes > 0 ? `at most ${bytes(tier.capacity_bytes)}` : "bounded by itself")),
    tier.capacity_bytes > 0 && tier.used_bytes > 0 ? element("div", {className: "stack"},
      element("i", {className: "is-cached", style: {flexBasis: `${100 * tier.used_bytes / tier.capacity_bytes}%`}})) : "",
    element("div", {className: "legend"},
      tier.blocks?.total > 0 ? element("span", {}, `${tokens(tier.blocks.total)} blocks`) : "",
      tier.bytes_per_s > 0 ? element("span", {}, `reads ${bytes(tier.bytes_per_s)}/s, first byte ${milliseconds(tier.first_byte_ms || 0)}`) : "",
      ...bad.map(([n, why]) => element("span", {className: "bad"}, `${tokens(n)} ${why}`))));
}

function showMemory(stats) {
  const [memory, ...below] = stats.tiers || [];
  const format = Object.entries(stats.bytes_per_token || {})[0];
  $("memory-note").textContent = [
    stats.block_size && `blocks of ${stats.block_size} tokens`,
    format && `${bytes(format[1])} per token (${format[0]})`,
  ].filter(Boolean).join(" · ");
  const hit = stats.tokens?.hit || 0, queried = stats.tokens?.queried || 0;
  const fact = (value, name) => element("span", {}, element("b", {}, value), ` ${name}`);
  $("memory").replaceChildren(
    memory ? element("div", {className: "tier"},
      element("div", {className: "top"}, element("span", {}, below.length ? kPlaces[memory.name] || memory.name : memory.name),
              element("span", {}, `${bytes(memory.used_bytes || 0)} of ${bytes(memory.capacity_bytes || 0)}`)),
      ...barView(memory)) : "",
    ...below.map(belowView), element("div", {className: "facts"},
    fact(tokens(hit), `of ${tokens(queried)} prompt tokens not computed again`),
    stats.sharing?.dedup_ratio ? fact(`${stats.sharing.dedup_ratio.toFixed(1)}×`, "shared") : "",
    fact(tokens(stats.evictions?.total || 0), "evictions")));
  showTenants(stats.tenants || []);
}

// Who has how much, where there is more than one.
function showTenants(list) {
  const named = list.filter((t) => t.id !== "").sort((a, b) => b.used_bytes - a.used_bytes).slice(0, 12);
  if (!named.length) return $("tenants").replaceChildren();
  const most = Math.max(...named.map((t) => t.quota_bytes || t.used_bytes), 1);
  $("tenants").replaceChildren(element("table", {className: "tenants"},
    element("caption", {}, "Tenants"),
    element("thead", {}, element("tr", {}, ...["who", "has", "may have"].map((name) => element("th", {scope: "col"}, name)))),
    element("tbody", {}, ...named.map((t) => element("tr", {},
      element("th", {scope: "row"}, t.id),
      element("td", {}, element("span", {className: "share", ariaHidden: "true"}, element("i", {style: {width: `${100 * t.used_bytes / most}%`}})),
              bytes(t.used_bytes)),
      element("td", {}, t.quota_bytes ? bytes(t.quota_bytes) : "its share"))))));
}
