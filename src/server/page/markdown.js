// The little of Markdown that answers use, as elements: nothing is ever read as HTML.
"use strict";

function inline(text) {
  const parts = [];
  const pattern = /`([^`]+)`|\*\*([^*]+)\*\*/g;
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > at) parts.push(text.slice(at, match.index));
    parts.push(match[1] !== undefined ? element("code", {}, match[1]) : element("strong", {}, match[2]));
    at = match.index + match[0].length;
  }
  if (at < text.length) parts.push(text.slice(at));
  return parts;
}

function markdown(text) {
  const out = [];
  let list = null, paragraph = [];
  const flush = () => {
    if (paragraph.length) {
      const lines = paragraph.flatMap((line, i) => (i ? [element("br"), ...inline(line)] : inline(line)));
      out.push(element("p", {}, ...lines));
    }
    paragraph = [];
    list = null;
  };
  const lines = text.split("\n");
  for (let i = 0; i < lines.length; ++i) {
    const line = lines[i];
    const item = line.match(/^\s*(?:([-*])|(\d+)[.)])\s+(.*)/);
    if (line.startsWith("```")) {
      flush();
      const code = [];
      while (++i < lines.length && !lines[i].startsWith("```")) code.push(lines[i]);
      out.push(element("pre", {}, element("code", {}, code.join("\n"))));
    } else if (item) {
      const tag = item[1] ? "UL" : "OL";
      if (!list || list.tagName !== tag) {
        flush();
        list = element(tag);
        if (tag === "OL") list.start = Number(item[2]);
        out.push(list);
      }
      list.append(element("li", {}, ...inline(item[3])));
    } else if (/^#{1,6}\s/.test(line)) {
      flush();
      out.push(element("h3", {}, ...inline(line.replace(/^#+\s*/, ""))));
    } else if (!line.trim()) {
      flush();
    } else {
      if (list) flush();
      paragraph.push(line);
    }
  }
  flush();
  return out;
}
