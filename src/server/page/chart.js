// Small pictures of figures over the last minutes.
"use strict";

const kWindowMin = 60, kWindowMax = 300;  // seconds

class Chart {
  // write(value) gives [text, unit]; floor is the least that the top of the scale may be.
  constructor(name, write, floor) {
    Object.assign(this, {name, write, floor, points: []});
    const svg = (tag, attributes) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [k, v] of Object.entries(attributes)) made.setAttribute(k, v);
      return made;
    };
    this.area = svg("path", {class: "area"});
    this.line = svg("path", {class: "line"});
    this.cross = svg("line", {class: "cross", y1: 0, y2: 100, visibility: "hidden"});
    this.svg = svg("svg", {viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": name});
    this.svg.append(svg("line", {class: "base", x1: 0, x2: 100, y1: 100, y2: 100}), this.area, this.cross, this.line);
    this.value = element("div", {className: "value"}, "–");
    this.left = element("span", {});
    this.top = element("span", {});
    this.element = element("div", {className: "chart"}, element("div", {className: "name"}, name), this.value,
      element("div", {className: "plot"}, this.svg, element("div", {className: "scale"}, this.left, this.top)));
    this.svg.addEventListener("pointermove", (e) => this.point(e));
    this.svg.addEventListener("pointerleave", () => { this.cross.setAttribute("visibility", "hidden"); this.say(); });
  }

  // value null: nothing happened, the line pauses.
  add(at, value) {
    this.points.push({at, value});
    while (this.points.length && this.points[0].at < at - kWindowMax) this.points.shift();
    this.draw(at);
  }

  draw(now) {
    const seen = this.points.filter((p) => p.value !== null);
    const high = Math.max(this.floor, ...seen.map((p) => p.value)) * 1.05;
    this.window = Math.max(kWindowMin, now - this.points[0].at);
    this.x = (p) => 100 - 100 * (now - p.at) / this.window;
    const y = (p) => 100 - 100 * p.value / high;
    // A figure that pauses is held: it is still the latest.
    const path = seen.map((p, i) => `${i ? "L" : "M"}${this.x(p).toFixed(2)} ${y(p).toFixed(2)}`).join("");
    this.line.setAttribute("d", seen.length ? `${path}L100 ${y(seen.at(-1)).toFixed(2)}` : "");
    this.area.setAttribute("d", seen.length ? `${path}L100 ${y(seen.at(-1)).toFixed(2)}L100 100L${this.x(seen[0]).toFixed(2)} 100Z` : "");
    this.top.textContent = seen.length ? `top ${this.write(high / 1.05).join(" ")}` : "";
    this.say();
  }

  say(point) {
    const p = point || this.points.findLast((q) => q.value !== null);
    this.left.textContent = point ? `${ago(point.at * 1000)} ago` : `${Math.round(this.window)} s`;
    if (!p) return;
    const [text, unit] = this.write(p.value);
    this.value.replaceChildren(text, element("small", {}, unit));
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const at = 100 * (event.clientX - box.left) / box.width;
    let best = null;
    for (const p of this.points)
      if (p.value !== null && (!best || Math.abs(this.x(p) - at) < Math.abs(this.x(best) - at))) best = p;
    if (!best) return;
    this.cross.setAttribute("x1", this.x(best));
    this.cross.setAttribute("x2", this.x(best));
    this.cross.setAttribute("visibility", "visible");
    this.say(best);
  }
}

// The counters of /metrics by name, summed over labels.
function readMetrics(text) {
  const sums = {};
  for (const [, name, value] of text.matchAll(/^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)$/gm))
    if (!name.endsWith("_bucket")) sums[name] = (sums[name] || 0) + Number(value);
  return sums;
}

const charts = {
  hit: new Chart("Hit rate", (v) => [(100 * v).toFixed(0), "%"], 1),
  ttft: new Chart("Time to first token", (v) => milliseconds(v).split(" "), 1),
  rate: new Chart("Output", (v) => [v === 0 || v >= 100 ? v.toFixed(0) : v.toFixed(1), "tokens/s"], 1),
};

let metricsBefore = null;
function showMetrics(text) {
  if (!charts.hit.element.isConnected) $("charts").replaceChildren(...Object.values(charts).map((c) => c.element));
  const now = {at: Date.now() / 1000, m: readMetrics(text)};
  const before = metricsBefore;
  metricsBefore = now;
  if (!before || now.m["vllm:prompt_tokens_total"] < before.m["vllm:prompt_tokens_total"]) return now.m;
  const grew = (name) => (now.m[name] || 0) - (before.m[name] || 0);
  const asked = grew("vllm:prefix_cache_queries_total");
  charts.hit.add(now.at, asked > 0 ? grew("vllm:prefix_cache_hits_total") / asked : null);
  const firsts = grew("vllm:time_to_first_token_seconds_count");
  charts.ttft.add(now.at, firsts > 0 ? 1000 * grew("vllm:time_to_first_token_seconds_sum") / firsts : null);
  charts.rate.add(now.at, grew("vllm:generation_tokens_total") / (now.at - before.at));
  return now.m;
}
