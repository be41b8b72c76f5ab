// What the other parts share: asking the server, making elements, writing numbers.
"use strict";

const $ = (id) => document.getElementById(id);

// element("p", {className: "x", onclick: f}, "text", child, ...)
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "style" || name === "dataset") Object.assign(made[name], value);
    else if (name === "role") made.setAttribute(name, value);
    else if (name.startsWith("aria")) made.setAttribute(name.replace("aria", "aria-").toLowerCase(), value);
    else made[name] = value;
  }
  made.append(...children.filter((c) => c !== null && c !== undefined && c !== ""));
  return made;
}

class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem("key");
  const headers = {...(options.headers || {}), ...(key ? {Authorization: `Bearer ${key}`} : {})};
  try {
    return await fetch(path, {...options, headers});
  } catch (e) {  // the browser says "Failed to fetch", whatever it was
    throw e.name === "AbortError" ? e : new Error(kUnreachable);
  }
}
const kUnreachable = "The server does not answer. Is it still running?";

async function problem(response) {
  let message = `the server answered ${response.status}`;
  try {
    const body = await response.json();
    message = body.error?.message || message;
  } catch { /* no JSON: the status says it */ }
  if (response.status === 401) message += ". Put the API key into Settings.";
  return new ApiError(response.status, message);
}

// What a panel needs, or null where this key may not see it: then the panel says so.
async function getFor(panel, path) {
  try {
    return await get(path);
  } catch (e) {
    if (!(e instanceof ApiError) || (e.status !== 401 && e.status !== 403)) throw e;
    $(panel).replaceChildren(element("div", {className: "empty locked"},
      e.status === 403 ? "This needs an admin key." : "This needs an API key: put it into Settings."));
    return null;
  }
}

async function get(path) {
  const response = await ask(path);
  if (!response.ok) throw await problem(response);
  return response.json();
}

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const tokens = (n) => whole.format(n ?? 0);

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; ++unit; }
  return `${n >= 100 || unit === 0 ? n.toFixed(0) : n.toFixed(1)} ${units[unit]}`;
}

function milliseconds(ms) {
  if (ms >= 10000) return `${(ms / 1000).toFixed(0)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(1)} s`;
  return ms >= 10 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`;
}

// How long ago, without the word.
function ago(when) {
  const s = Math.max(0, (Date.now() - new Date(when)) / 1000);
  if (!isFinite(s)) return "";
  if (s < 90) return `${s.toFixed(0)} s`;
  return s < 5400 ? `${(s / 60).toFixed(0)} min` : `${(s / 3600).toFixed(0)} h`;
}

const words = (name) => String(name || "").replaceAll("_", " ");
