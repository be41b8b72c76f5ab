"""What `quire plan` and POST /v1/kv/plan promise is what `serve` then does: bytes, blocks and concurrency are equal, hit rates of a
recorded trace and of a described workload differ by less than 0.05, and times are printed beside each other.

    check_plan.py QUIRE WRITE_TINY
"""
import concurrent.futures
import json
import os
import random
import subprocess
import tempfile
import threading
import time
import unittest

from kv_testing import QUIRE, tiny
from serving import Server

MIB = 1 << 20
MODEL = tiny("llama-F32")


def plan(*arguments):
    done = subprocess.run([QUIRE, "plan", MODEL, "--format", "f32", "--weights", "0", "--json", *map(str, arguments)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def metric(server, name):
    text = server.call("GET", "/metrics", raw=True)[2].decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{") or line.startswith(name + " "))


def hit_rate(server, since=(0, 0)):
    time.sleep(0.3)  # the engine publishes its counts after the step that ended the last answer
    now = metric(server, "vllm:prefix_cache_hits_total"), metric(server, "vllm:prefix_cache_queries_total")
    return (now[0] - since[0]) / (now[1] - since[1])


WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def talks(server, seed, requests):
    """Turns of several people, one request after another. Returns the times to the first token, as the server saw them."""
    rng = random.Random(seed)
    texts = [f"user {u} " + " ".join(rng.choices(WORDS, k=30)) for u in range(24)]
    times = []
    for _ in range(requests):
        u = min(int(rng.expovariate(0.15)), len(texts) - 1)
        texts[u] += " " + " ".join(rng.choices(WORDS, k=8))
        if len(texts[u]) > 440:
            texts[u] = f"user {u} " + " ".join(rng.choices(WORDS, k=30))
        answer = server.post("/v1/completions", {"model": "m", "prompt": texts[u], "max_tokens": 3, "temperature": 0,
                                                 "ignore_eos": True, "kv": {"report": ["timing"]}})
        times.append(answer["kv"]["timing"]["ttft_ms"])
    return times


class Plans(unittest.TestCase):
    def test_bytes_blocks_and_concurrency(self):
        context = 256
        promised = plan("--memory", "6MiB", "--context", context)
        with Server(QUIRE, MODEL, "--kv-cache-memory", "6MiB", "--max-num-seqs", "256") as server:
            stats = server.get("/v1/kv/stats")
            self.assertEqual(stats["bytes_per_token"]["f32"], promised["bytes_per_token"])
            self.assertEqual(stats["tiers"][0]["capacity_bytes"], 6 * MIB)
            asked = {"memory_bytes": 6 * MIB, "weights_bytes": 0, "context": context}
            routed = server.post("/v1/kv/plan", asked)
            for field in ("bytes_per_token", "max_concurrency", "blocks", "max_tokens", "kv_pool_bytes"):
                self.assertEqual(routed[field], promised[field], field)
            n = promised["max_concurrency"]
            self.assertGreater(n, 4)

            def full(seed):
                tokens = [(seed * 7919 + i * 31) % 200 + 20 for i in range(32)]
                return server.post("/v1/completions", {"model": "m", "prompt": tokens, "max_tokens": context - 32,
                                                       "temperature": 0, "ignore_eos": True, "kv": {"reuse": "none"}})

            def together(count, seed):
                """Preemptions, and how many ran at once at most."""
                server.post("/v1/kv/clear", {"select": {"all": True}})
                before, most, over = metric(server, "vllm:num_preemptions_total"), 0, threading.Event()

                def watch():
                    nonlocal most
                    while not over.is_set():
                        most = max(most, metric(server, "vllm:num_requests_running"))
                        time.sleep(0.01)
                watcher = threading.Thread(target=watch)
                watcher.start()
                with concurrent.futures.ThreadPoolExecutor(count) as pool:
                    list(pool.map(full, range(seed, seed + count)))
                over.set()
                watcher.join()
                time.sleep(0.3)
                return metric(server, "vllm:num_preemptions_total") - before, most

            preempted, most = together(n, 100)
            print(f"planned {n} sequences of {context} tokens: {most:.0f} ran at once, {preempted:.0f} preempted")
            self.assertEqual(preempted, 0)
            preempted, most = together(n + 1, 1000)
            print(f"with one more: {most:.0f} ran at once, {preempted:.0f} preempted")
            self.assertTrue(preempted > 0 or most <= n, (preempted, most))

    def test_hit_rate_of_a_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace.jsonl")
            with Server(QUIRE, MODEL, "--kv-cache-memory", "64MiB", "--trace", trace) as server:
                talks(server, 3, 250)
                recorded = hit_rate(server)
            for memory in ("2MiB", "3MiB", "64MiB"):
                promised = plan("--memory", memory, "--trace", trace)["trace"]
                with Server(QUIRE, MODEL, "--kv-cache-memory", memory) as server:
                    times = sorted(talks(server, 3, 250))
                    real = hit_rate(server)
                    print(f"{memory}: planned {promised['hit_rate']:.3f}, served {real:.3f} (recorded {recorded:.3f}); first token "
                          f"p50 planned {promised['first_token_ms']['p50']:.2f} ms, served {times[len(times) // 2]:.2f} ms")
                    self.assertLess(abs(promised["hit_rate"] - real), 0.05)
                    with open(trace) as f:
                        routed = server.post("/v1/kv/plan", {"memory_bytes": promised["cache_bytes"], "weights_bytes": 0,
                                                             "format": "f32", "context": 256, "trace": f.read()})
                    self.assertLess(abs(routed["est"]["hit_rate"] - promised["hit_rate"]), 0.02)
                    self.assertGreater(routed["est"]["ttft_ms"], 0)

    def test_hit_rate_of_a_workload(self):
        shape = {"prompt": 200, "output": 8, "shared_prefix": 160, "prefix_groups": 4, "qps": 4}
        with Server(QUIRE, MODEL, "--kv-cache-memory", "32MiB") as server:
            rng = random.Random(1)
            prefixes = [[rng.randrange(20, 220) for _ in range(160)] for _ in range(4)]
            for prefix in prefixes:
                server.post("/v1/completions", {"model": "m", "prompt": prefix, "max_tokens": 1})
            time.sleep(0.3)
            since = metric(server, "vllm:prefix_cache_hits_total"), metric(server, "vllm:prefix_cache_queries_total")
            for _ in range(60):
                prompt = rng.choice(prefixes) + [rng.randrange(20, 220) for _ in range(40)]
                server.post("/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 8, "ignore_eos": True})
            real = hit_rate(server, since)
            est = server.post("/v1/kv/plan", {"workload": shape})["est"]
            print(f"workload: planned {est['hit_rate']:.3f}, served {real:.3f}; first token planned {est['ttft_ms']:.2f} ms")
            self.assertLess(abs(est["hit_rate"] - real), 0.05)

    def test_what_a_stranger_may_ask(self):
        with Server(QUIRE, MODEL, "--kv-cache-memory", "4MiB") as server:
            line = {"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]}
            good = "\n".join(json.dumps({**line, "timestamp": i * 1000}) for i in range(50))
            answer = server.post("/v1/kv/plan", {"trace": good})
            self.assertEqual(answer["trace"]["requests"], 50)
            for bad in ("", "x", "{}", json.dumps({**line, "input_length": -1}), json.dumps({**line, "input_length": 1e300}),
                        json.dumps({**line, "hash_ids": "x"}), '{"quire_trace":1,"block_size":0}',
                        json.dumps({**line, "input_length": 1 << 27}), "\n".join([json.dumps(line)] * 20001),
                        '{"quire_trace":1,"block_size":32,"layers":[{"layers":99999,"kv_heads":1,"key_dim":64}]}'):
                status, _, error = server.call("POST", "/v1/kv/plan", {"trace": bad})
                self.assertEqual((status, error["error"]["param"]), (400, "trace"), (bad[:80], error))
            for bad in ([], {"step_ms": -1}, {"step_ms": "1"}):
                self.assertEqual(server.call("POST", "/v1/kv/plan", {"trace": good, "costs": bad})[0], 400)
            huge = "\n".join(json.dumps({**line, "timestamp": i, "input_length": 2000, "output_length": 50, "hash_ids": [i, i + 1, 7]})
                             for i in range(1900))
            began = time.time()
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                codes = [r[0] for r in pool.map(lambda _: server.call("POST", "/v1/kv/plan", {"trace": huge}), range(8))]
                beside = time.time()
                server.get("/health")
                self.assertLess(time.time() - beside, 1)
            print(f"8 large traces at once: {codes} in {time.time() - began:.1f} s")
            self.assertTrue(set(codes) <= {200, 400, 429} and 429 in codes, codes)


if __name__ == "__main__":
    unittest.main(argv=["check_plan"])
