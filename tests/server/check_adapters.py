"""Adapters over HTTP: named as models in every dialect, mixed in a batch, loaded, replaced and unloaded, with a cache of their own.

    check_adapters.py QUIRE WRITE_TINY
"""
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from kv_testing import QUIRE, folder, tiny
from serving import Server, in_threads

ADAPTERS = pathlib.Path(folder.name) / "adapters"
PROMPT = [97 + 7 * i % 26 for i in range(100)]
KEYS = "admin-key-1 tenant=ops admin\nplain-key-1 tenant=people\n"
ADMIN, PLAIN = ({"Authorization": f"Bearer {key}"} for key in ("admin-key-1", "plain-key-1"))


def ask(server, model="m", prompt=PROMPT, status=200, headers=ADMIN, kv=None, **more):
    code, _, body = server.call("POST", "/v1/completions", {
        "model": model, "prompt": prompt, "max_tokens": 10, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
        "logprobs": 2, "kv": {"report": ["usage", "explain"], **(kv or {})}, **more}, headers=headers)
    assert code == status, (code, body)
    return body


def told(answer):
    choice = answer["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def cached(answer):
    return answer["kv"]["cached_tokens"]


def make_broken(path):
    """An adapter whose configuration says another rank than its matrices have."""
    shutil.copytree(ADAPTERS / "llama-qv", path)
    config = path / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "r": 5}))


class Adapters(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.top = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.top.name) / "adapters"
        shutil.copytree(ADAPTERS, cls.dir)
        make_broken(cls.dir / "broken")
        (pathlib.Path(cls.top.name) / "outside").mkdir()
        keys = pathlib.Path(cls.top.name) / "keys"
        keys.write_text(KEYS)
        keys.chmod(0o600)
        cls.server = Server(QUIRE, tiny("llama-F32"), "--lora", f"qv={cls.dir}/llama-qv", "--lora-modules",
                            f"late={cls.dir}/llama-late", "--lora-dir", cls.dir, "--api-key-file", keys, "--kv-dir",
                            cls.top.name + "/kv", "--kv-disk", "64MiB", "--access-log", cls.top.name + "/log")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.top.cleanup()

    def load(self, name, path, status=200, headers=ADMIN, **more):
        code, _, body = self.server.call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path), **more},
                                         headers=headers)
        self.assertEqual(code, status, body)
        return body

    def unload(self, name, status=200, headers=ADMIN):
        code, _, body = self.server.call("POST", "/v1/unload_lora_adapter", {"lora_name": name}, headers=headers)
        self.assertEqual(code, status, body)
        return body

    def test_models_name_their_parent(self):
        models = {m["id"]: m for m in self.server.get("/v1/models", headers=PLAIN)["data"]}
        self.assertEqual((models["m"]["parent"], models["qv"]["parent"]), (None, "m"))
        self.assertEqual(self.server.get("/v1/models/qv", headers=PLAIN)["parent"], "m")
        self.assertEqual(self.server.call("GET", "/v1/models/none", headers=PLAIN)[0], 404)

    def test_answers_differ_and_share_nothing(self):
        s, text = self.server, PROMPT[::-1]
        base = ask(s, prompt=text)
        with_it = ask(s, "qv", prompt=text)
        self.assertNotEqual(told(base), told(with_it))
        self.assertEqual(cached(with_it), 0)
        self.assertEqual(with_it["kv"]["explain"]["reason"], "adapter_mismatch")
        again = ask(s, "qv", prompt=text)
        self.assertEqual(told(again), told(with_it))
        self.assertGreaterEqual(cached(again), 64)
        self.assertEqual(told(ask(s, kv={"adapter": "qv"}, prompt=text)), told(with_it))
        self.assertEqual(again["model"], "qv")
        ask(s, "nobody", status=404)
        ask(s, kv={"adapter": "nobody"}, status=404)
        ask(s, "qv", kv={"adapter": "late"}, status=400)

    def test_a_batch_is_each_alone(self):
        s = self.server
        self.load("all", "llama-all")
        wanted = ["m", "qv", "all", "late", "m", "qv", "all"]
        prompts = [PROMPT[i:] + [251, 251, 65 + i] for i in range(len(wanted))]
        alone = [told(ask(s, m, prompt=p, kv={"reuse": "none"})) for m, p in zip(wanted, prompts)]
        together = in_threads([lambda m=m, p=p: told(ask(s, m, prompt=p, kv={"reuse": "none"}))
                               for m, p in zip(wanted, prompts)])
        self.assertEqual(together, alone)
        self.assertEqual(told(ask(s, prompt=prompts[0]))[0], alone[0][0])
        self.unload("all")

    def test_late_adapters_share_the_models_prefix(self):
        s, prompt = self.server, PROMPT[3:] + PROMPT[:60]
        ask(s, prompt=prompt)
        answer = ask(s, "late", prompt=prompt[:120] + [251, 251, 70])
        self.assertEqual(cached(answer), 96)
        self.assertEqual(told(answer), told(ask(s, "late", prompt=prompt[:120] + [251, 251, 70], kv={"reuse": "none"})))
        plain = ask(s, "late", prompt=prompt)
        self.assertEqual(told(plain), told(ask(s, prompt=prompt)))
        ask(s, "late", kv={"session": "x"}, status=400)

    def test_every_dialect(self):
        s, messages = self.server, [{"role": "user", "content": "a word or two"}]
        asks = {
            "/v1/chat/completions": {"messages": messages, "max_tokens": 4},
            "/v1/responses": {"input": "a word or two", "max_output_tokens": 16},
            "/v1/messages": {"messages": messages, "max_tokens": 4},
            "/api/chat": {"messages": messages, "stream": False, "options": {"num_predict": 4}},
            "/v1/embeddings": {"input": "a word or two"}}
        for path, body in asks.items():
            for model in ("m", "qv"):
                self.assertEqual(s.post(path, {"model": model, **body}, headers=PLAIN)["model"], model, path)
        s.post("/v1beta/models/qv:generateContent", {"contents": [{"role": "user", "parts": [{"text": "a word"}]}]},
               headers=PLAIN)
        vectors = [s.post("/v1/embeddings", {"model": m, "input": "a word or two"}, headers=PLAIN)["data"][0]["embedding"]
                   for m in ("m", "qv")]
        self.assertNotEqual(*vectors)

    def test_loading_needs_an_administrator_and_the_folder(self):
        self.load("x", "llama-all", 403, PLAIN)
        self.unload("qv", 403, PLAIN)
        outside = pathlib.Path(self.top.name) / "outside"
        shutil.copytree(ADAPTERS / "llama-all", outside, dirs_exist_ok=True)
        os.symlink(outside, self.dir / "way-out")
        for path in (outside, "../outside", "way-out", "/etc", self.dir / ".." / "outside"):
            message = self.load("x", path, 400)["error"]["message"]
            self.assertIn("not in the folder", message)
        self.load("x", "nothing", 404)
        self.load("m", "llama-all", 400)
        self.load("", "llama-all", 400)
        message = self.load("x", "broken", 400)["error"]["message"]
        self.assertIn("has rank 5", message)
        self.assertNotIn(self.top.name, message)
        ask(self.server, "x", status=404)

    def test_a_changed_file_never_hits(self):
        s, mine = self.server, self.dir / "mine"
        shutil.copytree(ADAPTERS / "llama-qv", mine)
        self.load("mine", "mine")
        first = ask(s, "mine")
        self.assertGreaterEqual(cached(ask(s, "mine")), 64)
        shutil.rmtree(mine)
        shutil.copytree(ADAPTERS / "llama-all", mine)
        self.load("mine", "mine", 400)
        self.load("mine", "mine", load_inplace=True)
        changed = ask(s, "mine")
        self.assertEqual(cached(changed), 0)
        self.assertNotEqual(told(changed), told(first))
        self.unload("mine")
        self.unload("mine", 404)
        ask(s, "mine", status=404)
        self.load("other", "llama-all")  # the same files under another name
        self.assertGreaterEqual(cached(ask(s, "other")), 64)
        self.unload("other")

    def test_unloading_waits_for_nobody_and_ends_nothing(self):
        s = self.server
        self.load("going", "llama-all")
        connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps({
            "model": "going", "prompt": PROMPT, "max_tokens": 1500, "temperature": 0, "ignore_eos": True, "stream": True}),
            {"Content-Type": "application/json", **ADMIN})
        response = connection.getresponse()
        response.readline()
        self.unload("going")
        ask(s, "going", status=404)
        self.assertIn(b"[DONE]", response.read())
        connection.close()

    def test_llama_servers_scales(self):
        s = self.server
        listed = {a["name"]: a for a in s.get("/lora-adapters", headers=PLAIN)}
        self.assertEqual(listed["qv"]["scale"], 0)
        number, text = listed["qv"]["id"], PROMPT[11:]
        base, with_it = ask(s, prompt=text), ask(s, "qv", prompt=text)
        self.assertEqual(told(ask(s, prompt=text, lora=[{"id": number, "scale": 1.0}])), told(with_it))
        self.assertEqual(told(ask(s, prompt=text, lora=[{"id": number, "scale": 0}])), told(base))
        half = ask(s, prompt=text, lora=[{"id": number, "scale": 0.5}])
        self.assertNotIn(told(half), (told(base), told(with_it)))
        for wrong in ([{"id": 99}], [{"scale": 1}], "x", [1], [{"id": number}] * 20):
            self.assertIn(s.call("POST", "/v1/completions", {"model": "m", "prompt": text, "lora": wrong}, headers=ADMIN)[0],
                          (400, 404))
        ask(s, "qv", lora=[{"id": number}], status=400)
        self.assertEqual(s.call("POST", "/lora-adapters", [{"id": number, "scale": 0.5}], headers=PLAIN)[0], 403)
        self.assertEqual(s.call("POST", "/lora-adapters", [{"id": 99, "scale": 0.5}], headers=ADMIN)[0], 404)
        s.post("/lora-adapters", [{"id": number, "scale": 0.5}], headers=ADMIN)
        try:
            self.assertEqual(told(ask(s, prompt=text)), told(half))
            self.assertEqual(told(ask(s, prompt=text, lora=[])), told(base))
            self.assertEqual(told(ask(s, "qv", prompt=text)), told(with_it))
        finally:
            s.post("/lora-adapters", [], headers=ADMIN)
        self.assertEqual(told(ask(s, prompt=text)), told(base))

    def test_sessions_remember_their_adapter(self):
        s = self.server
        first = ask(s, "qv", kv={"session": "talk"})
        more = PROMPT + told(first)[0] + [120, 121]
        self.assertEqual(ask(s, "qv", prompt=more, kv={"session": "talk"})["kv"]["explain"]["session"], "continued")
        self.assertEqual(ask(s, prompt=more, kv={"session": "talk"})["kv"]["explain"]["session"], "replaced")
        ask(s, "qv", kv={"session": "kept"})
        s.post("/v1/kv/sessions/kept/save", {"name": "kept"}, headers=ADMIN)
        s.post("/reset_prefix_cache", {}, headers=ADMIN)
        s.post("/v1/kv/sessions/load", {"name": "kept", "id": "again"}, headers=ADMIN)
        told_first = told(ask(s, "qv"))[0]
        answer = ask(s, "qv", prompt=PROMPT + told_first + [120], kv={"session": "again"})
        self.assertEqual(answer["kv"]["explain"]["session"], "continued")
        self.assertGreaterEqual(cached(answer), 64)
        s.post("/v1/kv/sessions/load", {"name": "kept", "id": "base"}, headers=ADMIN)
        self.assertEqual(ask(s, prompt=PROMPT + told_first + [120], kv={"session": "base"})["kv"]["explain"]["session"],
                         "replaced")

    def test_lookup_explain_metrics_and_log(self):
        s, text = self.server, PROMPT[17:]
        ask(s, "qv", prompt=text)
        look = {"tokens": text}
        self.assertGreaterEqual(s.post("/v1/kv/lookup", {**look, "model": "qv"}, headers=ADMIN)["matched_tokens"], 64)
        self.assertEqual(s.post("/v1/kv/lookup", look, headers=ADMIN)["matched_tokens"], 0)
        _, _, metrics = s.call("GET", "/metrics", headers=ADMIN, raw=True)
        self.assertIn(b"vllm:lora_requests_info", metrics)
        self.assertRegex(metrics.decode(), r'lora_adapters\{[^}]*\} [1-9]')
        lines = [json.loads(line) for line in pathlib.Path(self.top.name + "/log").read_text().splitlines()]
        self.assertTrue({"qv", None} <= {line.get("adapter") for line in lines if "model" in line})

    def test_without_a_folder_clients_load_nothing(self):
        with Server(QUIRE, tiny("llama-F32")) as server:
            code, _, body = server.call("POST", "/v1/load_lora_adapter",
                                        {"lora_name": "x", "lora_path": str(ADAPTERS / "llama-qv")})
            self.assertGreaterEqual(code, 400)
            self.assertIn("--lora-dir", body["error"]["message"])


class CommandLine(unittest.TestCase):
    def run_quire(self, *arguments, fails=False):
        done = subprocess.run([QUIRE, "run", tiny("llama-F32"), "--tokens", ",".join(map(str, PROMPT)), "-n", "8",
                               "--temperature", "0", "--ignore-eos", "--json", *arguments], capture_output=True, text=True)
        self.assertEqual(done.returncode != 0, fails, done.stderr)
        return done.stderr if fails else json.loads(done.stdout)["token_ids"]

    def test_run_uses_all_adapters_in_order(self):
        one, two = f"a={ADAPTERS}/llama-qv", f"b={ADAPTERS}/llama-all"
        answers = [tuple(self.run_quire(*more)) for more in
                   ([], ["--lora", one], ["--lora", two], ["--lora", one, "--lora", two])]
        self.assertEqual(len(set(answers)), 4)

    def test_what_cannot_be_read_is_told(self):
        broken = tempfile.TemporaryDirectory()
        make_broken(pathlib.Path(broken.name) / "it")
        self.assertIn("has rank 5", self.run_quire("--lora", f"a={broken.name}/it", fails=True))
        broken.cleanup()
        self.assertIn("not there", self.run_quire("--lora", "a=/nowhere", fails=True))
        self.assertIn("--lora-memory", self.run_quire("--lora", f"a={ADAPTERS}/llama-qv", "--lora-memory", "1K", fails=True))

    def test_merged_answers_are_those_of_the_adapter(self):
        merged = self.run_quire("--lora-merge", f"{ADAPTERS}/llama-all")
        self.assertEqual(merged, self.run_quire("--lora", f"a={ADAPTERS}/llama-all"))
        self.assertEqual(merged, self.run_quire("--lora", f"a={ADAPTERS}/llama-all", "--lora-merge", "a"))
        self.assertIn("cannot be merged", self.run_quire("--lora-merge", f"{ADAPTERS}/llama-late", fails=True))


if __name__ == "__main__":
    unittest.main(argv=["check_adapters.py"])
