// Cache memory: one bar per tier, by what its blocks are doing, and what sharing has saved.
"use strict";

const kStates = [
  ["active", "in use"],
  ["pinned", "pinned"],
  ["cached", "cached"],
  ["free", "free"],
];

function tierView(tier) {
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
  return element("div", {className: "tier"},
    element("div", {className: "top"}, element("span", {}, tier.name),
            element("span", {}, `${bytes(tier.used_bytes || 0)} of ${bytes(tier.capacity_bytes || 0)}`)),
    stack, legend);
}

function showMemory(stats) {
  const tiers = (stats.tiers || []).filter((t) => t.capacity_bytes > 0);
  const format = Object.entries(stats.bytes_per_token || {})[0];
  $("memory-note").textContent = [
    stats.block_size && `blocks of ${stats.block_size} tokens`,
    format && `${bytes(format[1])} per token (${format[0]})`,
  ].filter(Boolean).join(" · ");
  const hit = stats.tokens?.hit || 0, queried = stats.tokens?.queried || 0;
  const fact = (value, name) => element("span", {}, element("b", {}, value), ` ${name}`);
  $("memory").replaceChildren(...tiers.map(tierView), element("div", {className: "facts"},
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
