"""Why a request missed, in every dialect: `kv.report: ["explain"]` in whole answers and in streams, hypothetical requests, the
four kinds of alternatives, and `compare_to`.

    check_explain.py QUIRE WRITE_TINY
"""
import json
import unittest

from kv_testing import QUIRE, tiny
from serving import Server

KV = {"report": ["explain"]}


def chat(text, **more):
    return {"model": "m", "max_tokens": 2, "temperature": 0, "messages": [{"role": "user", "content": text}], **more}


def events(text):
    """Objects of a stream of events, of lines, or of one array."""
    text = text.decode()
    if text.startswith("["):
        return json.loads(text)
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: ", "{"))]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# name: (path, path of a stream, body of a text, the same streamed)
DIALECTS = {
    "openai": ("/v1/chat/completions", None, lambda t: chat(t)),
    "completions": ("/v1/completions", None, lambda t: {"model": "m", "prompt": t, "max_tokens": 2, "temperature": 0}),
    "responses": ("/v1/responses", None, lambda t: {"model": "m", "input": t, "max_output_tokens": 16, "temperature": 0}),
    "anthropic": ("/v1/messages", None, lambda t: chat(t)),
    "gemini": ("/v1beta/models/m:generateContent", "/v1beta/models/m:streamGenerateContent?alt=sse", lambda t: {
        "contents": [{"role": "user", "parts": [{"text": t}]}], "generationConfig": {"maxOutputTokens": 2, "temperature": 0}}),
    "ollama": ("/api/chat", None, lambda t: {"model": "m", "messages": [{"role": "user", "content": t}], "stream": False,
                                             "options": {"num_predict": 2, "temperature": 0}}),
    "llama": ("/completion", None, lambda t: {"prompt": t, "n_predict": 2, "temperature": 0}),
}


class Explains(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(QUIRE, tiny("llama-F32"), "--kv-cache-memory", "32MiB")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def ask(self, dialect, text, stream=False, **kv):
        path, stream_path, body = DIALECTS[dialect]
        asked = {**body(text), "kv": {**KV, **kv}}
        if not stream:
            return self.server.post(path, asked)["kv"]["explain"]
        if not stream_path:
            asked["stream"] = True
        status, _, raw = self.server.call("POST", stream_path or path, asked, raw=True)
        self.assertEqual(status, 200, raw)
        found = []
        for event in events(raw):
            for holder in (event, event.get("response", {}) or {}):
                if isinstance(holder, dict) and "kv" in holder:
                    found.append(holder["kv"]["explain"])
        self.assertEqual(len(found), 1, f"{dialect}: {raw}")
        return found[0]

    def test_every_dialect_explains_whole_and_streamed(self):
        for number, dialect in enumerate(DIALECTS):
            with self.subTest(dialect):
                start = f"{dialect} " + "a" * 200
                cold = self.ask(dialect, start + "Friday" + "b" * 60)
                warm = self.ask(dialect, start + "Sunday" + "b" * 60, stream=True)
                self.assertEqual(cold["prompt_tokens"], cold["cached_tokens"] + cold["missed_tokens"])
                self.assertEqual((warm["outcome"], warm["reason"]), ("partial_hit", "tokens_diverged"))
                self.assertIn("Sunday"[0], warm["detail"]["now"])
                self.assertGreater(warm["cached_tokens"], 190)
                self.assertEqual(sum(s["cached"] for s in warm["segments"]), warm["cached_tokens"])
                self.assertEqual(warm["segments"][-1]["end"], warm["prompt_tokens"])
                again = self.ask(dialect, start + "Sunday" + "b" * 60)
                self.assertEqual(again["outcome"], "hit")
                self.assertEqual(again["alternatives"], [])
                # The same, not run.
                body = DIALECTS[dialect][2](start + "Sunday" + "b" * 60)
                name = "openai" if dialect == "completions" else dialect
                idle = self.server.post("/v1/kv/explain", {"dialect": name, "request": body})
                self.assertEqual((idle["outcome"], idle["prompt_tokens"]), ("hit", again["prompt_tokens"]))

    def alternatives(self, explanation):
        return {a["if"].split()[0]: a for a in explanation["alternatives"]}

    def test_alternatives(self):
        text = "alternatives " + "c" * 300
        self.ask("openai", "1" + text)
        moved = self.ask("openai", "2" + text)
        self.assertEqual(moved["outcome"], "miss" if moved["cached_tokens"] == 0 else "partial_hit")
        move = self.alternatives(moved)["move"]
        self.assertIn("move the changing text after token", move["if"])
        self.assertGreater(move["would_cache"], 250)
        salted = self.ask("openai", "1" + text, salt="other")
        self.assertEqual(salted["reason"], "salt_mismatch")
        self.assertGreater(self.alternatives(salted)["send"]["would_cache"], 250)
        # The one without a salt is as similar as the one that came after it, and differs in less.
        stored = self.ask("openai", "1" + text, format="int8")
        self.assertEqual(stored["reason"], "format_mismatch")
        self.assertGreater(self.alternatives(stored)["ask"]["would_cache"], 250)
        self.server.post("/v1/kv/clear", {"select": {"all": True}})
        gone = self.ask("openai", "1" + text)
        self.assertIn(gone["reason"], ("cleared", "evicted"))
        self.assertGreater(self.alternatives(gone)["pin"]["would_cache"], 250)

    def test_compare_to(self):
        long, short = "compare " + "d" * 200, "compare " + "d" * 90
        ids = [self.server.post("/v1/chat/completions", chat(t))["id"] for t in (long + "x" * 40, short + "y" * 40)]
        last = self.server.post("/v1/messages", chat(long + "z" * 40))["id"]
        shared = [self.server.get(f"/v1/kv/requests/{last}?compare_to={i}")["detail"]["shared_prefix_tokens"] for i in ids]
        self.assertGreater(shared[0], shared[1] + 100)
        idle = self.server.post("/v1/kv/explain", {"dialect": "gemini", "compare_to": ids[1], "request": DIALECTS["gemini"][2](long)})
        self.assertEqual(idle["detail"]["shared_prefix_tokens"], shared[1])
        for method, path, body in (("GET", f"/v1/kv/requests/{last}?compare_to=nobody", None),
                                   ("POST", "/v1/kv/explain", {"request": chat(long), "compare_to": "nobody"})):
            self.assertEqual(self.server.call(method, path, body)[0], 404)


if __name__ == "__main__":
    unittest.main(argv=["check_explain"])
