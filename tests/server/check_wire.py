"""The server from the outside, byte by byte: HTTP, errors, keys, disconnects, slow clients, signals, the cache's own API.

    scripts/python tests/server/check_wire.py QUIRE WRITE_TINY

Runs on a tiny random model.
"""
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from serving import HURRY, Server, Wire, events, unchunk, wait_for

QUIRE, WRITE_TINY = sys.argv[1:3]
folder = tempfile.TemporaryDirectory()
subprocess.run([WRITE_TINY, folder.name], check=True)
MODEL = f"{folder.name}/llama-F32.gguf"
BLOCK = 32
SERVER = None


# What a line of the access log has.
LOGGED = """ts level request_id trace_id tenant key_id dialect route status stream model adapter prompt_tokens cached_tokens
    cached_by_tier written_tokens completion_tokens n finish queue_ms lookup_ms load_ms prefill_ms ttft_ms tpot_ms_p50 tpot_ms_p99
    total_ms kv_outcome kv_reason kv_format session preemptions client_closed bytes_in bytes_out error_code""".split()


def ask(**more):
    return {"model": "m", "prompt": list(range(60, 160)), "max_tokens": 4, "temperature": 0, "ignore_eos": True, **more}


def error(answer, status, code=None, param=None):
    got, headers, body = answer
    assert got == status, (got, body)
    assert set(body["error"]) == {"message", "type", "param", "code"}, body
    assert headers["Content-Type"] == "application/json"
    assert code is None or body["error"]["code"] == code, body
    assert param is None or body["error"]["param"] == param, body
    return body["error"]["message"]


class Http(unittest.TestCase):
    def test_24_errors_are_json(self):
        error(SERVER.call("POST", "/v1/chat/completions", "{not json"), 400, "invalid_json")
        error(SERVER.call("POST", "/v1/chat/completions", "[" * 1000), 400, "invalid_json")
        error(SERVER.call("POST", "/v1/chat/completions", '{"model": "m"'), 400, "invalid_json")
        status, headers, body = SERVER.call("GET", "/v1/chat/completions")
        self.assertEqual((status, headers["Allow"]), (405, "POST"))
        error(SERVER.call("GET", "/nowhere"), 404, "not_found")
        status, headers, _ = SERVER.call("POST", "/slots/1", {})
        self.assertEqual((status, headers["x-should-retry"]), (501, "false"))
        error(SERVER.call("POST", "/v1/completions", ask(model="x")), 404, "model_not_found", "model")
        error(SERVER.call("POST", "/v1/completions", ask(response_format={"type": "nonsense"})), 400)

    def test_request_ids(self):
        _, headers, _ = SERVER.call("GET", "/health")
        self.assertTrue(headers["x-request-id"].startswith("req_"))
        self.assertEqual(headers["x-request-id"], headers["request-id"])
        _, headers, _ = SERVER.call("GET", "/health", headers={"x-request-id": "mine-1"})
        self.assertEqual(headers["x-request-id"], "mine-1")
        _, headers, _ = SERVER.call("GET", "/health", headers={"x-request-id": "bad id"})
        self.assertNotIn("bad", headers["x-request-id"])

    def test_60_wire(self):
        wire = Wire(SERVER)
        for _ in range(100):
            wire.send("GET /health HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n")
            self.assertTrue(wire.until(b'{"status":"ok"}').startswith(b"HTTP/1.1 200 OK"))
        wire.close()
        old = Wire(SERVER)
        old.post("/v1/completions", ask(stream=True), version="1.0")
        head, body = old.rest().split(b"\r\n\r\n", 1)
        self.assertNotIn(b"chunked", head)
        self.assertEqual(events(body)[-1], "[DONE]")
        emoji = Wire(SERVER)
        emoji.post("/v1/completions", {"model": "m", "prompt": "😀é", "echo": True, "max_tokens": 2, "stream": True})
        data = unchunk(emoji.until(b"\r\n0\r\n\r\n").split(b"\r\n\r\n", 1)[1])
        for event in data.split(b"\n\n")[:-1]:
            self.assertTrue(event.startswith(b"data: ") and b"\n" not in event, event)
            event.decode()  # no character is cut
        texts = [json.loads(e)["choices"][0]["text"] for e in events(data)[:-1]]
        self.assertTrue("".join(texts).startswith("😀é"))
        status, headers, body = SERVER.call("GET", "/v1/models", headers={"Accept-Encoding": "gzip"}, raw=True)
        self.assertEqual((status, int(headers["Content-Length"])), (200, len(body)))

    def test_a_request_without_a_model_uses_the_one_that_is_served(self):
        whole = SERVER.post("/v1/completions", ask())
        for model in (None, ""):
            body = {**ask(), "model": model}
            answer = SERVER.post("/v1/completions", {k: v for k, v in body.items() if v is not None})
            self.assertEqual((answer["model"], answer["choices"]), ("m", whole["choices"]))
        chat = SERVER.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
        self.assertEqual(chat["model"], "m")

    def test_routes_without_version(self):
        self.assertEqual(SERVER.post("/completions", ask())["object"], "text_completion")
        self.assertEqual(SERVER.get("/models"), SERVER.get("/v1/models"))
        self.assertEqual(SERVER.get("/v1/health"), {"status": "ok"})

    def test_stream_errors_before_the_first_token_have_a_status(self):
        error(SERVER.call("POST", "/v1/completions", ask(stream=True, prompt=[50] * 5000)), 400, "context_length_exceeded",
              "prompt")

    def test_random_bytes_harm_nobody(self):
        import random
        chance = random.Random(5)
        for _ in range(60):
            wire = Wire(SERVER)
            try:
                wire.send(bytes(chance.randrange(256) for _ in range(chance.randrange(1, 400))))
                wire.socket.shutdown(socket.SHUT_WR)
                wire.rest()
            except OSError:
                pass
            wire.close()
        bodies = ['{"model":"m","prompt":' + x + "}" for x in
                  ("1e999", '"\\ud800"', "[]", "{}", "[[]]", "-1", "null", '"\\u0000"', "[1e3]", "[true]")]
        for body in bodies:
            status, _, _ = SERVER.call("POST", "/v1/completions", body, raw=True)
            self.assertIn(status, (200, 400))
        self.assertEqual(SERVER.get("/health"), {"status": "ok"})


class Clients(unittest.TestCase):
    def test_a_client_that_leaves_is_noticed_anywhere(self):
        for stream in (True, False):
            wire = Wire(SERVER)
            wire.post("/v1/completions", ask(max_tokens=3900, stream=stream))
            if stream:
                wire.until(b"data: ")
            else:
                wait_for(lambda: SERVER.get("/load")["server_load"] == 1)
            wire.close()
            wait_for(lambda: SERVER.get("/load")["server_load"] == 0, 5)

    def test_a_client_that_does_not_read_holds_nobody_up(self):
        slow = Wire(SERVER)
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.post("/v1/completions", ask(max_tokens=3900, stream=True, n=4, logprobs=5))
        slow.until(b"data: ")
        answer = SERVER.post("/v1/completions", ask())
        self.assertEqual(answer["usage"]["completion_tokens"], 4)
        slow.close()
        wait_for(lambda: SERVER.get("/load")["server_load"] == 0, 10)

    def test_answers_do_not_depend_on_neighbours(self):
        alone = {i: SERVER.post("/v1/completions", ask(prompt=[70 + i] * (40 + i), max_tokens=20, temperature=1, seed=i))
                 ["choices"][0]["text"] for i in range(12)}
        together = {}

        def one(i):
            together[i] = SERVER.post("/v1/completions", ask(prompt=[70 + i] * (40 + i), max_tokens=20, temperature=1,
                                                             seed=i))["choices"][0]["text"]

        threads = [threading.Thread(target=one, args=(i,)) for i in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(together, alone)

    def test_a_full_queue_is_429(self):
        with Server(QUIRE, MODEL, "--max-queue", 2, "--max-num-seqs", 1) as server:
            wires = [Wire(server) for _ in range(12)]
            for wire in wires:
                wire.post("/v1/completions", ask(max_tokens=2000))
            # One runs and two wait (three until the first is under way); who that is, the order of arrival decides.
            answered, end = [], time.monotonic() + HURRY
            while len(answered) < 8 and time.monotonic() < end:
                answered = select.select([wire.socket for wire in wires], [], [], 1)[0]
            self.assertGreaterEqual(len(answered), 8)
            heads = [wire.until(b"\r\n\r\n") for wire in wires if wire.socket in answered]
            self.assertTrue(all(b" 429 " in h and b"Retry-After: " in h for h in heads), heads)
            for wire in wires:
                wire.close()


class Cache(unittest.TestCase):
    def test_stats_tree_and_lookup_agree(self):
        prompt = [201] * 10 + list(range(60, 178))  # 128 tokens: four blocks
        before = SERVER.get("/v1/kv/stats")
        SERVER.post("/v1/completions", ask(prompt=prompt))
        found = SERVER.post("/v1/kv/lookup", {"tokens": prompt + [5]})
        self.assertEqual(found["matched_tokens"], 128)
        self.assertEqual(found["prompt_tokens"], 129)
        self.assertEqual(SERVER.post("/v1/kv/lookup", {"tokens": [202] + prompt})["matched_tokens"], 0)
        after = SERVER.get("/v1/kv/stats")
        self.assertEqual(after["tokens"]["queried"] - before["tokens"]["queried"], 128)
        self.assertGreater(after["tiers"][0]["blocks"]["cached"], 0)
        tree = SERVER.get("/v1/kv/tree?limit=1000")
        nodes = {n["hash"]: n for n in tree["nodes"]}
        self.assertEqual(len(nodes), len(tree["nodes"]))
        for node in tree["nodes"]:
            for child in node["children"]:
                if child in nodes:
                    self.assertEqual(nodes[child]["parent"], node["hash"])
        self.assertTrue(any(n["depth_tokens"] >= 128 for n in tree["nodes"]))
        block = SERVER.get(f"/v1/kv/blocks/{tree['nodes'][0]['hash'][:20]}")
        self.assertEqual((block["tokens"], len(block["token_ids"])), (BLOCK, BLOCK))
        status, _, dot = SERVER.call("GET", "/v1/kv/tree?format=dot", raw=True)
        self.assertTrue(dot.startswith(b"digraph"))
        status, _, folded = SERVER.call("GET", "/v1/kv/tree?format=folded", raw=True)
        self.assertEqual(status, 200)
        self.assertIn("json, dot, folded", error(SERVER.call("GET", "/v1/kv/tree?format=xml"), 400, param="format"))
        self.assertIn("recent", error(SERVER.call("GET", "/v1/kv/tree?sort=size"), 400, param="sort"))

    def test_prefill_warms_and_evict_cools(self):
        prompt = [203] * 10 + list(range(60, 178))
        warmed = SERVER.post("/v1/kv/prefill", {"tokens": prompt})
        self.assertEqual((warmed["cached_tokens"], warmed["computed_tokens"]), (0, 128))
        used = SERVER.post("/v1/completions", ask(prompt=prompt + [4]))
        self.assertEqual(used["usage"]["prompt_tokens_details"]["cached_tokens"], 128)
        dry = SERVER.post("/v1/kv/evict", {"select": {"node": warmed["node"]}, "dry_run": True})
        self.assertGreater(dry["blocks"], 0)
        self.assertEqual(SERVER.post("/v1/kv/lookup", {"tokens": prompt + [4]})["matched_tokens"], 128)
        gone = SERVER.post("/v1/kv/evict", {"select": {"node": warmed["node"][:16]}})
        self.assertEqual(gone["blocks"], dry["blocks"])
        self.assertEqual(SERVER.post("/v1/kv/lookup", {"tokens": prompt + [4]})["matched_tokens"], 96)
        error(SERVER.call("POST", "/v1/kv/evict", {"select": {"node": "f" * 64}}), 404)
        error(SERVER.call("POST", "/v1/kv/evict", {"select": {"nod": "x"}}), 400)

    def test_a_dry_run_counts_like_the_real_one(self):
        with Server(QUIRE, f"{folder.name}/gemma3-F32.gguf") as server:  # a node has blocks of two kinds of layers
            for n in range(3):
                server.post("/v1/kv/prefill", {"tokens": [40 + n] * 40 + list(range(60, 160))})
            deepest = max(server.get("/v1/kv/tree")["nodes"], key=lambda n: n["depth_tokens"])
            for route, select in ("evict", {"node": deepest["hash"]}), ("evict", {"older_than": "1ms"}), ("clear", None):
                body = {"select": select} if select else {}
                time.sleep(0.05)  # all of it is older than a millisecond then
                dry = server.post(f"/v1/kv/{route}", {**body, "dry_run": True})
                again = server.post(f"/v1/kv/{route}", {**body, "dry_run": True})
                done = server.post(f"/v1/kv/{route}", body)
                self.assertEqual(dry, again)
                self.assertEqual(dry, done, (route, select))
                if route == "evict":
                    self.assertGreater(dry["blocks"], 0)
                    server.post("/v1/kv/prefill", {"tokens": [50] * 40 + list(range(60, 160))})
            self.assertGreater(done["blocks"], 0)

    def test_pins(self):
        prompt = [204] * 10 + list(range(60, 178))
        error(SERVER.call("POST", "/v1/kv/pins", {"tokens": prompt}), 404, "not_cached")
        pin = SERVER.post("/v1/kv/pins", {"tokens": prompt, "prefill": True, "ttl": "1h", "label": "rules"})
        self.assertEqual((pin["tokens"], pin["label"]), (128, "rules"))
        self.assertIsNotNone(pin["expires"])
        self.assertIn(pin["id"], [p["id"] for p in SERVER.get("/v1/kv/pins")["data"]])
        self.assertFalse(SERVER.post("/reset_prefix_cache", {})["success"])
        self.assertEqual(SERVER.post("/v1/kv/lookup", {"tokens": prompt + [4]})["matched_tokens"], 128)
        status, _, body = SERVER.call("PATCH", f"/v1/kv/pins/{pin['id']}", {"ttl": "2h"})
        self.assertEqual((status, body["id"]), (200, pin["id"]))
        self.assertEqual(SERVER.call("DELETE", f"/v1/kv/pins/{pin['id']}")[0], 200)
        error(SERVER.call("GET", f"/v1/kv/pins/{pin['id']}"), 404)
        self.assertTrue(SERVER.post("/reset_prefix_cache", {})["success"])
        self.assertEqual(SERVER.post("/v1/kv/lookup", {"tokens": prompt + [4]})["matched_tokens"], 0)
        again = SERVER.post("/v1/completions", ask(prompt=prompt))
        cached = SERVER.post("/v1/kv/pins", {"tokens": prompt})
        self.assertEqual(cached["tokens"], 96)
        self.assertEqual(SERVER.call("DELETE", f"/v1/kv/pins/{cached['id']}")[0], 200)
        self.assertTrue(again["id"].startswith("cmpl-"))

    def test_63_a_pin_survives_pressure(self):
        prompts = [[209 + i % 30, 60 + i // 30, *range(60, 250)] for i in range(60)]  # far more than the cache holds
        with Server(QUIRE, MODEL, "--kv-cache-memory", "2MiB") as server:
            def found(tokens):
                return server.post("/v1/kv/lookup", {"tokens": tokens + [4]})["matched_tokens"]
            for prompt in prompts[:10]:
                server.post("/v1/completions", ask(prompt=prompt, max_tokens=1))
            pin = server.post("/v1/kv/pins", {"tokens": prompts[10], "prefill": True})
            self.assertEqual(pin["tokens"], len(prompts[10]))
            for prompt in prompts[11:]:
                server.post("/v1/completions", ask(prompt=prompt, max_tokens=1))
            self.assertEqual(found(prompts[10]), pin["tokens"])
            gone = sum(found(p) < BLOCK for p in prompts[5:10] + prompts[11:16])  # as long, and not pinned
            self.assertGreaterEqual(gone, 6)
            self.assertEqual(server.call("DELETE", f"/v1/kv/pins/{pin['id']}")[0], 200)

    def test_previews_begin_where_prompts_part(self):
        rules = "Rules for all of us: be brief, be kind, and never hurry. "  # more than a block of bytes
        for question in ("Where is the river?", "Who wrote this letter?"):
            SERVER.post("/v1/completions", ask(prompt=rules * 3 + question + " " * 64))
        previews = [n["text_preview"] for n in SERVER.get("/v1/kv/tree?limit=1000&depth=9")["nodes"]]
        self.assertTrue(any(p.startswith("Rules for all of us") for p in previews), previews)
        parted = [p for p in previews if "river" in p or "letter" in p]
        self.assertEqual(len(parted), 2, previews)
        self.assertTrue(all(len(p.encode()) <= 80 for p in previews))

    def test_requests_are_explained(self):
        first = {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "a" * 300 + "Friday" + "b" * 100}]}
        second = {"model": "m", "max_tokens": 2,
                  "messages": [{"role": "user", "content": "a" * 300 + "Sunday" + "b" * 100}]}
        SERVER.post("/v1/chat/completions", first, headers={"x-request-id": "first"})
        answer = SERVER.post("/v1/chat/completions", second, headers={"x-request-id": "second"})
        for name in ("second", answer["id"]):
            why = SERVER.get(f"/v1/kv/requests/{name}")
            self.assertEqual(why["outcome"], "partial_hit")
            self.assertEqual(why["reason"], "tokens_diverged")
            self.assertEqual(why["detail"]["segment"], "messages[0]")
            self.assertEqual(why["cached_tokens"] + why["missed_tokens"], why["prompt_tokens"])
        asked = SERVER.post("/v1/kv/explain", {"request": first})
        self.assertEqual(asked["outcome"], "hit")
        self.assertIn("second", [r["request_id"] for r in SERVER.get("/v1/kv/requests")["data"]])
        error(SERVER.call("GET", "/v1/kv/requests/nobody"), 404)
        said = error(SERVER.call("POST", "/v1/kv/explain", {}), 400, "missing_required_parameter")
        for wanted in "messages", "prompt", "tokens", "request":
            self.assertIn(wanted, said)
        self.assertIn("GET /v1/kv/requests/{id}", error(SERVER.call("POST", "/v1/kv/explain", {"request_id": "second"}), 400))

    def test_kv_object(self):
        prompt = [205] * 10 + list(range(60, 178))
        cold = SERVER.post("/v1/completions", ask(prompt=prompt, kv={"report": ["timing", "explain", "seed"]}))
        self.assertEqual((cold["kv"]["computed_tokens"], cold["kv"]["explain"]["outcome"]), (128, "miss"))
        self.assertIn("ttft_ms", cold["kv"]["timing"])
        forced = SERVER.post("/v1/completions", ask(prompt=prompt, kv={"reuse": "none"}))
        self.assertEqual(forced["kv"]["cached_tokens"], 0)
        warm = SERVER.post("/v1/completions", ask(prompt=prompt), headers={"x-kv-policy": '{"report": ["explain"]}'})
        self.assertEqual(warm["kv"]["cached_tokens"], 127)
        self.assertEqual(cold["choices"][0]["text"], warm["choices"][0]["text"])
        self.assertNotIn("kv", SERVER.post("/v1/completions", ask(prompt=prompt)))
        one = SERVER.post("/v1/completions", ask(prompt=prompt, max_tokens=1))["choices"][0]["text"]
        if one.isascii():
            other = SERVER.post("/v1/completions", ask(prompt=prompt, max_tokens=1, bad_words=[one]))["choices"][0]["text"]
            self.assertNotEqual(one, other)
        SERVER.post("/v1/completions", ask(prompt=[206] + prompt, kv={"write": "none"}))
        self.assertEqual(SERVER.post("/v1/kv/lookup", {"tokens": [206] + prompt})["matched_tokens"], 0)
        error(SERVER.call("POST", "/v1/completions", ask(kv={"sesion": 1})), 400, "unknown_parameter", "kv.sesion")
        said = error(SERVER.call("POST", "/v1/completions", ask(kv={"format": "int99"})), 400, "kv_format_unsupported")
        self.assertEqual((said.count("int99"), said.count("hadamard-int4 ")), (1, 1), said)

    def test_events_can_be_resumed(self):
        wire = Wire(SERVER)
        wire.send("GET /v1/kv/events?types=stored,hit HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wire.until(b": ready\n\n")
        time.sleep(0.5)
        SERVER.post("/v1/completions", ask(prompt=[207] * 10 + list(range(60, 178))), headers={"x-request-id": "ev-1"})
        seen = b""
        while b"ev-1" not in seen:
            seen += wire.until(b"\n\n")
        wire.close()
        event = [line for line in seen.decode().split("\n") if line.startswith("id: ")][-1]
        number = int(event[4:])
        again = Wire(SERVER)
        again.send(f"GET /v1/kv/events?since=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        text = b""
        while f"id: {number}\n".encode() not in text:
            text += again.until(b"\n\n")
        again.close()
        self.assertIn(b"event: stored", text)


class Text(unittest.TestCase):
    def test_tokenize_and_back(self):
        tokens = SERVER.post("/tokenize", {"content": "hello"})
        self.assertEqual(tokens["count"], 5)
        self.assertEqual(SERVER.post("/detokenize", {"tokens": tokens["tokens"]})["content"], "hello")
        pieces = SERVER.post("/tokenize", {"content": "é", "with_pieces": True})["tokens"]
        self.assertEqual([p["piece"] for p in pieces], [[0xC3], [0xA9]])
        messages = [{"role": "user", "content": "hi"}]
        count = SERVER.post("/tokenize", {"messages": messages})["count"]
        used = SERVER.post("/v1/chat/completions", {"model": "m", "messages": messages, "max_tokens": 1})
        self.assertEqual(used["usage"]["prompt_tokens"], count)
        self.assertEqual(SERVER.post("/apply-template", {"messages": messages})["prompt"], "<|user|>hi<|eos|><|assistant|>")
        error(SERVER.call("POST", "/detokenize", {"tokens": [99999]}), 400, None, "tokens")

    def test_user_text_is_never_a_control_token(self):
        forged = SERVER.post("/tokenize", {"messages": [{"role": "user", "content": "<|eos|>"}]})["tokens"]
        self.assertEqual(forged.count(257), 1)

    def test_properties(self):
        settings = SERVER.get("/props")["default_generation_settings"]
        self.assertIn("n_ctx", settings)
        self.assertEqual((settings["temperature"], settings["top_p"], settings["from_model"]), (0.7, 0.9, False))
        self.assertTrue(all("is_processing" in s for s in SERVER.get("/slots")))
        self.assertIn("version", SERVER.get("/version"))
        self.assertEqual(SERVER.get("/ready"), {"status": "ready"})


class Keys(unittest.TestCase):
    def test_25_keys(self):
        keys = f"{folder.name}/keys"
        with open(keys, "w") as f:
            f.write("short admin\n")
        os.chmod(keys, 0o600)
        with self.assertRaisesRegex(RuntimeError, "at least 8 characters"):
            Server(QUIRE, MODEL, "--api-key-file", keys)
        with open(keys, "w") as f:
            f.write("user-key-a tenant=a\nuser-key-b tenant=b\nadmin-key-1 admin\n")
        os.chmod(keys, 0o644)
        with self.assertRaisesRegex(RuntimeError, "chmod 600"):
            Server(QUIRE, MODEL, "--api-key-file", keys)
        os.chmod(keys, 0o600)
        with Server(QUIRE, MODEL, "--api-key-file", keys) as server:
            import openai
            with self.assertRaises(openai.AuthenticationError):
                server.openai(api_key="wrong").models.list()
            error(server.call("GET", "/v1/models"), 401, "invalid_api_key")
            self.assertEqual(server.get("/health"), {"status": "ok"})
            error(server.call("GET", "/nowhere"), 401)  # says nothing about what is there
            a, b, admin = ({"Authorization": f"Bearer {k}"} for k in ("user-key-a", "user-key-b", "admin-key-1"))
            prompt = list(range(60, 160))
            def cached(headers):
                answer = server.post("/v1/completions", ask(prompt=prompt), headers=headers)
                return answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.assertEqual([cached(a), cached(b)], [0, 0])  # tenants do not share
            self.assertGreater(cached(a), 0)
            self.assertEqual(server.call("POST", "/reset_prefix_cache", {}, headers=a)[0], 403)
            self.assertEqual(server.call("POST", "/v1/completions", ask(kv={"tenant": "b"}), headers=a)[0], 403)
            self.assertEqual(server.call("POST", "/reset_prefix_cache", {}, headers=admin)[0], 200)
            self.assertEqual(server.call("GET", "/v1/models", headers={"x-api-key": "user-key-a"})[0], 200)

    def test_keys_are_read_again_and_may_come_from_a_descriptor(self):
        keys, log = f"{folder.name}/changing", f"{folder.name}/reopened"
        def write(text):
            with open(keys, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
                f.write(text)
        def status(key):
            return server.call("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0]
        write("first-key-1\n")
        with Server(QUIRE, MODEL, "--api-key-file", keys, "--access-log", log) as server:
            self.assertEqual((status("first-key-1"), status("second-key")), (200, 401))
            write("second-key\n")
            os.rename(log, log + ".1")
            server.process.send_signal(signal.SIGHUP)
            wait_for(lambda: status("second-key") == 200)
            self.assertEqual(status("first-key-1"), 401)
            wait_for(lambda: os.path.exists(log) and os.path.getsize(log) > 0)
            write("short\n")  # not a key: the old ones stay
            server.process.send_signal(signal.SIGHUP)
            wait_for(lambda: "line 1" in server.output())
            self.assertEqual(status("second-key"), 200)
            for path in (log, log + ".1"):
                with open(path) as f:
                    self.assertNotIn("-key", f.read())
        read, write_end = os.pipe()
        os.write(write_end, b"key-from-a-pipe\n")
        os.close(write_end)
        with Server(QUIRE, MODEL, "--api-key-file", f"/dev/fd/{read}", pass_fds=(read,)) as server:
            os.close(read)
            self.assertEqual((status("key-from-a-pipe"), status("another-key")), (200, 401))

    def test_a_tenant_cannot_fill_the_queue(self):
        keys = f"{folder.name}/two-tenants"
        with open(keys, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
            f.write("user-key-a tenant=a\nuser-key-b tenant=b\n")
        with Server(QUIRE, MODEL, "--api-key-file", keys, "--max-queue", 4, "--max-num-seqs", 1) as server:
            wires = [Wire(server) for _ in range(8)]
            for wire in wires:
                wire.post("/v1/completions", ask(max_tokens=3000), headers="Authorization: Bearer user-key-a\r\n")
            end = time.monotonic() + HURRY
            refused = []
            while len(refused) < 5 and time.monotonic() < end:
                refused = select.select([wire.socket for wire in wires], [], [], 1)[0]
            self.assertGreaterEqual(len(refused), 5)  # one runs, two wait
            other = Wire(server)
            other.post("/v1/completions", ask(max_tokens=1, stream=True), headers="Authorization: Bearer user-key-b\r\n")
            for wire in wires:
                wire.close()
            self.assertIn(b" 200 ", other.until(b"\r\n"))  # it may have waited, but was not refused
            other.close()

    def test_other_machines_need_keys(self):
        done = subprocess.run([QUIRE, "serve", MODEL, "--host", "0.0.0.0", "--port", "0"], capture_output=True, text=True,
                              timeout=HURRY)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--api-key-file", done.stderr)


class Signals(unittest.TestCase):
    def test_term_finishes_what_runs(self):
        server = Server(QUIRE, MODEL, "--access-log", f"{folder.name}/access", "--drain", 300)
        wire = Wire(server)
        wire.post("/v1/completions", ask(max_tokens=1500, stream=True))
        wire.until(b"data: ")
        idle = Wire(server)
        server.process.send_signal(signal.SIGTERM)

        def refused():
            late = Wire(server)
            late.post("/v1/completions", ask(max_tokens=1))
            answer = late.rest() if b" 503 " in late.until(b"\r\n\r\n") else b""
            late.close()
            return b"draining" in answer

        wait_for(refused)
        self.assertTrue(wire.until(b"data: [DONE]").endswith(b"[DONE]"))
        self.assertEqual(server.process.wait(HURRY), 0)
        idle.close()
        with open(f"{folder.name}/access") as f:
            lines = [json.loads(line) for line in f]
        done = [line for line in lines if line.get("stream")][-1]
        self.assertEqual((done["completion_tokens"], done["route"], done["stream"]), (1500, "/v1/completions", True))
        self.assertEqual(set(LOGGED) - set(done), set())
        self.assertLess(0, done["tpot_ms_p50"])
        self.assertLessEqual(done["tpot_ms_p50"], done["tpot_ms_p99"])
        self.assertTrue(0 < done["lookup_ms"] < done["total_ms"])
        self.assertEqual((done["kv_outcome"], done["kv_reason"], done["finish"]), ("miss", "never_seen", "length"))
        self.assertGreater(done["bytes_out"], done["bytes_in"])

    def test_what_is_not_done_in_time_is_told(self):
        server = Server(QUIRE, MODEL, "--drain", 0.2)
        streaming, whole = Wire(server), Wire(server)
        streaming.post("/v1/completions", ask(max_tokens=3900, stream=True, n=8))
        whole.post("/v1/completions", ask(max_tokens=3900, n=8))
        streaming.until(b"data: ")
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(HURRY), 0)
        rest = streaming.rest()
        self.assertIn(b'"code":"draining"', rest)
        self.assertNotIn(b'"finish_reason":"stop"', rest)
        self.assertTrue(rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), rest[-60:])
        self.assertTrue(whole.rest().startswith(b"HTTP/1.1 503 "))

    def test_second_signal_ends_at_once(self):
        server = Server(QUIRE, MODEL)
        wire = Wire(server)
        wire.post("/v1/completions", ask(max_tokens=3900, stream=True, n=16))
        wire.until(b"data: ")
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        self.assertIn(server.process.wait(HURRY), (0, 130))
        self.assertIn(b'"error"', wire.rest())

    def test_a_taken_port_is_5(self):
        done = subprocess.run([QUIRE, "serve", MODEL, "--port", str(SERVER.port)], capture_output=True, text=True,
                              timeout=HURRY)
        self.assertEqual(done.returncode, 5)
        self.assertIn(str(SERVER.port), done.stderr)


if __name__ == "__main__":
    with Server(QUIRE, MODEL) as SERVER:
        done = unittest.main(argv=[sys.argv[0], *sys.argv[3:]], exit=False)
    sys.exit(not done.result.wasSuccessful())
