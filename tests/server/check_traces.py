"""Traces: the spans of a request reach an OpenTelemetry collector, and one that is away holds nobody up.

    python3 tests/server/check_traces.py QUIRE WRITE_TINY

The collector is a small HTTP server in this process, on loopback.
"""
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from serving import Server, Wire, wait_for

QUIRE, WRITE_TINY = sys.argv[1:3]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SERVER = COLLECTOR = None


class Collector:
    def __init__(self):
        self.posts = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                collector.posts.append((self.path, self.headers, body))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self):
        return [s for _, _, body in self.posts for r in body["resourceSpans"] for c in r["scopeSpans"] for s in c["spans"]]

    def of(self, request_id):
        """The span of a request, and its children by name; waited for."""
        def own():
            return [s for s in self.spans() if values(s).get("quire.request.id") == request_id]
        wait_for(own)
        span = own()[0]
        return span, {s["name"]: s for s in self.spans() if s.get("parentSpanId") == span["spanId"]}


def values(span):
    def plain(v):
        (kind, value), = v.items()
        return {"intValue": int, "arrayValue": lambda a: [plain(x) for x in a["values"]]}.get(kind, lambda x: x)(value)
    return {a["key"]: plain(a["value"]) for a in span["attributes"]}


def ask(**more):
    return {"model": "m", "prompt": [60 + i * i % 150 for i in range(100)], "max_tokens": 6, "temperature": 0,
            "ignore_eos": True, **more}


class Traces(unittest.TestCase):
    def test_a_request_becomes_a_span_with_its_parts(self):
        for name in ("cold", "warm"):
            answer = SERVER.post("/v1/completions", ask(prompt=[61 + i * i % 149 for i in range(100)], seed=5, stop=["\x01never"], top_p=0.7),
                                 headers={"x-request-id": name})
        span, parts = COLLECTOR.of("warm")
        have = values(span)
        self.assertEqual((span["name"], span["kind"]), ("text_completion m", 2))
        self.assertNotIn("parentSpanId", span)
        usage = answer["usage"]
        expected = {
            "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "quire", "gen_ai.request.model": "m",
            "gen_ai.response.model": "m", "gen_ai.response.id": answer["id"], "gen_ai.request.max_tokens": 6,
            "gen_ai.request.temperature": 0.0, "gen_ai.request.top_p": 0.7, "gen_ai.request.seed": 5,
            "gen_ai.request.stream": False, "gen_ai.output.type": "text",
            "gen_ai.response.finish_reasons": ["length"], "gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 6,
            "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "gen_ai.usage.cache_write.input_tokens": 0, "gen_ai.usage.cache_creation.input_tokens": 0,
            "server.address": "127.0.0.1", "server.port": SERVER.port, "http.response.status_code": 200,
            "http.route": "/v1/completions", "http.request.method": "POST", "kv.outcome": "hit", "kv.format": "f32",
            "kv.lossy": False, "kv.cached.cpu": usage["prompt_tokens_details"]["cached_tokens"]}
        self.assertEqual({k: have.get(k) for k in expected}, expected)
        self.assertGreater(have["gen_ai.usage.cache_read.input_tokens"], 0)
        self.assertNotIn("never", json.dumps(span))  # stop strings are the client's text
        self.assertGreater(have["gen_ai.response.time_to_first_chunk"], 0)
        self.assertEqual(set(parts), {"queue", "kv.lookup", "prefill", "decode"})
        times = lambda s: (int(s["startTimeUnixNano"]), int(s["endTimeUnixNano"]))
        begin, end = times(span)
        self.assertLess(abs(begin / 1e9 - time.time()), 600)
        for part in parts.values():
            self.assertEqual((part["traceId"], part["kind"]), (span["traceId"], 1))
            self.assertTrue(begin <= times(part)[0] <= times(part)[1] <= end, part)
        self.assertLessEqual(times(parts["prefill"])[1], times(parts["decode"])[0])
        self.assertGreater(times(parts["decode"])[1], times(parts["decode"])[0])
        cold, cold_parts = COLLECTOR.of("cold")
        self.assertEqual(values(cold)["gen_ai.usage.cache_write.input_tokens"], 96)
        self.assertIn("kv.write", cold_parts)

    def test_the_callers_trace_goes_on(self):
        SERVER.post("/v1/chat/completions", {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]},
                    headers={"x-request-id": "child", "traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=1"})
        span, _ = COLLECTOR.of("child")
        self.assertEqual((span["traceId"], span["parentSpanId"], span["traceState"]), (TRACE, PARENT, "a=1"))
        self.assertEqual(span["name"], "chat m")

    def test_a_caller_that_does_not_sample_is_obeyed(self):
        SERVER.post("/v1/completions", ask(), headers={"x-request-id": "unsampled", "traceparent": f"00-{TRACE}-{PARENT}-00"})
        SERVER.post("/v1/completions", ask(), headers={"x-request-id": "after"})
        COLLECTOR.of("after")
        self.assertNotIn("unsampled", [values(s).get("quire.request.id") for s in COLLECTOR.spans()])

    def test_refusals_and_clients_that_leave_say_so(self):
        SERVER.call("POST", "/v1/completions", ask(temperature=9), headers={"x-request-id": "refused"})
        have = values(COLLECTOR.of("refused")[0])
        self.assertEqual((have["http.response.status_code"], have["error.type"]), (400, "400"))
        wire = Wire(SERVER)
        wire.post("/v1/completions", ask(max_tokens=3000, stream=True), headers="x-request-id: left\r\n")
        wire.until(b"data: ")
        wire.close()
        have = values(COLLECTOR.of("left")[0])
        self.assertEqual((have["http.response.status_code"], have["error.type"]), (499, "client_closed_request"))

    def test_posts_are_what_was_configured(self):
        SERVER.post("/v1/completions", ask(), headers={"x-request-id": "any"})
        COLLECTOR.of("any")
        path, headers, body = COLLECTOR.posts[0]
        self.assertEqual((path, headers["Content-Type"], headers["x-tenant"]), ("/v1/traces", "application/json", "a b"))
        resource = {a["key"]: a["value"]["stringValue"] for a in body["resourceSpans"][0]["resource"]["attributes"]}
        self.assertEqual((resource["service.name"], resource["region"]), ("tested", "north"))

    def test_no_text_of_anybody_is_sent(self):
        words = "zanzibar nutmeg"
        answer = SERVER.post("/v1/completions", ask(prompt=words, temperature=1, max_tokens=30),
                             headers={"x-request-id": "secret"})
        COLLECTOR.of("secret")
        text = json.dumps([b for _, _, b in COLLECTOR.posts], ensure_ascii=False)
        self.assertNotIn("zanzibar", text)
        self.assertNotIn(answer["choices"][0]["text"], text)

    def test_metrics_count_the_spans(self):
        SERVER.post("/v1/completions", ask(), headers={"x-request-id": "counted"})
        COLLECTOR.of("counted")
        wait_for(lambda: number(SERVER, "trace_spans_total") == len(COLLECTOR.spans()))
        self.assertEqual(number(SERVER, "trace_spans_dropped_total"), 0)


class Away(unittest.TestCase):
    def test_a_collector_that_is_away_holds_nobody_up(self):
        with Server(QUIRE, MODEL, environment={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
                                               "OTEL_BSP_SCHEDULE_DELAY": "20"}) as server:
            began = time.monotonic()
            for _ in range(20):
                server.post("/v1/completions", ask())
            self.assertLess(time.monotonic() - began, 30)
            wait_for(lambda: number(server, "trace_spans_dropped_total") > 0)
            self.assertEqual(server.stop(), 0)

    def test_nonsense_is_refused_at_the_start(self):
        for name, value in (("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector"), ("OTEL_TRACES_SAMPLER", "often")):
            environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", name: value}
            done = subprocess.run([QUIRE, "serve", MODEL, "--port", "0"], env=environment, capture_output=True, text=True,
                                  timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(value, done.stderr)


def number(server, name):
    _, _, text = server.call("GET", "/metrics", raw=True)
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.decode().splitlines() if line.startswith(name + "{"))


if __name__ == "__main__":
    COLLECTOR = Collector()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([WRITE_TINY, folder], check=True)
        MODEL = f"{folder}/llama-F32.gguf"
        with Server(QUIRE, MODEL, environment={
                "OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR.url, "OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_SERVICE_NAME": "tested",
                "OTEL_RESOURCE_ATTRIBUTES": "region=north", "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a%20b"}) as SERVER:
            done = unittest.main(argv=[sys.argv[0], *sys.argv[3:]], exit=False)
    sys.exit(not done.result.wasSuccessful())
