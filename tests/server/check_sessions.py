"""Sessions over HTTP: named, continued, forked, rewound, saved, loaded after a restart, exported and imported.

    check_sessions.py QUIRE WRITE_TINY
"""
import pathlib
import random
import tempfile
import unittest
import urllib.parse

from kv_testing import QUIRE, tiny
from serving import Server, in_threads, wait_for


def words(seed, count):
    chance = random.Random(seed)
    return " ".join(chance.choice("red green blue old new small large quiet house river stone bird tree road".split())
                    for _ in range(count))


def ask(server, prompt, kv=None, tokens=12, status=200, headers=None, **more):
    code, head, body = server.call("POST", "/v1/completions", {
        "model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, "kv": {"report": ["usage", "explain"], **(kv or {})}, **more}, headers=headers)
    assert code == status, (code, body)
    return body if status == 200 else (body, head)


def ids(answer):
    return answer["choices"][0]["token_ids"]


def prompt_of(server, text):
    return server.post("/tokenize", {"content": text, "prompt": text})["tokens"]


class Sessions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.top = tempfile.TemporaryDirectory()
        cls.folder = cls.top.name + "/kv"
        cls.server = cls.serve()

    @classmethod
    def serve(cls, *more, model="llama-F32"):
        return Server(QUIRE, tiny(model), "--kv-dir", cls.folder, "--kv-disk", "64MiB", *more)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.top.cleanup()

    def call(self, method, path, body=None, status=200):
        code, _, answer = self.server.call(method, path, body)
        self.assertEqual(code, status, answer)
        return answer

    def session(self, name, status=200):
        return self.call("GET", "/v1/kv/sessions/" + urllib.parse.quote(name, safe=""), status=status)

    def test_a_request_continues_its_session(self):
        s, prompt = self.server, prompt_of(self.server, words(1, 30))
        first = ask(s, prompt, {"session": "talk"})
        self.assertEqual(first["kv"]["session"], "talk")
        self.assertEqual(first["kv"]["explain"]["session"], "created")
        shown = self.session("talk")
        self.assertEqual(shown["tokens"], len(prompt) + 12)
        self.assertGreater(shown["bytes"], 0)
        self.assertEqual((shown["busy"], shown["parent"], shown["turns"]), (False, None, 1))
        more = prompt + ids(first) + prompt_of(s, " and then")
        second = ask(s, more, {"session": "talk"})
        self.assertEqual(second["kv"]["explain"]["session"], "continued")
        self.assertEqual(ids(second), ids(ask(s, more, {"reuse": "none"})))
        self.assertEqual(ask(s, prompt_of(s, "other text"), {"session": "talk"})["kv"]["explain"]["session"], "replaced")
        self.assertIn("talk", [x["id"] for x in self.call("GET", "/v1/kv/sessions")["data"]])
        self.assertTrue(self.call("DELETE", "/v1/kv/sessions/talk")["deleted"])
        self.session("talk", 404)

    def test_every_dialect(self):
        """A conversation of two turns in each dialect, under a name, and as it is without one."""
        def said(body, *path):
            for step in path:
                body = body[step]
            return body

        def chat(turns):
            return [{"role": role, "content": text} for role, text in turns]

        def contents(turns):
            return [{"role": "model" if role == "assistant" else role, "parts": [{"text": text}]} for role, text in turns]
        dialects = {
            "chat": ("/v1/chat/completions", lambda t: {"messages": chat(t), "max_tokens": 6, "temperature": 0},
                     ("choices", 0, "message", "content")),
            "completions": ("/v1/completions", lambda t: {"prompt": "".join(text for _, text in t), "max_tokens": 6, "temperature": 0},
                            ("choices", 0, "text")),
            "responses": ("/v1/responses", lambda t: {"input": chat(t), "max_output_tokens": 6, "temperature": 0},
                          ("output", -1, "content", 0, "text")),
            "anthropic": ("/v1/messages", lambda t: {"messages": chat(t), "max_tokens": 6, "temperature": 0},
                          ("content", 0, "text")),
            "gemini": ("/v1beta/models/m:generateContent",
                       lambda t: {"contents": contents(t), "generationConfig": {"maxOutputTokens": 6, "temperature": 0}},
                       ("candidates", 0, "content", "parts", 0, "text")),
            "ollama": ("/api/chat", lambda t: {"messages": chat(t), "stream": False, "options": {"num_predict": 6, "temperature": 0}},
                       ("message", "content")),
            "ollama-generate": ("/api/generate", lambda t: {"prompt": "".join(text for _, text in t), "raw": True, "stream": False,
                                                            "options": {"num_predict": 6, "temperature": 0}}, ("response",))}
        for name, (path, body, where) in dialects.items():
            with self.subTest(name):
                id = "dialect-" + name
                kv = {"session": id, "report": ["usage", "explain"]}
                turns = [("user", words(60, 40))]
                plain = self.call("POST", path, {"model": "m", **body(turns), "kv": {"report": ["usage"]}})
                first = self.call("POST", path, {"model": "m", **body(turns), "kv": kv})
                self.assertEqual(said(first, *where), said(plain, *where))
                self.assertEqual((first["kv"]["session"], first["kv"]["explain"]["session"]), (id, "created"), first["kv"])
                seen = self.session(id)
                self.assertEqual((seen["turns"], seen["busy"]), (1, False))
                self.assertGreater(seen["tokens"], first["kv"]["prompt_tokens"])
                turns += [("assistant", said(first, *where)), ("user", words(61, 5))]
                plain = self.call("POST", path, {"model": "m", **body(turns), "kv": {"report": ["usage"]}})
                self.call("POST", f"/v1/kv/sessions/{id}/fork", {"id": id + "-2"})
                second = self.call("POST", path, {"model": "m", **body(turns), "kv": {**kv, "session": id + "-2"}})
                self.assertEqual(said(second, *where), said(plain, *where))
                # Text of a made-up vocabulary may be read as other tokens than were said.
                self.assertIn(second["kv"]["explain"]["session"], ("continued", "replaced"))
                self.assertGreater(second["kv"]["cached_tokens"], 30)
                saved = self.call("POST", f"/v1/kv/sessions/{id}-2/save", {"name": id})
                self.assertGreater(saved["bytes"], 0)
                loaded = self.call("POST", "/v1/kv/sessions/load", {"name": id, "id": id + "-3"})
                self.assertEqual(loaded["tokens"], self.session(id + "-2")["tokens"])
                self.assertEqual(self.call("POST", f"/v1/kv/sessions/{id}/truncate", {"at_token": 7})["tokens"], 7)
                for end in ("", "-2", "-3"):
                    self.assertTrue(self.call("DELETE", f"/v1/kv/sessions/{id}{end}")["deleted"])
                    self.session(id + end, 404)
        for header in ({"x-kv-policy": '{"session": "by-header"}'},):
            code, _, answer = self.server.call("POST", "/v1/messages", {
                "model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}, headers=header)
            self.assertEqual((code, answer["kv"]["session"]), (200, "by-header"), answer)

    def test_policy_is_inherited_and_compacted_sessions_go_on(self):
        s, prompt = self.server, prompt_of(self.server, words(2, 40))
        kv = {"session": "small", "allow_lossy": True, "budget": {"policy": "h2o", "ratio": 0.4}}
        first = ask(s, prompt, kv)
        self.assertEqual(self.session("small")["policy"]["budget"], kv["budget"])
        more = prompt + ids(first) + prompt_of(s, " and then")
        self.call("POST", "/v1/kv/sessions/small/fork", {"id": "small-2"})
        second = ask(s, more, {"session": "small"})  # says nothing of a budget
        self.assertTrue(second["kv"]["lossy"])
        self.assertEqual(second["kv"]["explain"]["session"], "continued")
        self.call("POST", "/v1/kv/clear", {"select": {"all": True}, "force": True})
        self.assertEqual(ids(ask(s, more, {"session": "small-2"})), ids(second))
        self.assertEqual(ask(s, more + [5], {"session": "small", "budget": {"policy": "h2o", "ratio": 0.6},
                                             "allow_lossy": True})["kv"]["explain"]["session"], "replaced")

    def test_a_fork_shares_bytes(self):
        s, prompt = self.server, prompt_of(self.server, words(3, 40))
        ask(s, prompt, {"session": "root"})
        before = s.get("/v1/kv/stats")["tiers"][0]["used_bytes"]
        fork = self.call("POST", "/v1/kv/sessions/root/fork", {"id": "leaf"})
        self.assertEqual(fork["parent"], "root")
        self.assertEqual(fork["bytes"], self.session("root")["bytes"])
        self.assertEqual(s.get("/v1/kv/stats")["tiers"][0]["used_bytes"], before)
        self.assertEqual(self.session("root")["children"], ["leaf"])
        at = self.call("POST", "/v1/kv/sessions/root/fork", {"id": "early", "at_token": 64})
        self.assertEqual(at["tokens"], 64)
        self.call("POST", "/v1/kv/sessions/root/fork", {"id": "leaf"}, 409)
        self.call("POST", "/v1/kv/sessions/root/fork", {"id": "late", "at_token": 10**6}, 400)
        self.call("POST", "/v1/kv/sessions/none/fork", {"id": "x"}, 404)

    def test_turns_are_taken_back(self):
        s, prompt = self.server, prompt_of(self.server, words(4, 20))
        first = ask(s, prompt, {"session": "back"})
        ask(s, prompt + ids(first) + [7, 8], {"session": "back"})
        dry = self.call("POST", "/v1/kv/sessions/back/truncate", {"last_turns": 1, "dry_run": True})
        self.assertEqual(dry["tokens"], len(prompt) + 12)
        self.assertEqual(self.session("back")["turns"], 2)
        self.assertEqual(self.call("POST", "/v1/kv/sessions/back/truncate", {"last_turns": 1})["turns"], 1)
        self.assertEqual(self.call("POST", "/v1/kv/sessions/back/truncate", {"at_token": 5})["tokens"], 5)
        self.call("POST", "/v1/kv/sessions/back/truncate", {}, 400)
        self.call("POST", "/v1/kv/sessions/back/truncate", {"last_turns": 9}, 400)

    def test_made_without_a_request(self):
        made = self.call("POST", "/v1/kv/sessions", {"id": "empty", "kv": {"format": "int8"}})
        self.assertEqual((made["tokens"], made["policy"]), (0, {"format": "int8"}))
        self.call("POST", "/v1/kv/sessions", {"id": "empty"}, 409)
        read = self.call("POST", "/v1/kv/sessions", {"id": "read", "prompt": words(5, 30)})
        self.assertGreater(read["tokens"], 64)
        self.call("POST", "/v1/kv/sessions", {"id": "dry", "dry_run": True})
        self.session("dry", 404)
        answer = ask(self.server, words(6, 10), {"session": "empty"})
        self.assertEqual(answer["kv"]["format"]["k"], "int8")

    def test_a_busy_session_is_refused_or_forked(self):
        prompt = words(7, 10)

        def one(mode):
            return self.server.call("POST", "/v1/completions", {
                "model": "m", "prompt": prompt, "max_tokens": 400, "temperature": 0, "ignore_eos": True,
                "kv": {"session": "busy", **mode}})
        answers = in_threads([lambda: one({})] * 6)
        codes = [a[0] for a in answers]
        self.assertIn(200, codes)
        for code, head, body in answers:
            if code != 200:
                self.assertEqual((code, body["error"]["code"]), (409, "session_busy"))
                self.assertEqual({k.lower(): v for k, v in dict(head).items()}["retry-after"], "1")
        self.assertIn(409, codes)
        forks = in_threads([lambda: one({"session_mode": "fork"})] * 4)
        self.assertEqual({a[0] for a in forks}, {200})
        names = {a[2]["kv"]["session"] for a in forks}
        self.assertGreater(len(names), 1, names)

    def test_refusals(self):
        s = self.server
        for kv in ({"session": ""}, {"session": "x" * 129}, {"session": "a\nb"}, {"session": 5},
                   {"session": "a", "session_mode": "both"}):
            ask(s, "hello", kv, status=400)
        ask(s, "hello", {"session": "two"}, status=400, n=2)
        ask(s, ["a", "b"], {"session": "two"}, status=400)
        for name in ("..", "../../etc/passwd", "%2e%2e", "grüße"):
            ask(s, "hello there", {"session": name})
            self.assertEqual(self.session(name)["id"], name)
        for name in ("", "..", "a/b", ".hidden", "x" * 200):
            self.call("POST", "/v1/kv/sessions/two/save", {"name": name}, 400)

    def done(self, job):
        self.assertEqual(job["state"], "running", job)
        wait_for(lambda: self.call("GET", "/v1/kv/jobs/" + job["id"])["state"] != "running")
        job = self.call("GET", "/v1/kv/jobs/" + job["id"])
        self.assertEqual((job["state"], job["error"]), ("done", None), job)
        self.assertEqual(job["done_blocks"], job["total_blocks"])
        self.assertGreater(job["total_blocks"], 0)
        return job

    def test_jobs(self):
        s, prompt = self.server, prompt_of(self.server, words(10, 60))
        first = ask(s, prompt, {"session": "moving"})
        self.assertIn("moving", str([n["lease"] for n in s.get("/v1/kv/tree?depth=9")["nodes"]]))
        select = {"session": "moving"}
        dry = self.call("POST", "/v1/kv/move", {"select": select, "dry_run": True})
        self.done(self.call("POST", "/v1/kv/move", {"select": select, "to": "disk", "copy": True}, 202))
        self.assertTrue(any(n["tiers"]["disk"] == n["blocks"] > 0 for n in s.get("/v1/kv/tree?depth=9")["nodes"]))
        moved = self.done(self.call("POST", "/v1/kv/move", {"select": select, "to": "disk"}, 202))
        self.assertEqual(moved["total_blocks"], dry["total_blocks"])
        again = ask(s, prompt)
        self.assertEqual(ids(again), ids(first))
        self.assertEqual(again["kv"]["cached_by_tier"]["cpu"], 0, again["kv"])
        if again["kv"]["explain"]["reason"] != "load_too_slow":  # a tiny model computes quickly
            self.assertGreater(again["kv"]["cached_by_tier"]["disk"], 0, again["kv"])
        self.done(self.call("POST", "/v1/kv/compress", {"select": {"tokens": prompt}, "format": "int8"}, 202))
        small = ask(s, prompt, {"format": "int8", "convert": True})
        self.assertGreater(small["kv"]["cached_tokens"], 0)
        self.call("POST", "/v1/kv/move", {"select": select, "to": "gpu"}, 400)
        self.call("POST", "/v1/kv/move", {"select": {"session": "none"}}, 404)
        self.call("POST", "/v1/kv/compress", {"select": select, "format": "no such"}, 400)
        self.call("GET", "/v1/kv/jobs/job_999", status=404)
        self.call("DELETE", "/v1/kv/jobs/job_999", status=404)
        self.assertGreater(len(self.call("GET", "/v1/kv/jobs")["data"]), 2)

    def test_saved_restarted_and_loaded(self):
        prompt = prompt_of(self.server, words(8, 40))
        cases = {"plain": {}, "int8": {"format": "int8"},
                 "compact": {"allow_lossy": True, "budget": {"policy": "snapkv", "ratio": 0.5}},
                 "quest": {"allow_lossy": True, "select": {"policy": "quest", "tokens": 64}}}
        wanted = {}
        for name, kv in cases.items():
            first = ask(self.server, prompt, {"session": name, **kv})
            saved = self.call("POST", f"/v1/kv/sessions/{name}/save", {})
            self.assertEqual((saved["name"], saved["tokens"]), (name, len(prompt) + 12))
            more = prompt + ids(first) + [65, 66, 67]
            wanted[name] = more, ids(ask(self.server, more, {"session": name}))
        self.assertTrue(set(cases) <= {x["name"] for x in self.call("GET", "/v1/kv/saves")["data"]})
        exported = self.export("plain")
        self.assertEqual(exported[:4], b"KVC1")
        type(self).server.stop()
        type(self).server = self.serve("--kv-disk-write", "never")
        self.call("POST", "/v1/kv/clear", {"select": {"all": True}})
        for name, (more, answer) in wanted.items():
            loaded = self.call("POST", "/v1/kv/sessions/load", {"name": name, "id": name + "-again"})
            self.assertTrue(loaded["own_keys"])
            again = ask(self.server, more, {"session": name + "-again"})
            self.assertEqual(again["kv"]["explain"]["session"], "continued")
            self.assertEqual(ids(again), answer, name)
            if name == "plain":
                self.assertGreaterEqual(again["kv"]["cached_tokens"], len(prompt) // 32 * 32)
        self.call("POST", "/v1/kv/sessions/load", {"name": "plain", "id": "plain-again"}, 409)
        self.call("POST", "/v1/kv/sessions/load", {"name": "nothing"}, 404)
        self.check_imports(exported, *wanted["plain"])
        self.assertTrue(self.call("DELETE", "/v1/kv/saves/quest")["deleted"])
        self.call("DELETE", "/v1/kv/saves/quest", status=404)

    def export(self, name):
        code, _, body = self.server.call("GET", f"/v1/kv/sessions/{name}/export", raw=True)
        self.assertEqual(code, 200, body[:200])
        return body

    def bring(self, data, name):
        code, _, body = self.server.call("POST", "/v1/kv/sessions/import?id=" + name, bytes(data),
                                         headers={"Content-Type": "application/vnd.kvcache"})
        return code, body

    def check_imports(self, exported, more, answer):
        code, brought = self.bring(exported, "brought")
        self.assertEqual((code, brought.get("own_keys")), (200, True), brought)
        self.assertEqual(ids(ask(self.server, more, {"session": "brought"})), answer)
        self.assertEqual(self.bring(exported, "brought")[0], 409)
        chance = random.Random(9)
        for i in range(20):
            damaged = bytearray(exported)
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            code, body = self.bring(bytes(damaged), f"bad{i}")
            self.assertIn((code, body["error"]["code"]), [(400, "corrupt_kv"), (409, "incompatible_kv")], body)
        for cut in (0, 3, 104, 4096, len(exported) - 1):
            code, body = self.bring(exported[:cut], "cut")
            self.assertEqual((code, body["error"]["code"]), (400, "corrupt_kv"), body)
        claim = bytearray(exported[:4096])
        claim[8:24] = (10**10).to_bytes(8, "little") * 2
        self.assertEqual(self.bring(bytes(claim), "claim")[0], 400)
        with tempfile.TemporaryDirectory() as other:
            with Server(QUIRE, tiny("llama-F32"), "--kv-dir", other + "/kv") as stranger:
                kept, type(self).server = self.server, stranger
                try:
                    code, brought = self.bring(exported, "guest")
                    self.assertEqual((code, brought.get("own_keys")), (200, False), brought)
                    self.assertEqual(ask(stranger, more)["kv"]["cached_tokens"], 0)
                    guest = ask(stranger, more, {"session": "guest"})
                    self.assertGreater(guest["kv"]["cached_tokens"], 0)
                    self.assertEqual(ids(guest), answer)
                finally:
                    type(self).server = kept
            with Server(QUIRE, tiny("llama-Q8_0"), "--kv-dir", other + "/kv2") as wrong:
                kept, type(self).server = self.server, wrong
                try:
                    code, body = self.bring(exported, "wrong")
                    self.assertEqual((code, body["error"]["code"]), (409, "incompatible_kv"), body)
                    self.assertEqual(body["error"]["param"], "weights")
                finally:
                    type(self).server = kept


class Tenants(unittest.TestCase):
    def test_names_and_files_are_per_tenant(self):
        with tempfile.TemporaryDirectory() as top:
            keys = pathlib.Path(top, "keys")
            keys.write_text("alpha-key tenant=a\nbeta-key tenant=b\n")
            keys.chmod(0o600)
            with Server(QUIRE, tiny("llama-F32"), "--kv-dir", top + "/kv", "--api-key-file", str(keys)) as server:
                a, b = ({"Authorization": f"Bearer {k}"} for k in ("alpha-key", "beta-key"))
                ask(server, words(1, 20), {"session": "same"}, headers=a)
                code, _, body = server.call("GET", "/v1/kv/sessions/same", headers=b)
                self.assertEqual(code, 404, body)
                ask(server, words(2, 10), {"session": "same"}, headers=b)
                self.assertEqual(server.call("POST", "/v1/kv/sessions/same/save", {}, headers=a)[0], 200)
                self.assertEqual(server.call("GET", "/v1/kv/saves", headers=b)[2]["data"], [])
                code, _, body = server.call("POST", "/v1/kv/sessions/load", {"name": "same", "id": "stolen"}, headers=b)
                self.assertEqual(code, 404, body)
                for i in range(1100):
                    code, _, body = server.call("POST", "/v1/kv/sessions", {"id": f"n{i}"}, headers=a)
                    if code != 200:
                        break
                self.assertEqual((code, body["error"]["code"], i), (429, "kv_quota_exceeded", 1023))
                self.assertEqual(server.call("POST", "/v1/kv/sessions", {"id": "mine"}, headers=b)[0], 200)


if __name__ == "__main__":
    unittest.main(argv=["check_sessions.py"])
