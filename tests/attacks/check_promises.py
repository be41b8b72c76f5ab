"""What is promised holds on a live server: the same answers, whatever others send and whoever writes to the model's file.

    tests/attacks/check_promises.py QUIRE WRITE_TINY [NAME...]
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time
import unittest

from attacking import FOLDER, QUIRE, TINY, Attacks, head, main
from hf_folder import write_hf_folder
from serving import Server, Wire, in_threads, wait_for


class Files(unittest.TestCase):
    """Somebody writes to the model's file while it is served."""

    def answers(self, server):
        server.post("/reset_prefix_cache", {})
        return [server.post("/v1/completions", {"model": "m", "prompt": [5 + 40 * i + j for j in range(40)], "max_tokens": 8,
                                                "temperature": 0, "ignore_eos": True})["choices"][0]["text"] for i in range(6)]

    def check(self, model, file):
        with Server(QUIRE, model) as server, open(file, "rb") as f:
            whole = f.read()
            before = self.answers(server)
            self.assertEqual(server.get("/v1/models")["data"][0]["files"], "as loaded")
            os.truncate(file, 0)
            self.assertEqual(self.answers(server), before)
            wait_for(lambda: server.get("/health") == {"status": "ok", "model_files": "changed"}, 20)
            self.assertIn("now has 0; answers still come from what was loaded", server.output())
            self.assertEqual(server.get("/v1/models")["data"][0]["files"], "changed")
            with open(file, "wb") as other:
                other.write(os.urandom(len(whole)))
            self.assertEqual(self.answers(server), before)
            # The one kind of request that reads the file again is refused, and nobody else notices.
            others, refused = [], threading.Event()

            def ask_until_refused():
                while not others or not refused.is_set():
                    others.append(server.call("POST", "/v1/completions", {
                        "model": "m", "prompt": [61, 62], "max_tokens": 300, "ignore_eos": True})[0])

            other = threading.Thread(target=ask_until_refused)
            other.start()
            time.sleep(0.2)
            got, _, answer = server.call("POST", "/v1/completions", {
                "model": "m", "prompt": [61 + i % 99 for i in range(200)], "max_tokens": 4, "ignore_eos": True,
                "kv": {"budget": {"policy": "critical-snapkv", "ratio": 0.3}, "allow_lossy": True}})
            refused.set()
            other.join()
            self.assertEqual(got, 503, answer)
            self.assertEqual(set(others), {200})
            self.assertEqual(server.get("/health")["status"], "ok")
            os.remove(file)
            self.assertEqual(self.answers(server), before)
            self.assertEqual(server.stop(), 0)

    def test_a_gguf_file_is_truncated_overwritten_and_removed(self):
        model = os.path.join(FOLDER.name, "copy.gguf")
        shutil.copyfile(TINY, model)
        self.check(model, model)

    def test_a_folder_is(self):
        model = pathlib.Path(FOLDER.name) / "hf"
        write_hf_folder(model)
        self.check(model, model / "model.safetensors")


class Crowds(unittest.TestCase):
    """Answers are those that each request gets alone, and every one that fits alone is answered."""

    def complete(self, server, prompt, **more):
        return server.post("/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 24, "temperature": 0,
                                               "ignore_eos": True, **more})["choices"][0]["text"]

    def test_equal_requests_with_a_cut(self):
        """Six at once on an empty cache, of each policy that acts while it decodes."""
        prompt = [61 + i * i % 97 for i in range(716)]
        with Server(QUIRE, TINY) as server:
            for policy in ("streaming", "window", "h2o", "tova", "keydiff", "knorm", "scissorhands", "random"):
                kv = {"budget": {"policy": policy, "tokens": 128, "cut": 128}, "allow_lossy": True}
                server.post("/reset_prefix_cache", {})
                alone = self.complete(server, prompt, kv=kv)
                server.post("/reset_prefix_cache", {})
                self.assertEqual(in_threads([lambda: self.complete(server, prompt, kv=kv)] * 6), [alone] * 6, policy)

    def test_a_prompt_shorter_than_its_cut(self):
        prompt = [61 + i * i % 97 for i in range(2000)]
        kv = {"budget": {"policy": "expected", "ratio": 0.3, "cut": 1000}, "allow_lossy": True}
        with Server(QUIRE, TINY) as server:
            alone = self.complete(server, prompt, kv=kv)
            server.post("/reset_prefix_cache", {})
            self.complete(server, prompt[:500], kv=kv)
            self.assertEqual(self.complete(server, prompt, kv=kv), alone)

    def test_a_budget_fails_no_plain_request(self):
        """What is parked and cannot be computed again must not hold what a running answer needs."""
        with Server(QUIRE, TINY, "--kv-cache-memory", "4MiB") as server:
            done = in_threads([
                lambda: self.complete(server, [61] * 100, max_tokens=900, n=4),
                lambda: self.complete(server, [62] * 1000, max_tokens=600, n=4, kv={
                    "budget": {"policy": "snapkv", "ratio": 0.5}, "allow_lossy": True})])
            self.assertEqual([len(text) > 0 for text in done], [True, True])

    def test_choices_score_for_themselves(self):
        """kvzip reads the prompt again, each choice by itself."""
        kv = {"budget": {"policy": "kvzip", "ratio": 0.3}, "allow_lossy": True}
        ask = {"model": "m", "prompt": [61 + i * i % 97 for i in range(800)], "max_tokens": 24, "temperature": 0, "ignore_eos": True,
               "kv": kv}
        with Server(QUIRE, TINY, "--kv-cache-memory", "8MiB") as server:
            one = server.post("/v1/completions", ask)["choices"][0]["text"]
            answers = in_threads([lambda: server.post("/v1/completions", {**ask, "n": 4})] * 3)
            self.assertEqual({c["text"] for a in answers for c in a["choices"]}, {one})

    def test_more_sequences_than_a_step_had_room_for(self):
        with Server(QUIRE, TINY, "--max-num-seqs", "4096", "--max-queue", "5000") as server:
            ask = {"model": "m", "prompt": [61, 62, 63], "max_tokens": 40, "n": 16, "temperature": 1, "ignore_eos": True}
            for answer in in_threads([lambda: server.post("/v1/completions", ask)] * 80):
                self.assertEqual(len(answer["choices"]), 16)
            self.assertEqual(server.stop(), 0)

    def test_numbers_that_are_not_finite(self):
        """Token 7 of this file breaks whatever reads it: its request ends, and nothing of it is cached."""
        with Server(QUIRE, os.path.join(FOLDER.name, "broken.gguf")) as server:
            good, bad = [61] * 100, [61] * 64 + [7] + [61] * 300
            alone = self.complete(server, good)
            for _ in range(2):
                got, _, answer = server.call("POST", "/v1/completions", {"model": "m", "prompt": bad, "max_tokens": 4})
                self.assertEqual((got, answer["error"]["code"]), (500, "numeric_error"))
                seen = server.post("/v1/kv/lookup", {"tokens": bad})
                self.assertLessEqual(seen["matched_tokens"], 64)
            self.assertEqual(self.complete(server, good), alone)


class Words(unittest.TestCase):
    """What is promised is done."""

    def test_structure_that_is_asked_for_is_made_or_refused(self):
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
        with Server(QUIRE, TINY) as server:
            for field, value, right in (
                    ("guided_choice", ["yes", "no"], lambda text: text in ("yes", "no")),
                    ("guided_regex", "[ab]{3}", lambda text: len(text) == 3 and set(text) <= set("ab")),
                    ("guided_grammar", 'root ::= "x" [01]', lambda text: text in ("x0", "x1")),
                    ("grammar", 'root ::= "x" [01]', lambda text: text in ("x0", "x1")),
                    ("guided_json", schema, None), ("json_schema", schema, None)):
                got, _, answer = server.call("POST", "/v1/completions", {
                    "model": "m", "prompt": [61, 62], "max_tokens": 60, field: value})
                if got in (400, 501):
                    self.assertEqual(answer["error"]["param"], field)
                    continue
                self.assertEqual(got, 200, answer)
                text = answer["choices"][0]["text"]
                if right:
                    self.assertTrue(right(text), (field, text))
                else:
                    self.assertTrue(text.lstrip().startswith("{"), (field, text))

    def test_variables_of_a_request_are_text(self):
        """Whatever their name: the model's own token is one id, the same characters from a client are several."""
        with Server(QUIRE, TINY, "--trust-request-templates") as server:
            def ids(variables):
                return server.post("/tokenize", {"model": "m", "messages": [{"role": "user", "content": "x"}],
                                                 "chat_template": "{{ evil_token }}", "chat_template_kwargs": variables})["tokens"]
            self.assertEqual(len(ids({"evil_token": "ab"})), 2)
            self.assertEqual(len(ids({"evil_token": "<|user|>"})), len("<|user|>"))

    def test_whoever_knocks_while_the_model_loads_is_told_so(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        process = subprocess.Popen([QUIRE, "serve", TINY, "--port", str(port)], stderr=subprocess.PIPE)
        seen = []
        end = time.monotonic() + 60
        while time.monotonic() < end and 200 not in seen:
            try:
                with socket.create_connection(("127.0.0.1", port), 5) as s:
                    s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    answer = s.recv(4096)
                    seen.append(int(answer.split()[1]))
                    self.assertIn(b"ok" if seen[-1] == 200 else b"loading", answer)
            except OSError:
                pass
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(30), 0)
        process.stderr.close()
        self.assertIn(200, seen)
        self.assertLessEqual(set(seen), {200, 503})

    def test_sigterm_does_not_wait_for_a_client(self):
        with Server(QUIRE, TINY, "--trust-request-templates") as server:
            source = "{% for i in range(9999) %}{% for j in range(9999) %}{{ messages[0].content | length }}{% endfor %}{% endfor %}"
            data = json.dumps({"model": "m", "chat_template": source, "messages": [{"role": "user", "content": "a" * 1000}]}).encode()
            wires = [Wire(server) for _ in range(8)]
            for wire in wires:
                wire.send(head("/v1/chat/completions", len(data)) + data)
            time.sleep(0.2)
            began = time.monotonic()
            self.assertEqual(server.stop(), 0)
            self.assertLess(time.monotonic() - began, 5)
            for wire in wires:
                wire.close()


if __name__ == "__main__":
    main()
