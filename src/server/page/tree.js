// The prefix tree as an icicle that reads like text: a prompt begins at the left, and where prompts
// part, rows part. A node is a run of blocks; its colour says how often it was hit. A click zooms.
"use strict";

const kRow = 24, kTreeHeightMax = 560;

// Nodes of the server's list, joined where a run goes on alone: {hash, from, to, children, ...}.
function growTree(list) {
  const byHash = new Map(list.map((n) => [n.hash, {...n, kids: []}]));
  const root = {hash: "", tokens: 0, depth_tokens: 0, kids: [], text_preview: "everything"};
  for (const n of byHash.values()) (byHash.get(n.parent) || root).kids.push(n);
  const latest = newest(root);
  const join = (node) => {
    while (node.hash && node.kids.length === 1 && alike(node, node.kids[0])) {
      const only = node.kids[0];
      node = {...only, tokens: node.tokens + only.tokens, blocks: (node.blocks || 0) + (only.blocks || 0),
              bytes: (node.bytes || 0) + (only.bytes || 0), tokens_saved: (node.tokens_saved || 0) + (only.tokens_saved || 0),
              text_preview: node.text_preview, created: node.created, first: node.first || node.hash};
    }
    node.kids = node.kids.map(join);
    node.kids.sort((a, b) => String(a.created).localeCompare(String(b.created)) || String(a.hash).localeCompare(String(b.hash)));
    if (node === root) node.kids.sort((a, b) => String(newest(b)).localeCompare(String(newest(a))));
    // What was read last is never too thin to be read.
    node.leaves = node.kids.reduce((sum, k) => sum + k.leaves, 0) || (node.last_used === latest ? 3 : 1);
    return node;
  };
  return join(root);
}

// The words of a node; what templates put around turns becomes the speaker's name.
const quoted = (node) => (node.text_preview || node.hash.slice(0, 8))
  .replace(/<\|?(?:im_start|start_of_turn|start_header_id)\|?>\s*(\w+)(?:<\|end_header_id\|>)?/g, " $1:")
  .replace(/<\|[\w ]+\|>|<end_of_turn>|<\/?s>|<[be]os>/g, " ").replace(/<\|?\w*\|?…$/, "…").replace(/\s+/g, " ").trim();
const newest = (node) => node.kids.reduce((a, k) => (newest(k) > a ? newest(k) : a), node.last_used || "");
const alike = (a, b) => (a.hits || 0) === (b.hits || 0) && !(a.refs > 0) === !(b.refs > 0) && pinned(a) === pinned(b);
const pinned = (n) => Boolean(n.lease && (n.lease.pin || n.lease.expires));

// A long run is wider, but not in proportion: twenty new tokens behind four thousand must be seen.
const width = (node) => Math.sqrt(node.tokens + 24);

class TreeView {
  constructor() {
    this.root = null;
    this.zoom = "";  // hash of the node that fills the view
    this.views = new Map();
    window.addEventListener("resize", () => this.draw());
    document.addEventListener("keydown", (e) => { if (e.key === "Escape" && this.zoom) this.enter(this.path().at(-2)?.hash || ""); });
  }

  show(answer) {
    const list = answer.nodes || [];
    this.root = growTree(list);
    const sum = (f) => list.reduce((total, n) => total + (f(n) || 0), 0);
    $("tree-note").textContent = list.length
      ? `${tokens(sum((n) => n.tokens))} tokens kept · ${bytes(sum((n) => n.bytes))}${answer.truncated ? " · the largest part" : ""}` : "";
    this.draw();
  }

  find(hash, node = this.root) {
    if (!hash || node.hash === hash || node.first === hash) return node;
    for (const kid of node.kids) {
      const found = this.find(hash, kid);
      if (found && found.hash) return found;
    }
    return node === this.root ? this.root : null;
  }

  path() {  // from the root to the zoomed node
    const to = this.find(this.zoom), path = [];
    const walk = (node) => {
      path.push(node);
      if (node === to || node.kids.some(walk)) return true;
      path.pop();
      return false;
    };
    if (this.root) walk(this.root);
    return path;
  }

  // The run that was used last: what a visitor has just caused.
  latest(node = this.root) {
    return node.kids.map((k) => this.latest(k)).concat(node)
      .reduce((a, b) => (String(b.last_used || "") > String(a.last_used || "") ? b : a));
  }

  enter(hash) {
    this.zoom = hash === this.zoom ? "" : hash;
    this.draw();
  }

  draw() {
    if (!this.root) return;
    const box = $("tree");
    if (!this.root.kids.length) {
      this.views.forEach((v) => v.remove());
      this.views.clear();
      box.style.height = "auto";
      box.replaceChildren(element("div", {className: "empty"}, "Nothing is kept yet. The first answer puts its prompt here."));
      $("crumbs").replaceChildren();
      $("tree-detail").replaceChildren();
      return;
    }
    box.querySelector(".empty")?.remove();
    const top = this.find(this.zoom);
    if (!top.hash) this.zoom = "";
    const height = Math.min(kTreeHeightMax, Math.max(3, top.leaves) * kRow);
    box.style.height = `${height}px`;
    this.place(top, box.clientWidth || 600, height);
    this.crumbs();
    const told = this.detail && this.find(this.detail);
    this.tell(told?.hash ? told : top.hash ? top : this.latest());
  }

  place(top, wide, high) {
    const reach = (node) => width(node) + Math.max(0, ...node.kids.map(reach));
    const first = top.hash ? [top] : top.kids;
    const scale = wide / Math.max(...first.map(reach));
    const seen = new Set();
    const lay = (node, x, y, h) => {
      const w = width(node) * scale;
      if (h >= 2) {
        this.put(node, x, y, w, h);
        seen.add(node.hash);
      }
      let at = y;
      for (const kid of node.kids) {
        const part = h * kid.leaves / node.leaves;
        if (part >= 2) lay(kid, x + w, at, part);
        at += part;
      }
    };
    let y = 0;
    const leaves = first.reduce((sum, n) => sum + n.leaves, 0);
    for (const node of first) {
      const h = high * node.leaves / leaves;
      lay(node, 0, y, h);
      y += h;
    }
    for (const [hash, view] of this.views)
      if (!seen.has(hash)) {
        view.remove();
        this.views.delete(hash);
      }
  }

  put(node, x, y, w, h) {
    let view = this.views.get(node.hash);
    if (!view) {
      view = element("button", {className: "node"}, element("span", {className: "box"},
        element("span", {className: "text"}), element("span", {className: "count"})));
      this.views.set(node.hash, view);
      $("tree").append(view);
      view.addEventListener("click", () => this.enter(node.hash));
      const tell = () => this.tell(this.find(node.hash));
      view.addEventListener("pointerenter", tell);
      view.addEventListener("focus", tell);
    }
    Object.assign(view.style, {left: `${x}px`, top: `${y}px`, width: `${w}px`, height: `${h}px`});
    const heat = Math.min(78, 8 + 15 * Math.log2(1 + (node.hits || 0)));
    const inner = view.firstChild;
    inner.style.setProperty("--heat", `${heat}%`);
    inner.classList.toggle("deep", heat > 62);
    view.classList.toggle("used", node.refs > 0);
    view.classList.toggle("pinned", pinned(node));
    view.classList.toggle("thin", h < 15 || w < 22);
    view.classList.toggle("tall", h > 46);
    inner.style.setProperty("--lines", Math.max(1, Math.floor((h - 12) / 16.2)));  // 6 px above, and no line cut in half
    view.classList.toggle("narrow", w < 110);
    inner.children[0].textContent = quoted(node);
    inner.children[1].textContent = tokens(node.tokens);
    view.setAttribute("aria-label", `${quoted(node)}: ${node.tokens} tokens, ${node.hits || 0} hits`);
  }

  crumbs() {
    const path = this.path();
    $("crumbs").replaceChildren(...(path.length < 2 ? [] : path.flatMap((n, i) => {
      const name = quoted(n);
      const part = i === path.length - 1 ? element("span", {}, name.length > 40 ? `${name.slice(0, 40)}…` : name)
        : element("button", {onclick: () => { this.zoom = n.hash; this.draw(); }}, name);
      return i ? ["›", part] : [part];
    })));
  }

  tell(node) {
    if (!node?.hash) return;
    this.detail = node.hash;
    for (const [hash, view] of this.views) view.classList.toggle("shown", hash === node.hash);
    const figure = (value, name) => element("span", {}, element("b", {}, value), ` ${name}`);
    $("tree-detail").replaceChildren(
      element("span", {className: "quote"}, quoted(node)),
      element("span", {className: "figures"},
        figure(tokens(node.tokens), `tokens, to ${tokens(node.depth_tokens)}`), figure(bytes(node.bytes || 0), ""),
        figure(tokens(node.hits), node.hits === 1 ? "hit" : "hits"),
        node.tokens_saved ? figure(tokens(node.tokens_saved), "tokens saved") : "",
        node.refs > 0 ? figure(tokens(node.refs), "reading it now") : "",
        node.last_used ? element("span", {}, `used ${ago(node.last_used)} ago`) : "",
        pinned(node) ? element("span", {}, node.lease.expires ? "leased" : "pinned") : ""));
  }
}

const tree = new TreeView();
