// What if: one question asked twice, as the server would and with another format or budget; both answers side by side, with the bytes
// that their keys and values took.
"use strict";

const kFormats = ["f16", "int8", "hadamard-int4", "hadamard-int3"];
const kBudgets = [["all tokens", null], ["snapkv, half of them", {policy: "snapkv", ratio: 0.5}], ["snapkv, a fifth", {policy: "snapkv", ratio: 0.2}],
                  ["expected attention, half", {policy: "expected", ratio: 0.5}]];

const whatif = {
  learn(formats) {  // that this model can store
    const list = formats?.length ? formats : kFormats;
    if ($("other-format").children.length === list.length + 1) return;
    $("other-format").replaceChildren(element("option", {value: ""}, "as served"), ...list.map((f) => element("option", {value: f}, f)));
  },

  async compare() {
    const words = $("whatif-words").value.trim();
    if (!words) return;
    const kv = {reuse: "none", write: "none", allow_lossy: true, report: ["usage", "timing"]};
    const other = {...kv};
    if ($("other-format").value) other.format = $("other-format").value;
    const budget = kBudgets[$("other-budget").selectedIndex][1];
    if (budget) other.budget = budget;
    $("whatif-run").disabled = true;
    $("whatif-answers").setAttribute("aria-busy", "true");
    const answers = await Promise.all([this.answer(words, kv), this.answer(words, other)]);
    $("whatif-run").disabled = false;
    $("whatif-answers").removeAttribute("aria-busy");
    const same = answers[0].text !== undefined && answers[0].text === answers[1].text;
    const share = answers[1].bytes && answers[0].bytes ? ` It took ${(100 * answers[1].bytes / answers[0].bytes).toFixed(0)} % of the bytes.` : "";
    $("whatif-note").textContent = answers.some((a) => a.problem) ? "" : (same ? "The same answer." : "Another answer.") + share;
    $("whatif-answers").replaceChildren(...answers.map((a, i) => this.column(i ? "changed" : "as served", a)));
  },

  async answer(words, kv) {
    try {
      const response = await ask("/v1/chat/completions", {
        method: "POST", headers: {"Content-Type": "application/json"},
        body: JSON.stringify({messages: [{role: "user", content: words}], temperature: 0, max_tokens: 128, kv, ...(chat.model ? {model: chat.model} : {})})});
      if (!response.ok) throw await problem(response);
      const body = await response.json();
      return {text: body.choices?.[0]?.message?.content || "", bytes: body.kv?.bytes || 0, whole: body.kv?.budget?.bytes_whole,
              format: body.kv?.format, timing: body.kv?.timing};
    } catch (e) {
      return {problem: e.message};
    }
  },

  column(name, a) {
    if (a.problem) return element("div", {className: "column"}, element("h3", {}, name), element("p", {className: "problem"}, a.problem));
    const format = typeof a.format === "string" ? a.format : a.format ? `${a.format.k} / ${a.format.v}` : "";
    return element("div", {className: "column"}, element("h3", {}, name),
      element("p", {className: "said"}, a.text || "(no words)"),
      element("p", {className: "note"}, [bytes(a.bytes), a.whole ? `of ${bytes(a.whole)}` : "", format,
        a.timing?.ttft_ms ? `first token ${milliseconds(a.timing.ttft_ms)}` : ""].filter(Boolean).join(" · ")));
  },
};

$("other-budget").append(...kBudgets.map(([name]) => element("option", {}, name)));
whatif.learn([]);
$("whatif").addEventListener("submit", (e) => { e.preventDefault(); whatif.compare(); });
