"""GET /metrics: read by strict parsers, every promised name there, and counters that move by exactly what answers report.

    scripts/python tests/server/check_metrics.py QUIRE WRITE_TINY
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

from prometheus_client import parser
from prometheus_client.openmetrics import parser as open_parser

from serving import Server, Wire, wait_for

QUIRE, WRITE_TINY = sys.argv[1:3]
GAUGES = """num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc cache_config_info
    lora_requests_info num_requests_waiting_by_reason""".split()
COUNTERS = """prefix_cache_queries prefix_cache_hits external_prefix_cache_queries external_prefix_cache_hits prompt_tokens
    prompt_tokens_cached generation_tokens prompt_tokens_cached_by_source num_preemptions request_success
    spec_decode_num_draft_tokens spec_decode_num_accepted_tokens spec_decode_num_drafts
    spec_decode_num_accepted_tokens_per_pos""".split()
HISTOGRAMS = """time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds
    e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds
    request_inference_time_seconds request_prompt_tokens request_generation_tokens request_params_n
    request_params_max_tokens iteration_tokens_total request_prefill_kv_computed_tokens kv_block_lifetime_seconds
    kv_block_idle_before_evict_seconds kv_block_reuse_gap_seconds""".split()
OURS = {"kv_blocks": "gauge", "kv_bytes": "gauge", "kv_capacity_bytes": "gauge", "kv_evictions": "counter", "kv_transfers": "counter",
        "kv_transfer_bytes": "counter", "kv_miss": "counter", "kv_saved_prefill_tokens": "counter",
        "kv_saved_prefill_seconds": "counter", "kv_dedup_ratio": "gauge", "kv_tail_waste_tokens": "gauge", "kv_sessions": "gauge",
        "kv_pins": "gauge", "kv_lease_bytes": "gauge", "kv_ghost_hits": "counter", "kv_ghost_size_multiplier_hits": "counter",
        "kv_lookup_seconds": "histogram", "kv_tenant_bytes": "gauge", "kv_events_dropped": "counter",
        "kv_quant_error": "gauge", "kv_transfer_seconds": "histogram", "kv_transfer_queue_bytes": "gauge",
        "kv_tier_open": "gauge", "kv_tier_closings": "counter", "kv_tier_misses": "counter", "kv_tier_bytes": "gauge",
        "kv_cold_bytes": "counter", "kv_cold_hidden_bytes": "counter", "kv_cold_tokens": "counter",
        "kv_cold_lost_blocks": "counter", "build_info": "gauge", "http_requests": "counter"}
SERVER = None


def scrape(accept="text/plain"):
    status, headers, text = SERVER.call("GET", "/metrics", headers={"Accept": accept}, raw=True)
    assert status == 200, status
    return headers["Content-Type"], text.decode()


def families():
    return {f.name: f for f in parser.text_string_to_metric_families(scrape()[1])}


def total(found, name):
    return sum(s.value for s in found[name].samples)


def count(found, histogram):
    return sum(s.value for s in found[histogram].samples if s.name.endswith("_count"))


class Metrics(unittest.TestCase):
    def test_61_every_name_has_its_type(self):
        SERVER.post("/v1/completions", ask(5))
        found = families()
        for names, kind in ((GAUGES, "gauge"), (COUNTERS, "counter"), (HISTOGRAMS, "histogram")):
            for name in names:
                self.assertIn(f"vllm:{name}", found)
                self.assertEqual(found[f"vllm:{name}"].type, kind, name)
        for name, kind in OURS.items():
            self.assertEqual(found[name].type, kind, name)
        for family in found.values():
            for sample in family.samples:
                self.assertEqual((sample.labels["model_name"], sample.labels["engine"]), ("m", "0"), sample)
        config = found["vllm:cache_config_info"].samples[0].labels
        self.assertEqual(config["block_size"], "32")
        self.assertGreater(int(config["num_gpu_blocks"]), 0)

    def test_61_the_strict_dialect_is_obeyed(self):
        kind, text = scrape("application/openmetrics-text; version=1.0.0")
        self.assertTrue(kind.startswith("application/openmetrics-text"))
        names = {f.name for f in open_parser.text_string_to_metric_families(text)}
        self.assertIn("vllm:prompt_tokens", names)
        self.assertEqual(names, set(families()), "both dialects have the same families")

    def test_61_counters_move_by_what_answers_report(self):
        names = ["vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:generation_tokens"]
        before = families()
        asked = hit = made = 0
        for salt in (7, 7, 8, 7):  # the same prompt comes back
            usage = SERVER.post("/v1/completions", ask(salt))["usage"]
            asked += usage["prompt_tokens"]
            hit += usage["prompt_tokens_details"]["cached_tokens"]
            made += usage["completion_tokens"]
        self.assertGreater(hit, 0)
        moved = lambda: [total(families(), name) - total(before, name) for name in names]
        wait_for(lambda: moved() == [asked, hit, made])  # the snapshot is taken between steps

    def test_every_family_is_listed_here(self):
        more = {"kv_nodes", "kv_shared_in_flight_tokens", "kv_requests_failed", "engine_seconds", "engine_steps", "engine_steps_ahead",
                "trace_spans", "trace_spans_dropped", "lora_adapters", "lora_adapter_bytes", "process_resident_memory_bytes", "process_cpu_seconds"}
        self.assertEqual(set(families()) - {f"vllm:{n}" for n in GAUGES + COUNTERS + HISTOGRAMS} - set(OURS), more)

    def test_the_dashboard_asks_for_what_is_there(self):
        SERVER.post("/v1/completions", ask(6) | {"kv": {"tenant": "acme"}})
        wait_for(lambda: families()["kv_tenant_bytes"].samples)
        labels = {}
        for family in families().values():
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
        panels = json.loads((pathlib.Path(__file__).parents[2] / "deploy" / "grafana.json").read_text())["panels"]
        self.assertGreater(len(panels), 10)
        for target in (t for panel in panels for t in panel["targets"]):
            names = re.findall(r"(?:vllm:|kv_)\w+", target["expr"])
            self.assertTrue(names, target)
            for name in names:
                self.assertIn(name, labels, target["expr"])
            asked = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            self.assertLessEqual(asked, set.intersection(*(labels[n] for n in names)), target)

    def test_lookups_reuse_and_evictions_are_timed(self):
        before = families()
        for _ in range(2):
            SERVER.post("/v1/completions", ask(9))
        SERVER.post("/v1/kv/clear", {})
        grown = lambda name: count(families(), name) - count(before, name)
        wait_for(lambda: grown("vllm:kv_block_idle_before_evict_seconds") >= 3)
        self.assertEqual(grown("kv_lookup_seconds"), 2)
        self.assertGreaterEqual(grown("vllm:kv_block_reuse_gap_seconds"), 3)
        self.assertEqual(grown("vllm:kv_block_lifetime_seconds"), grown("vllm:kv_block_idle_before_evict_seconds"))

    def test_bytes_are_told_by_tenant(self):
        SERVER.post("/v1/completions", ask(11) | {"kv": {"tenant": "acme"}})
        bytes_of = lambda: {s.labels["tenant"]: s.value for s in families()["kv_tenant_bytes"].samples}
        wait_for(lambda: bytes_of().get("acme", 0) > 0)
        self.assertIn("acme", [t["id"] for t in SERVER.get("/v1/kv/stats")["tenants"]])

    def test_a_scrape_is_quick(self):
        wire = Wire(SERVER)
        times = []
        for _ in range(30):
            began = time.perf_counter()
            wire.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = wire.until(b"\r\n\r\n")
            length = int(re.search(rb"Content-Length: (\d+)", head).group(1))
            while len(wire.buffer) < length:
                wire.buffer += wire.socket.recv(65536)
            wire.buffer = b""
            times.append(time.perf_counter() - began)
        wire.close()
        print(f"a scrape over HTTP: {min(times) * 1e3:.2f} ms, median {sorted(times)[15] * 1e3:.2f} ms")
        self.assertLess(min(times), 0.01)  # under a millisecond, on a machine that does nothing else

    def test_blocks_add_up(self):
        found = families()
        states = {s.labels["state"]: s.value for s in found["kv_blocks"].samples}
        self.assertEqual(sum(states.values()), int(found["vllm:cache_config_info"].samples[0].labels["num_gpu_blocks"]))
        wait_for(lambda: total(families(), "vllm:num_requests_running") == 0)


def ask(salt):
    return {"model": "m", "prompt": [60 + (salt * 31 + i * i) % 150 for i in range(100)], "max_tokens": 4, "temperature": 0,
            "ignore_eos": True}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([WRITE_TINY, folder], check=True)
        with Server(QUIRE, f"{folder}/llama-F32.gguf", "--kv-cache-memory", "64MiB") as SERVER:
            unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
