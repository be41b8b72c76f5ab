"""A server with the shapes of Quire's API and a cache that is made up: for the page, where no model is at hand.

    mock_server.py PAGE.html [--port 8099] [--busy]

Tokens are words. A prompt is kept in blocks of 4 words, so that a second turn hits; --busy begins with a day's traffic.
A server that was started with a tenant's key refuses what needs an administrator, as Quire does.
"""
import argparse
import datetime
import hashlib
import http.server
import json
import random
import threading
import time

BLOCK = 4
TOKEN_BYTES = 23040
CAPACITY = 6000  # blocks


def rfc3339(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat().replace("+00:00", "Z")


class Cache:
    """Blocks of words by the hash of everything before them, as the real one keeps tokens."""

    def __init__(self):
        self.blocks = {}  # hash -> dict
        self.requests = []
        self.queried = self.hit = self.generated = self.firsts = 0
        self.first_seconds = 0.0
        self.running = 0
        self.sessions = {}
        for name, parent in (("agent-7", None), ("agent-7-plan", "agent-7"), ("agent-7-plan-b", "agent-7-plan"), ("support", None)):
            self.add_session(name, parent)
        self.lock = threading.Lock()

    def add_session(self, name, parent):
        self.sessions[name] = {"id": name, "tokens": 640, "turns": 5, "bytes": 640 * TOKEN_BYTES, "parent": parent, "busy": False,
                               "created": rfc3339(time.time() - 600), "last_used": rfc3339(time.time() - 60)}

    def chain(self, words):
        key, out = "0" * 64, []
        for i in range(0, len(words) - len(words) % BLOCK, BLOCK):
            parent, key = key, hashlib.sha256((key + " ".join(words[i:i + BLOCK])).encode()).hexdigest()
            out.append((key, parent, words[i:i + BLOCK], i))
        return out

    def read(self, segments, request_id, when=None):
        words = [w for _, text in segments for w in text.split()]
        with self.lock:
            cached, missed = 0, False
            for key, parent, piece, at in self.chain(words):
                block = self.blocks.get(key)
                if block and not missed and at + BLOCK < len(words):
                    block["hits"] += 1
                    block["last_used"] = when or time.time()
                    cached = at + BLOCK
                    continue
                missed = True
                self.blocks.setdefault(key, {"parent": parent, "words": piece, "at": at, "hits": 0,
                                             "created": when or time.time(), "last_used": when or time.time()})
            self.queried += len(words)
            self.hit += cached
            self.requests.insert(0, self.explained(segments, words, cached, request_id, when))
            del self.requests[200:]
            return len(words), cached

    def explained(self, segments, words, cached, request_id, when):
        parts, at = [], 0
        for name, text in segments:
            n = len(text.split())
            parts.append({"name": name, "start": at, "end": at + n, "cached": max(0, min(cached - at, n))})
            at += n
        full = cached >= len(words) - BLOCK
        answer = {
            "request_id": request_id, "submitted": rfc3339(when or time.time()), "ttft_ms": 4 + 0.9 * (len(words) - cached),
            "outcome": "hit" if full else "partial_hit" if cached else "miss",
            "reason": "block_partial" if full else "tokens_diverged" if cached else "never_seen",
            "prompt_tokens": len(words), "cached_tokens": cached, "missed_tokens": len(words) - cached,
            "detail": {"at_token": cached, "shared_prefix_tokens": cached}, "segments": parts, "alternatives": [], "events": [],
            "cost": {"prefill_ms": 0.9 * (len(words) - cached), "avoidable_ms": 0}}
        if cached and not full:
            answer["detail"].update(was="… and tell me about the weather on Friday", now="… " + " ".join(words[cached:cached + 8]))
            answer["alternatives"] = [{"if": f"move the changing text after token {len(words) - 12}", "would_cache": len(words) - 16}]
        return answer

    def tree(self):
        """Runs of blocks without branching."""
        with self.lock:
            kids = {}
            for key, block in self.blocks.items():
                kids.setdefault(block["parent"], []).append(key)
            nodes, todo = [], [(k, "0" * 64) for k in kids.get("0" * 64, [])]
            while todo:
                key, parent = todo.pop()
                run = [key]
                while len(kids.get(run[-1], [])) == 1 and self.blocks[kids[run[-1]][0]]["hits"] == self.blocks[key]["hits"]:
                    run.append(kids[run[-1]][0])
                blocks = [self.blocks[k] for k in run]
                text = " ".join(w for b in blocks for w in b["words"])
                nodes.append({
                    "hash": run[-1], "parent": parent, "tokens": BLOCK * len(run), "depth_tokens": blocks[-1]["at"] + BLOCK,
                    "blocks": len(run), "bytes": BLOCK * len(run) * TOKEN_BYTES, "tiers": {"cpu": len(run)},
                    "format": {"k": "f16", "v": "f16"}, "refs": int(self.running > 0 and blocks[0]["last_used"] > time.time() - 3),
                    "hits": blocks[0]["hits"], "tokens_saved": sum(b["hits"] for b in blocks) * BLOCK,
                    "created": rfc3339(blocks[0]["created"]), "last_used": rfc3339(blocks[-1]["last_used"]),
                    "lease": {"expires": None, "pin": "pin_01" if "rules" in text else None, "sessions": []}, "priority": 0,
                    "children": kids.get(run[-1], []), "text_preview": ("<|im_start|>system\n" if blocks[0]["at"] == 0 else "") + text[:80]})
                todo += [(k, run[-1]) for k in kids.get(run[-1], [])]
            return {"root": "0" * 64, "nodes": nodes, "truncated": False}

    def stats(self):
        used = len(self.blocks)
        active = min(used, 40 * self.running)
        pinned = sum("rules" in b["words"] for b in self.blocks.values())
        return {
            "model": "mock", "block_size": BLOCK, "bytes_per_token": {"f16": TOKEN_BYTES},
            "tiers": [{"name": "cpu", "capacity_bytes": CAPACITY * BLOCK * TOKEN_BYTES, "used_bytes": used * BLOCK * TOKEN_BYTES,
                       "blocks": {"total": CAPACITY, "free": CAPACITY - used, "active": active,
                                  "cached": used - active - pinned, "pinned": pinned}}] + self.below(used),
            "hit_rate": {"1m": 0, "10m": 0, "total": self.hit / max(self.queried, 1), "token_weighted": True},
            "tokens": {"queried": self.queried, "hit": self.hit}, "evictions": {"total": 0, "by_cause": {}},
            "sharing": {"logical_tokens": 0, "physical_tokens": 0, "dedup_ratio": (self.hit + 1 + used * BLOCK) / (1 + used * BLOCK)},
            "sessions": len(self.sessions), "pins": 1,
            "tenants": [{"id": "acme", "used_bytes": 40 << 20, "quota_bytes": 64 << 20}, {"id": "zenith", "used_bytes": 9 << 20, "quota_bytes": None}]}

    def below(self, used):
        """A disk that has all of it, and a shared store that others fill as well and that was down at times."""
        def tier(name, open, capacity, stored, read, rate):
            return {"name": name, "open": open, "capacity_bytes": capacity, "used_bytes": stored and used * BLOCK * TOKEN_BYTES,
                    "blocks": {"total": stored and used}, "read": {"blocks": read, "bytes": read * BLOCK * TOKEN_BYTES, "failed": 0},
                    "written": {"blocks": used, "bytes": used * BLOCK * TOKEN_BYTES}, "refused": 0, "corrupt": 0,
                    "queue_bytes": {"read": 0, "write": self.running * 4 << 20}, "first_byte_ms": 0.4, "bytes_per_s": rate}
        return [tier("disk", True, 1 << 30, 1, self.hit // 9, 1.4e9), tier("remote", used % 2 == 0, 0, 0, self.hit // 40, 2.1e8)]

    def metrics(self):
        labels = '{model_name="mock",engine="0"}'
        return "".join(f"{name}{labels} {value}\n" for name, value in {
            "vllm:num_requests_running": self.running, "vllm:num_requests_waiting": 0,
            "vllm:prompt_tokens_total": self.queried, "vllm:prefix_cache_queries_total": self.queried,
            "vllm:prefix_cache_hits_total": self.hit, "vllm:generation_tokens_total": self.generated,
            "vllm:time_to_first_token_seconds_sum": self.first_seconds, "vllm:time_to_first_token_seconds_count": self.firsts}.items())


ANSWER = ("Sunlight is a mixture of **all colours**. Air scatters the short waves most, so blue reaches us from every direction:\n\n"
          "1. light enters the air,\n2. molecules scatter it, `blue` about ten times as much as red,\n3. the sky looks blue.\n\n"
          "```\nscattering ~ 1 / wavelength^4\n```\nAt sunset the path is long, and only the red is left.")
RULES = "You are the support agent of a small library. Follow these house rules with care: be brief, be kind, cite the shelf. " * 6
TOPICS = ["books about the sea", "opening hours in winter", "how to renew a card", "a quiet room for six", "maps of the old town",
          "poems for a wedding", "lost umbrellas", "children's reading hour"]


def fill(cache):
    """A morning of requests."""
    chance, start = random.Random(4), time.time() - 3600
    for n in range(60):
        topic = TOPICS[min(int(chance.expovariate(0.5)), len(TOPICS) - 1)]
        segments = [("system[0]", RULES), ("messages[0]", f"A visitor asks about {topic} and would like to know more.")]
        for turn in range(chance.randint(0, 4)):
            segments += [(f"messages[{2 * turn + 1}]", f"Of course. On {topic} we have shelf {turn * 7} and the desk upstairs."),
                         (f"messages[{2 * turn + 2}]", f"Thank you and what about {chance.choice(TOPICS)} please?")]
        cache.read(segments, f"req_{n:024x}", start + n * 55)
    for n in range(12):
        cache.read([("messages[0]", f"Translate to French: {TOPICS[n % 8]} number {n} of the list")], f"req_f{n:023x}", start + n * 200)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, kind="application/json", status=200):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def allowed(self, path):
        """Answers what this caller may not see, and says whether it may."""
        key = self.server.tenant_key
        if not key or path == "/":
            return True
        if self.headers.get("Authorization") != f"Bearer {key}":
            self.answer({"error": {"message": "no valid API key was sent; use Authorization: Bearer KEY"}}, status=401)
        elif path in ("/v1/kv/stats", "/metrics"):
            self.answer({"error": {"message": "this needs an admin key"}}, status=403)
        else:
            return True
        return False

    def do_GET(self):
        cache, path = self.server.cache, self.path.split("?")[0]
        if not self.allowed(path):
            return
        if path == "/":
            self.answer(self.server.page.read_text(), "text/html; charset=utf-8")
        elif path == "/props":
            self.answer({"default_generation_settings": {"temperature": 0.6, "top_p": 0.9, "from_model": True}})
        elif path == "/metrics":
            self.answer(cache.metrics(), "text/plain")
        elif path == "/v1/models":
            self.answer({"object": "list", "data": [{"id": self.server.model, "object": "model", "kv": {"formats": ["f16", "int8", "hadamard-int4"]}}]})
        elif path == "/v1/kv/sessions":
            self.answer({"data": list(cache.sessions.values()), "has_more": False})
        elif path == "/v1/kv/stats":
            self.answer(cache.stats())
        elif path == "/v1/kv/tree":
            self.answer(cache.tree())
        elif path == "/v1/kv/requests":
            listed = ("request_id", "submitted", "ttft_ms", "reason", "prompt_tokens", "cached_tokens", "error")
            self.answer({"data": [{key: r.get(key) for key in listed} for r in cache.requests[:50]], "has_more": False})
        elif path.startswith("/v1/kv/requests/"):
            found = [r for r in cache.requests if r["request_id"] == path.rsplit("/", 1)[1]]
            self.answer(found[0] if found else {"error": {"message": "no such request"}}, status=200 if found else 404)
        else:
            self.answer({"error": {"message": f"no route {path}"}}, status=404)

    def do_DELETE(self):
        if self.allowed(self.path):
            name = self.path.rsplit("/", 1)[1]
            self.answer({"id": name, "deleted": self.server.cache.sessions.pop(name, None) is not None})

    def do_POST(self):
        cache = self.server.cache
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if not self.allowed(self.path):
            return
        if self.path.endswith("/fork"):
            cache.add_session(body["id"], self.path.split("/")[-2])
            return self.answer(cache.sessions[body["id"]])
        if body.get("model", self.server.model) != self.server.model:
            return self.answer({"error": {"message": f"the model '{body['model']}' is not served here"}}, status=404)
        if any("fail" in m["content"] for m in body["messages"][-1:]):
            return self.answer({"error": {"message": "the queue is full; try again in a second", "code": "queue_full"}}, status=429)
        if not body.get("stream"):  # as the comparison asks
            kept = 0.25 if body["kv"].get("budget") else 1
            form = body["kv"].get("format", "f16")
            whole = 4_000_000 * {"f16": 16, "int8": 8, "hadamard-int4": 4}[form] // 16
            kv = {"bytes": int(whole * kept), "format": {"k": form, "v": form}, "timing": {"ttft_ms": 20}}
            if kept < 1:
                kv["budget"] = {"policy": "snapkv", "bytes_whole": whole}
            return self.answer({"choices": [{"message": {"role": "assistant", "content": ANSWER[:120 if form == "f16" else 90]}}], "kv": kv})
        request_id = "req_" + hashlib.sha256(json.dumps(body).encode() + str(time.time()).encode()).hexdigest()[:24]
        names = {"system": 0, "messages": 0}
        segments = []
        for m in body["messages"]:
            kind = "system" if m["role"] == "system" else "messages"
            segments.append((f"{kind}[{names[kind]}]", m["content"]))
            names[kind] += 1
        started = time.time()
        cache.running += 1
        prompt, cached = cache.read(segments, request_id)
        time.sleep(0.02 + 0.002 * (prompt - cached))
        cache.firsts += 1
        cache.first_seconds += time.time() - started
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("x-request-id", request_id)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def event(data):
            text = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
            self.wfile.flush()

        whole = [p + " " for p in ANSWER.split(" ")]
        pieces = whole[: body.get("max_tokens", len(whole))]
        try:
            for piece in pieces:
                event({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": piece}}]})
                cache.generated += 1
                time.sleep(self.server.pause)
            event({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {},
                                                    "finish_reason": "stop" if pieces == whole else "length"}]})
            event({"id": "chatcmpl-1", "choices": [], "usage": {
                "prompt_tokens": prompt, "completion_tokens": len(pieces), "total_tokens": prompt + len(pieces),
                "prompt_tokens_details": {"cached_tokens": cached}}})
            event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
            next(r for r in cache.requests if r["request_id"] == request_id)["error"] = "client_closed_request"
        finally:
            cache.running -= 1


def start(page, port=0, busy=False, pause=0.01, tenant_key="", model="smollm2-135m-instruct"):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.page, server.cache, server.pause = page, Cache(), pause
    server.tenant_key, server.model, server.bodies = tenant_key, model, []
    if busy:
        fill(server.cache)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    import pathlib
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--busy", action="store_true")
    args = parser.parse_args()
    server = start(args.page, args.port, args.busy, 0.02)
    print(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Event().wait()
