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
}
