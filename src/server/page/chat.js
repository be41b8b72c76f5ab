// The conversation: streamed answers, each with what it took from the cache.
"use strict";

const kStarters = [
  "Why is the sky blue? Answer in two sentences.",
  "Write a haiku about a library at night.",
  "List three uses of a paperclip.",
];

const chat = {
  model: "",
  turns: [],  // {role, content, element}; of answers also how they came about, of questions if one failed
  aborter: null,

  messages() {
    const system = $("system").value.trim();
    const said = this.turns.filter((t) => !t.unanswered).map(({role, content}) => ({role, content}));
    return system ? [{role: "system", content: system}, ...said] : said;
  },

  body() {
    const body = {messages: this.messages(), stream: true, stream_options: {include_usage: true}};
    if (this.model) body.model = this.model;
    // What is left empty is the server's to choose.
    for (const [field, name] of [["temperature", "temperature"], ["tokens", "max_tokens"], ["seed", "seed"]])
      if ($(field).value !== "") body[name] = Number($(field).value);
    return JSON.stringify(body);
  },

  async send(text) {
    $("welcome").hidden = true;
    this.add("user", text);
    const question = this.turns.at(-1);
    const turn = this.add("assistant", "");
    this.turns.pop();  // an answer counts once it has come
    turn.said.classList.add("waiting");
    const aborter = this.aborter = new AbortController();
    refreshSend();
    const started = performance.now();
    const answer = {text: "", first: 0, last: 0, id: "", usage: null, chunks: 0};
    try {
      const response = await ask("/v1/chat/completions", {
        method: "POST", headers: {"Content-Type": "application/json"}, body: this.body(), signal: aborter.signal});
      if (!response.ok) throw await problem(response);
      answer.id = response.headers.get("x-request-id") || "";
      for await (const event of events(response.body)) this.take(event, answer, turn, started);
    } catch (e) {
      if (aborter.signal.aborted) answer.stopped = true;
      else answer.problem = e instanceof ApiError || !answer.text ? e.message : "The answer broke off.";
    }
    if (this.aborter !== aborter) return;  // the conversation was cleared meanwhile
    this.aborter = null;
    turn.said.classList.remove("waiting", "growing");
    cancelAnimationFrame(turn.pending);
    if (answer.text) {
      turn.said.replaceChildren(...markdown(answer.text));
      this.turns.push({role: "assistant", content: answer.text, element: turn.element, answer: {...answer, text: ""}});
    } else {
      question.unanswered = true;  // the next prompt leaves it out
    }
    if (answer.problem && !answer.text) {
      turn.said.classList.add("problem");
      turn.said.textContent = answer.problem;
    }
    turn.element.append(footer(answer));
    this.keep();
    refreshSend();
    stick();
    poll(true);
  },

  take(event, answer, turn, started) {
    if (event.error) throw new Error(event.error.message || "the stream broke off");
    answer.id ||= event.id;
    if (event.usage) answer.usage = event.usage;
    answer.finish = event.choices?.[0]?.finish_reason || answer.finish;
    const text = event.choices?.[0]?.delta?.content;
    if (!text) return;
    answer.last = performance.now() - started;
    answer.first ||= answer.last;
    answer.text += text;
    ++answer.chunks;
    turn.said.classList.remove("waiting");
    turn.said.classList.add("growing");
    if (!turn.pending)
      turn.pending = requestAnimationFrame(() => {
        turn.pending = 0;
        const follow = atEnd();
        turn.said.replaceChildren(...markdown(answer.text));
        if (follow) stick();
      });
  },

  add(role, content) {
    const said = element("div", {className: "said"});
    const box = element("div", {className: `turn ${role === "user" ? "user" : "answer"}`}, said);
    const turn = {role, content, element: box};
    if (role === "user") {
      said.textContent = content;
      box.append(element("button", {className: "edit", type: "button", onclick: () => this.edit(turn)}, "Edit and ask again"));
    }
    this.turns.push(turn);
    $("talk").append(box);
    stick();
    return {element: box, said, pending: 0};
  },

  // The conversation outlives a reload of the page, in this tab.
  keep() {
    const turns = this.turns.filter((t) => !t.unanswered).map(({role, content, answer}) => ({role, content, answer}));
    try { sessionStorage.setItem("chat", JSON.stringify({system: $("system").value, turns})); } catch { /* too long to keep */ }
  },

  restore() {
    let kept = null;
    try { kept = JSON.parse(sessionStorage.getItem("chat")); } catch { /* not ours */ }
    if (!kept?.turns?.length) return;
    $("system").value = kept.system || "";
    $("welcome").hidden = true;
    for (const {role, content, answer} of kept.turns) {
      const turn = this.add(role, content);
      if (role !== "assistant") continue;
      this.turns.at(-1).answer = answer;
      turn.said.replaceChildren(...markdown(content));
      turn.element.append(footer({...answer, text: content}));
    }
    stick();
  },

  // Everything from this message on is taken back; what stands before it is in the cache.
  edit(turn) {
    if (this.aborter) return;
    const at = this.turns.indexOf(turn);
    while (turn.element.nextSibling) turn.element.nextSibling.remove();
    turn.element.remove();
    this.turns.length = at;
    this.keep();
    $("words").value = turn.content;
    fit();
    $("words").focus();
    refreshSend();
  },

  clear() {
    this.aborter?.abort();
    this.aborter = null;
    this.turns = [];
    this.keep();
    document.querySelectorAll(".turn").forEach((t) => t.remove());
    $("welcome").hidden = false;
    refreshSend();
    $("words").focus();
  },
};

// The JSON events of a streamed answer.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    rest += value;
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines)
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
  }
}

function footer(answer) {
  if (answer.problem && !answer.text) return "";
  const usage = answer.usage, parts = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens || 0;
    const share = cached / Math.max(usage.prompt_tokens, 1);
    parts.push(element("span", {className: "cached"}, element("span", {className: "share"}, element("i", {style: {width: `${100 * share}%`}})),
      `${tokens(cached)} of ${tokens(usage.prompt_tokens)} prompt tokens cached`));
  }
  if (answer.first) parts.push(element("span", {}, `first token ${milliseconds(answer.first)}`));
  const made = usage?.completion_tokens || answer.chunks;
  if (made > 1 && answer.last > answer.first)
    parts.push(element("span", {}, `${tokens(made)} tokens, ${((made - 1) / (answer.last - answer.first) * 1000).toFixed(0)}/s`));
  if (answer.problem) parts.push(element("span", {className: "ended"}, answer.problem));
  else if (answer.stopped) parts.push(element("span", {className: "ended"}, "stopped"));
  else if (answer.finish === "length")
    parts.push(element("span", {className: "ended"},
      `cut after ${tokens(made)} tokens: ${$("tokens").value ? "Settings allow no more" : "the context is full"}`));
  if (!answer.id) return element("div", {className: "foot"}, ...parts);
  return element("button", {className: "foot", type: "button", title: "Why? Opens this request",
    onclick: () => { show("requests"); requestsView.open = null; requestsView.toggle(answer.id).then(() => openedRequest()?.scrollIntoView({block: "nearest", behavior: "smooth"})); }}, ...parts);
}

const openedRequest = () => document.querySelector(".request .explain");
const atEnd = () => { const t = $("talk"); return t.scrollHeight - t.scrollTop - t.clientHeight < 80; };
const stick = () => { $("talk").scrollTop = $("talk").scrollHeight; };

function fit() {
  const box = $("words");
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight, 200)}px`;
}

function refreshSend() {
  const busy = chat.aborter !== null;
  $("send").textContent = busy ? "Stop" : "Send";
  $("send").classList.toggle("stop", busy);
  $("send").disabled = !busy && !$("words").value.trim();
}

function submit() {
  if (chat.aborter) return chat.aborter.abort();
  const text = $("words").value.trim();
  if (!text) return;
  $("words").value = "";
  fit();
  chat.send(text);
}

$("ask").addEventListener("submit", (e) => { e.preventDefault(); submit(); });
$("words").addEventListener("input", () => { fit(); refreshSend(); });
$("words").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); if (!chat.aborter) submit(); }
});
$("fresh").addEventListener("click", () => chat.clear());
$("options").addEventListener("click", () => {
  $("settings").hidden = !$("settings").hidden;
  $("options").setAttribute("aria-expanded", String(!$("settings").hidden));
});
$("key").value = sessionStorage.getItem("key") || "";
$("key").addEventListener("change", () => { sessionStorage.setItem("key", $("key").value); poll(true); });
$("starters").append(...kStarters.map((text) => element("button", {type: "button", onclick: () => { if (!chat.aborter) chat.send(text); }}, text)));
$("system").addEventListener("change", () => chat.keep());
chat.restore();
refreshSend();
