// Sessions: conversations with a name, those that were forked below the one they came from. Arrow keys walk through them.
"use strict";

const sessionsView = {
  open: "",   // the one whose details are shown
  list: [],

  show(list) {
    this.list = list;
    this.draw();
  },

  // [session, depth], parents before their forks. A parent that is gone leaves its forks at the top.
  rows() {
    const below = new Map(), known = new Set(this.list.map((s) => s.id)), out = [];
    for (const s of this.list) {
      const parent = s.parent && known.has(s.parent) && s.parent !== s.id ? s.parent : "";
      below.set(parent, [...(below.get(parent) || []), s]);
    }
    const walk = (parent, depth) => {
      for (const s of below.get(parent) || []) {
        out.push([s, depth]);
        if (depth < 32) walk(s.id, depth + 1);
      }
    };
    walk("", 0);
    return out;
  },

  draw() {
    const box = $("sessions"), rows = this.rows();
    $("sessions-note").textContent = rows.length ? `${tokens(rows.length)} named` : "";
    if (!rows.length) {
      box.replaceChildren(element("div", {className: "empty"}, "No conversation has a name. A request names one with kv.session."));
      return;
    }
    const focused = document.activeElement?.dataset?.session;
    box.replaceChildren(element("ul", {role: "tree", ariaLabel: "Sessions"}, ...rows.map(([s, depth], i) => this.row(s, depth, i === 0))));
    if (focused) box.querySelector(`[data-session="${CSS.escape(focused)}"]`)?.focus();
  },

  row(s, depth, first) {
    const open = this.open === s.id;
    const name = element("div", {
      role: "treeitem", ariaLevel: depth + 1, ariaExpanded: open, tabIndex: open || (first && !this.open) ? 0 : -1,
      dataset: {session: s.id}, style: {paddingLeft: `${10 + 18 * depth}px`}, onclick: () => this.toggle(s.id), onkeydown: (e) => this.walk(e)},
      element("span", {className: "name"}, s.id),
      element("span", {className: "num"}, `${tokens(s.turns)} turns`),
      element("span", {className: "num"}, `${tokens(s.tokens)} tokens`),
      element("span", {className: "num"}, bytes(s.bytes || 0)));
    return element("li", {role: "none"}, name, open ? this.details(s) : "");
  },

  details(s) {
    return element("div", {className: "session-detail"},
      element("p", {}, `${s.busy ? "A request goes on with it now. " : ""}Last used ${ago(s.last_used)} ago` +
        `${s.parent ? `, forked from ${s.parent}` : ""}.`),
      element("div", {className: "row"},
        element("button", {type: "button", className: "quiet", onclick: () => this.act(s.id, "fork")}, "Fork"),
        element("button", {type: "button", className: "quiet", onclick: () => this.act(s.id, "delete")}, "Delete")));
  },

  toggle(id) {
    this.open = this.open === id ? "" : id;
    this.draw();
    $("sessions").querySelector(`[data-session="${CSS.escape(id)}"]`)?.focus();
  },

  walk(e) {
    const all = [...$("sessions").querySelectorAll("[role=treeitem]")], at = all.indexOf(e.currentTarget);
    const open = e.currentTarget.getAttribute("aria-expanded") === "true";
    const to = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1}[e.key];
    if (to !== undefined) all[Math.min(Math.max(to, 0), all.length - 1)].focus();
    else if (e.key === "Enter" || e.key === " ") this.toggle(e.currentTarget.dataset.session);
    else if ((e.key === "ArrowRight" && !open) || (e.key === "ArrowLeft" && open)) this.toggle(e.currentTarget.dataset.session);
    else return;
    e.preventDefault();
  },

  async act(id, what) {
    const path = `/v1/kv/sessions/${encodeURIComponent(id)}`;
    try {
      const made = what === "fork" ? this.list.filter((s) => s.id.startsWith(`${id}-fork`)).length + 1 : 0;
      const response = what === "fork"
        ? await ask(`${path}/fork`, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({id: `${id}-fork${made}`})})
        : await ask(path, {method: "DELETE"});
      if (!response.ok) throw await problem(response);
      poll(true);
    } catch (e) {
      $("sessions-note").textContent = e.message;
    }
  },
};
