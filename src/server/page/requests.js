// The last requests: what each found in the cache, and, when opened, why it did not find more.
"use strict";

// Every reason of the server's closed list, as a sentence.
const kReasons = {
  none: "Everything but the last token was there.",
  reuse_disabled: "The request asked not to reuse anything.",
  below_minimum: "The prompt is shorter than what is worth keeping.",
  model_mismatch: "The same words are kept for another model.",
  adapter_mismatch: "The same words are kept for another adapter.",
  tenant_mismatch: "The same words are kept for another tenant; tenants never share.",
  salt_mismatch: "The same words are kept under another salt.",
  format_mismatch: "The same words are kept in another KV format.",
  tokens_diverged: "From here on, no earlier prompt has the same words.",
  template_changed: "The chat template wrote an earlier turn differently.",
  never_seen: "Nobody has asked this before.",  // or, with a part found: kRest
  evicted: "It was kept, and had to make room.",
  expired: "It was kept, and its time ran out.",
  cleared: "It was kept, and somebody cleared it.",
  restarted: "It was kept before the server restarted.",
  tier_not_allowed: "It lies in a tier that this request may not use.",
  load_failed: "It was kept elsewhere and could not be loaded.",
  load_too_slow: "Loading it would have taken longer than computing it.",
  in_flight: "Another request was still computing it.",
  window_dropped: "It left the attention window.",
  budget_evicted: "It was dropped to keep a token budget.",
  block_partial: "All whole blocks were there; the rest of the last one is computed.",
};

// The everyday ones in a list; the others are called by their names.
const kBriefly = {none: "", block_partial: "every whole block was there", tokens_diverged: "from there on the words differ",
                  never_seen: "nobody asked this before", in_flight: "still being computed"};

const kRest = "The beginning was there; what follows nobody has asked before.";

// As explain would call it, which the list does not say. Who stops an answer has no failure.
function outcomeOf(r) {
  if (r.error === "client_closed_request") return "stopped";
  if (r.error) return "failed";
  if (r.reason === "reuse_disabled") return "disabled";
  if (r.cached_tokens === 0) return "miss";
  return r.reason === "none" || r.reason === "block_partial" ? "hit" : "partial_hit";
}

function briefly(r) {
  if (r.reason === "never_seen" && r.cached_tokens > 0) return "the rest is new";
  return kBriefly[r.reason] ?? words(r.reason);
}

const requestsView = {
  open: null,     // id of the opened request
  details: null,  // what the server said about it
  list: [],

  show(list) {
    this.list = list;
    this.draw();
  },

  async toggle(id) {
    this.open = this.open === id ? null : id;
    this.details = null;
    this.draw();
    if (!this.open) return;
    try {
      this.details = await get(`/v1/kv/requests/${encodeURIComponent(id)}`);
    } catch (e) {
      this.details = {problem: e.message};
    }
    this.draw();
  },

  draw() {
    const box = $("requests");
    if (!this.list.length) {
      box.replaceChildren(element("div", {className: "empty"}, "No request has come yet."));
      return;
    }
    box.replaceChildren(...this.list.map((r) => this.row(r)));
  },

  row(r) {
    const id = r.request_id;
    const share = r.prompt_tokens ? r.cached_tokens / r.prompt_tokens : 0;
    const ttft = r.ttft_ms;
    const outcome = outcomeOf(r);
    const button = element("button", {ariaExpanded: this.open === id, onclick: () => this.toggle(id), dataset: {id}},
      element("span", {className: `chip ${outcome}`}, words(outcome)),
      element("span", {className: "why", title: id}, outcome === "failed" ? words(r.error) : briefly(r)),
      element("span", {className: "num"}, element("span", {className: "share"}, element("i", {style: {width: `${100 * share}%`}})),
              `${tokens(r.cached_tokens)} / ${tokens(r.prompt_tokens)}`),
      element("span", {className: "right"}, ttft ? milliseconds(ttft) : ""),
      element("span", {className: "right wide-only"}, ago(r.submitted)));
    return element("div", {className: "request"}, button,
      this.open === id ? element("div", {className: "explain"}, ...this.explain(id)) : "");
  },

  explain(id) {
    const d = this.details;
    if (!d) return ["…"];
    if (d.problem) return [element("p", {}, d.problem)];
    const parts = [];
    const detail = d.detail || {};
    let sentence = kReasons[d.reason] || words(d.reason);
    if (d.reason === "never_seen" && d.cached_tokens > 0) sentence = kRest;
    if (d.reason === "tokens_diverged" && detail.at_token !== undefined)
      sentence = `The first ${tokens(detail.shared_prefix_tokens ?? detail.at_token)} tokens are those of an earlier prompt. ${sentence}`;
    parts.push(element("p", {}, sentence));
    if (d.segments?.length) parts.push(segmentStrip(d.segments));
    if (detail.was || detail.now)
      parts.push(element("div", {className: "diff"}, element("span", {}, "was"), element("div", {}, detail.was || ""),
                         element("span", {}, "now"), element("div", {}, detail.now || "")));
    for (const a of d.alternatives || [])
      parts.push(element("p", {}, `If you ${a.if}: ${tokens(a.would_cache)} tokens would be cached.`));
    const figure = (value, name) => element("span", {}, element("b", {}, value), ` ${name}`);
    parts.push(element("div", {className: "figures"},
      figure(tokens(d.prompt_tokens), "prompt tokens"), figure(tokens(d.cached_tokens), "cached"),
      figure(tokens(d.missed_tokens ?? d.prompt_tokens - d.cached_tokens), "computed"),
      d.cost?.prefill_ms ? figure(milliseconds(d.cost.prefill_ms), "reading the prompt") : "",
      d.cost?.avoidable_ms ? figure(milliseconds(d.cost.avoidable_ms), "of it avoidable") : "",
      element("code", {}, id)));
    return parts;
  },
};

function segmentStrip(segments) {
  const total = segments.reduce((sum, s) => sum + (s.end - s.start), 0) || 1;
  return element("div", {className: "strip"}, ...segments.map((s) => {
    const length = s.end - s.start;
    return element("div", {className: "part", title: `${s.name}: ${tokens(s.cached)} of ${tokens(length)} tokens cached`,
                           style: {flex: `${Math.max(length / total, 0.04)} 1 0`}},
      element("span", {className: "bar2"}, element("i", {style: {width: `${100 * s.cached / Math.max(length, 1)}%`}})),
      element("span", {className: "label"}, s.name));
  }));
}
