"""Tool calls and reasoning of models that write them in different ways, asked for through their templates.

    tests/server/check_calls.py QUIRE WRITE_TINY

The model is tiny and knows nothing, so calls are forced; what comes back must be calls, whole and streamed.
"""
import json
import subprocess
import sys
import tempfile
import unittest

from serving import Server

QUIRE, WRITE_TINY = sys.argv[1:3]
folder = tempfile.TemporaryDirectory()
subprocess.run([WRITE_TINY, folder.name], check=True)
MODEL = f"{folder.name}/llama-F32.gguf"
SERVER = None

CITIES = ["Paris", "Rome"]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "properties": {"city": {"enum": CITIES}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "days"], "additionalProperties": False}}} for name in ("get_weather", "get_time")]
BASE = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"
# What a template of each family holds; the tiny vocabulary has no such tokens, so marks are text.
TEMPLATES = {
    "hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama3": "<|python_tag|>", "granite": "<|tool_call|>",
    "deepseek": "<｜tool▁calls▁begin｜>", "command_r": "<|START_ACTION|>", "phi": "<|/tool|>",
    "gemma": "<start_function_call>", "qwen3_coder": "<function=", "openai": "<|channel|>analysis", "json": "",
}


def template(mark):
    return "{# " + mark + " #}" + BASE


def ask(**more):
    return SERVER.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Weather?"}],
                                                "temperature": 0, "max_tokens": 300, **more})


def streamed(**more):
    """(reasoning, content, [(name, arguments)], finish, usage) of a stream."""
    status, _, raw = SERVER.call("POST", "/v1/chat/completions", {
        "model": "m", "messages": [{"role": "user", "content": "Weather?"}], "temperature": 0, "max_tokens": 300,
        "stream": True, "stream_options": {"include_usage": True}, **more}, raw=True)
    assert status == 200, raw
    reasoning, content, calls, finish, usage = "", "", [], None, None
    for line in raw.decode().splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line[6:])
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            delta = choice["delta"]
            assert delta.get("reasoning_content") == delta.get("reasoning")
            reasoning += delta.get("reasoning_content") or ""
            content += delta.get("content") or ""
            finish = choice["finish_reason"] or finish
            for call in delta.get("tool_calls", []):
                if "name" in call["function"]:
                    calls.append([call["function"]["name"], ""])
                calls[call["index"]][1] += call["function"]["arguments"]
    return reasoning, content, [tuple(c) for c in calls], finish, usage


def whole(**more):
    answer = ask(**more)
    choice = answer["choices"][0]
    message = choice["message"]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
    return message.get("reasoning_content", ""), message["content"] or "", calls, choice["finish_reason"], answer["usage"]


class Calls(unittest.TestCase):
    def same(self, **more):
        one, other = whole(**more), streamed(**more)
        self.assertEqual(one[:4], other[:4])
        for name in ("completion_tokens", "completion_tokens_details"):
            self.assertEqual(one[4][name], other[4][name])
        return one

    def test_forced_calls_of_every_family(self):
        for family, mark in TEMPLATES.items():
            for parallel in (False, True) if family in ("hermes", "mistral", "deepseek") else (False,):
                with self.subTest(family, parallel=parallel):
                    reasoning, content, calls, finish, _ = self.same(
                        tools=TOOLS, tool_choice="required", chat_template=template(mark), parallel_tool_calls=parallel)
                    self.assertGreaterEqual(len(calls), 1)
                    if finish != "length":  # the beginning of one more call is content
                        self.assertEqual((reasoning, content), ("", ""))
                    if not parallel:
                        self.assertEqual((len(calls), finish), (1, "tool_calls"))
                    for name, arguments in calls[:-1] if finish == "length" else calls:
                        self.assertIn(name, ("get_weather", "get_time"))
                        read = json.loads(arguments)
                        self.assertIn(read["city"], CITIES)
                        self.assertIn(read["days"], range(10))

    def test_named_function_is_the_one(self):
        for family, mark in TEMPLATES.items():
            with self.subTest(family):
                calls = self.same(tools=TOOLS, chat_template=template(mark),
                                  tool_choice={"type": "function", "function": {"name": "get_time"}})[2]
                self.assertEqual([name for name, _ in calls], ["get_time"])

    def test_a_prompt_that_opens_reasoning(self):
        thinking = "{# </think> #}" + BASE + "<think>\n"
        reasoning, content, _, finish, usage = self.same(chat_template=thinking, max_tokens=20)
        self.assertEqual((content, finish), ("", "length"))
        self.assertTrue(reasoning)
        self.assertEqual(usage["completion_tokens_details"]["reasoning_tokens"], 20)
        plain = self.same(chat_template=BASE + "<think>\n", max_tokens=20)
        self.assertEqual(plain[0], "", "a template that closes no reasoning has none")
        self.assertEqual(plain[4]["completion_tokens_details"]["reasoning_tokens"], 0)
        forced = self.same(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, chat_template=thinking)
        self.assertEqual(len(forced[2]), 1, "a forced call is no reasoning")

    def test_earlier_reasoning_goes_to_the_template(self):
        shows = "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}{{ m.content }};{% endfor %}"
        for name in ("reasoning_content", "reasoning"):
            prompt = SERVER.post("/apply-template", {"chat_template": shows, "messages": [
                {"role": "user", "content": "a"}, {"role": "assistant", "content": "b", name: "hm"},
                {"role": "user", "content": "c"}]})["prompt"]
            self.assertEqual(prompt, "user:a;assistant:hmb;user:c;")

    def test_templates_that_want_text_and_ids(self):
        wants = ("{# tools #}{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
                 "{{ raise_exception('nine') }}{% endif %}{{ c.function.name + ' ' + c.function.arguments }} {% endfor %}"
                 "{% elif m.role == 'tool' %}{{ m.tool_call_id }}={{ m.content }}{% endif %}{% endfor %}")
        prompt = SERVER.post("/apply-template", {"chat_template": wants, "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call_x", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}}]},
            {"role": "tool", "tool_call_id": "call_x", "content": "18"}]})["prompt"]
        self.assertEqual(prompt, "f {\"x\":1} 000000000=18")


class Options(unittest.TestCase):
    def test_parsers_are_shown_and_can_be_named(self):
        self.assertEqual(SERVER.get("/props")["tool_call_parser"], "hermes")
        self.assertEqual(SERVER.get("/props")["reasoning_parser"], "none")
        with Server(QUIRE, MODEL, "--tool-call-parser", "llama3_json", "--reasoning-parser", "deepseek_r1") as other:
            self.assertEqual(other.get("/props")["tool_call_parser"], "llama3")
            self.assertEqual(other.get("/props")["reasoning_parser"], "think")
        refused = subprocess.run([QUIRE, "serve", MODEL, "--tool-call-parser", "nothing"], capture_output=True, text=True)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("hermes", refused.stderr)


if __name__ == "__main__":
    with Server(QUIRE, MODEL, "--trust-request-templates") as SERVER:
        done = unittest.main(argv=[sys.argv[0], *sys.argv[3:]], exit=False)
    sys.exit(not done.result.wasSuccessful())
