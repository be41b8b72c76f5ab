"""Several models in one server: loaded when they are asked for, unloaded for others, with one cache.

    python3 tests/server/check_models.py QUIRE WRITE_TINY
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from serving import HURRY, Server, in_threads, wait_for

QUIRE, WRITE_TINY = map(os.path.abspath, sys.argv[1:3])
folder = tempfile.TemporaryDirectory()
subprocess.run([WRITE_TINY, folder.name], check=True)
MODELS = pathlib.Path(folder.name) / "models"
MODELS.mkdir()
for kind, name in (("llama-F32", "a"), ("gemma3-F32", "b"), ("qwen3-F32", "c")):
    source = pathlib.Path(f"{folder.name}/{kind}.gguf")
    shutil.copy(source if source.exists() else f"{folder.name}/llama-F32.gguf", MODELS / f"{name}.gguf")
LONG = "one two three four five six seven eight nine ten " * 12


class House(Server):
    """A server of several models: its names are not given."""

    def __init__(self, *arguments):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen([QUIRE, "serve", *map(str, arguments), "--port", "0", "--threads", "2"],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log)
        end = time.time() + HURRY
        while not (ready := re.search(r"listening on http://127\.0\.0\.1:(\d+) ", self.output())):
            if self.process.poll() is not None or time.time() > end:
                raise RuntimeError(f"the server did not start: {self.output()}")
            time.sleep(0.02)
        self.port = int(ready.group(1))
        self.url = f"http://127.0.0.1:{self.port}"

    def states(self):
        return {m["id"]: m["state"] for m in self.get("/v1/models")["data"]}

    def complete(self, model, prompt, tokens=8, **more):
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
        if model:
            body["model"] = model
        return self.post("/v1/completions", body)


def text(answer):
    return answer["choices"][0]["text"]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


alone = {}


def expected(model, prompt, tokens=8):
    """The same request to a server that has this model alone."""
    if model not in alone:
        alone[model] = Server(QUIRE, MODELS / f"{model}.gguf", "--threads", "2", name=model)
    return alone[model].post("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                                                 "ignore_eos": True})["choices"][0]["text"]


def weights():
    with House("--models-dir", MODELS) as house:
        return {m["id"]: m["weights_bytes"] for m in house.get("/v1/models")["data"]}


class Several(unittest.TestCase):
    def test_each_is_loaded_when_it_is_asked_for(self):
        with House(MODELS / "a.gguf", MODELS / "b.gguf", MODELS / "c.gguf") as house:
            self.assertEqual(house.states(), {"a": "loaded", "b": "unloaded", "c": "unloaded"})
            self.assertEqual(text(house.complete("b", "hello")), expected("b", "hello"))
            self.assertEqual(house.states(), {"a": "loaded", "b": "loaded", "c": "unloaded"})
            self.assertEqual(text(house.complete(None, "hello")), expected("a", "hello"))
            status, _, body = house.call("POST", "/v1/completions", {"model": "z", "prompt": "x"})
            self.assertEqual(status, 404)
            self.assertIn("'a', 'b', 'c'", body["error"]["message"])
            self.assertEqual(house.get("/v1/models/c")["state"], "unloaded")
            self.assertEqual(house.get("/v1/models/b")["kv"]["block_size"], 32)
            self.assertEqual(house.call("GET", "/v1/kv/stats?model=c")[0], 503)  # looking loads nothing
            self.assertEqual(house.states()["c"], "unloaded")
            self.assertEqual(house.get("/v1/kv/stats?model=b")["model"], "b")

    def test_all_dialects_find_their_model(self):
        with House("--models-dir", MODELS) as house:
            chat = [{"role": "user", "content": "hi"}]
            for model in "cb":
                for path, body in (("/v1/chat/completions", {"model": model, "messages": chat, "max_tokens": 2}),
                                   ("/v1/messages", {"model": model, "messages": chat, "max_tokens": 2}),
                                   ("/v1/responses", {"model": model, "input": "hi", "max_output_tokens": 16}),
                                   (f"/v1beta/models/{model}:generateContent",
                                    {"contents": [{"role": "user", "parts": [{"text": "hi"}]}], "generationConfig": {"maxOutputTokens": 2}}),
                                   ("/api/chat", {"model": model + ":latest", "messages": chat, "stream": False, "options": {"num_predict": 2}}),
                                   ("/tokenize", {"model": model, "prompt": "hi"})):
                    status, _, answer = house.call("POST", path, body)
                    self.assertEqual(status, 200, (path, model, answer))
                    if "chat/completions" in path:
                        self.assertEqual(answer["model"], model)
            names = {m["name"] for m in house.get("/api/tags")["models"]}
            self.assertEqual(names, {"a", "b", "c"})
            # A body whose model comes late, and one too large to be looked at on the connections' thread.
            late = {"messages": [{"role": "user", "content": "x" * 100_000}], "max_tokens": 1, "model": "c"}
            status, _, answer = house.call("POST", "/v1/chat/completions", late)
            self.assertIn("maximum context length", answer["error"]["message"])

    def test_what_is_cached_is_there_when_a_model_comes_back(self):
        size = weights()
        most = max(size.values()) + 4096
        with House("--models-dir", MODELS, "--weights-memory", most, "--model-stay", 0) as house:
            first = house.complete("a", LONG)
            self.assertEqual(cached(first), 0)
            for model in "bc":
                house.complete(model, LONG)
                self.assertEqual([m for m, s in house.states().items() if s == "loaded"], [model])
            again = house.complete("a", LONG)
            self.assertGreater(cached(again), 64)
            self.assertEqual(text(again), text(first))
            self.assertEqual(text(again), expected("a", LONG))
            self.assertIn("unloaded a", house.output())
            self.assertIn("loaded a in", house.output())
            # Sessions and stored responses stay, too.
            stored = house.post("/v1/responses", {"model": "a", "input": "hi", "max_output_tokens": 16})
            house.complete("b", "x")
            self.assertEqual(house.get("/v1/responses/" + stored["id"])["id"], stored["id"])
            house.post("/v1/responses", {"model": "a", "input": "go on", "previous_response_id": stored["id"], "max_output_tokens": 16})

    def test_nobody_makes_it_load_without_end(self):
        same = pathlib.Path(folder.name) / "same"  # so that two of them never fit
        same.mkdir()
        for name in "abc":
            shutil.copy(MODELS / "a.gguf", same / f"{name}.gguf")
        with House("--models-dir", same, "--weights-memory", weights()["a"] + 4096, "--model-stay", 1) as house:
            began = time.time()

            def alternate(i):
                for turn in range(4):
                    model = "abc"[(i + turn) % 3]
                    self.assertEqual(text(house.complete(model, f"hello {i}")), expected("a", f"hello {i}"))
            for i in range(3):
                expected("a", f"hello {i}")
            in_threads([lambda i=i: alternate(i) for i in range(3)])
            took = time.time() - began
            loads = len(re.findall(r"^loaded ", house.output(), re.M))
            self.assertLessEqual(loads, took / 1 + 1)
            self.assertGreaterEqual(loads, 3)

    def test_one_budget_for_all_caches(self):
        prompts = [f"{i} " + LONG for i in range(6)]
        want = {(m, p): expected(m, p, 24) for m in "ab" for p in prompts}
        with House(MODELS / "a.gguf", MODELS / "b.gguf", "--kv-cache-memory", "8500000") as house:
            def ask(model, prompt):
                status, _, body = house.call("POST", "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 24,
                                                                         "temperature": 0, "ignore_eos": True})
                self.assertEqual(status, 200, body)
                self.assertEqual(text(body), want[model, prompt])
            for _ in range(2):
                in_threads([lambda m=m, p=p: ask(m, p) for m in "ab" for p in prompts])
            trees = [house.get(f"/v1/kv/tree?model={m}") for m in "ab"]  # each shows its own texts
            both = [house.get(f"/v1/kv/stats?model={m}") for m in "ab"]  # as each engine saw it last
            self.assertEqual(both[0]["tiers"][0]["used_bytes"], both[1]["tiers"][0]["used_bytes"])
            self.assertLessEqual(both[0]["tiers"][0]["used_bytes"], 8500000)
            self.assertNotEqual(json.dumps(trees[0]), json.dumps(trees[1]))

    def test_long_answers_are_finished_before_a_model_leaves(self):
        most = max(weights().values()) + 4096
        with House("--models-dir", MODELS, "--weights-memory", most, "--model-stay", 0) as house:
            results = in_threads([lambda: house.complete("a", "hello", 300), lambda: (time.sleep(0.05), house.complete("b", "x"))[1]])
            self.assertEqual(results[0]["usage"]["completion_tokens"], 300)
            self.assertEqual(text(results[1]), expected("b", "x"))

    def test_who_leaves_while_a_model_loads_holds_nothing(self):
        import http.client
        with House("--models-dir", MODELS) as house:
            for _ in range(5):
                connection = http.client.HTTPConnection("127.0.0.1", house.port)
                connection.request("POST", "/v1/completions", json.dumps({"model": "c", "prompt": "x"}))
                connection.sock.close()
            self.assertEqual(text(house.complete("c", "hi")), expected("c", "hi"))
            wait_for(lambda: house.get("/v1/kv/stats?model=c")["requests"] == {"running": 0, "waiting": 0})

    def test_a_file_that_changed_is_not_taken_for_what_it_was(self):
        most = max(weights().values()) + 4096
        own = pathlib.Path(folder.name) / "own"
        shutil.copytree(MODELS, own)
        with House("--models-dir", own, "--weights-memory", most, "--model-stay", 0) as house:
            house.complete("b", "x")
            house.complete("c", "x")  # b has left
            shutil.copy(own / "a.gguf", own / "b.gguf.new")
            os.replace(own / "b.gguf.new", own / "b.gguf")
            status, _, body = house.call("POST", "/v1/completions", {"model": "b", "prompt": "x"})
            self.assertEqual(status, 503, body)
            self.assertIn("replaced by another file", body["error"]["message"])
            self.assertEqual(text(house.complete("a", "hi")), expected("a", "hi"))

    def test_keys_come_first(self):
        keys = pathlib.Path(folder.name) / "keys"
        keys.write_text("secret-key-1\n")
        keys.chmod(0o600)
        with House("--models-dir", MODELS, "--api-key-file", keys) as house:
            status, _, _ = house.call("POST", "/v1/completions", {"model": "b", "prompt": "x"})
            self.assertEqual(status, 401)
            header = {"Authorization": "Bearer secret-key-1"}
            self.assertEqual({m["id"]: m["state"] for m in house.get("/v1/models", headers=header)["data"]}["b"], "unloaded")
            self.assertEqual(house.call("POST", "/v1/completions", {"model": "b", "prompt": "x"}, header)[0], 200)

    def test_what_does_not_go_is_said(self):
        def fails(code, says, *arguments):
            done = subprocess.run([QUIRE, "serve", *map(str, arguments), "--port", "0"], capture_output=True, text=True, timeout=HURRY)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(says, done.stderr)
        a, b = MODELS / "a.gguf", MODELS / "b.gguf"
        fails(2, "--kv-dir: not with several models yet", a, b, "--kv-dir", "/tmp/x")
        fails(2, "--trace: not with several models yet", a, b, "--trace", "x")
        fails(2, "-a was given 1 times for 2 models", a, b, "-a", "x")
        fails(2, "have the same name", a, a)
        fails(4, "--weights-memory is", a, b, "--weights-memory", "1000")
        empty = pathlib.Path(folder.name) / "empty"
        empty.mkdir(exist_ok=True)
        fails(3, "has no GGUF file", "--models-dir", empty)
        fails(3, "cannot be read", "--models-dir", empty / "none")


if __name__ == "__main__":
    try:
        unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
    finally:
        for server in alone.values():
            server.stop()
