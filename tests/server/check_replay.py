"""A server records what its cache saw; the recording holds no text, and a replay of it has the recorded hits. The plan of a
running server, and `quire top`.

    check_replay.py QUIRE WRITE_TINY
"""
import gzip
import json
import os
import random
import subprocess
import tempfile
import unittest

from kv_testing import QUIRE, tiny
from serving import Server

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def read(path):
    with open(path) as f:
        return f.read()


def quire(*arguments):
    done = subprocess.run([QUIRE, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def conversation(server, seed, requests):
    """Turns of several users, one after another."""
    rng = random.Random(seed)
    texts = [f"user {u} " + " ".join(rng.choices(WORDS, k=30)) for u in range(6)]
    for _ in range(requests):
        u = rng.randrange(len(texts))
        texts[u] += " " + " ".join(rng.choices(WORDS, k=8))
        if len(texts[u]) > 1500:
            texts[u] = f"user {u} " + " ".join(rng.choices(WORDS, k=30))
        code, _, answer = server.call("POST", "/v1/completions", {
            "model": "m", "prompt": texts[u], "max_tokens": 3, "temperature": 0, "ignore_eos": True,
            "kv": {"salt": "s3cr3t-salt"} if u == 0 else {}})
        assert code == 200, answer


class Replays(unittest.TestCase):
    def record(self, *options, requests=60):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "trace.jsonl")
        server = Server(QUIRE, tiny("llama-F32"), "--trace", path, *options)
        try:
            conversation(server, 7, requests)
        finally:
            server.stop()
        return path

    def test_a_replay_at_the_recorded_settings_has_the_recorded_hits(self):
        path = self.record("--kv-cache-memory", "64MiB")
        text = read(path)
        for secret in ("alpha", "user", "s3cr3t"):
            self.assertNotIn(secret, text)
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        kinds = [json.loads(line).get("e") for line in text.splitlines()]
        self.assertEqual((kinds.count("attach"), kinds.count("end"), kinds.count("gap")), (60, 60, 0))
        (same,) = quire("replay", path, "--json")
        self.assertEqual((same["requests"], same["differing_requests"], same["no_room"]), (60, 0, 0), same)
        self.assertEqual(same["hit_blocks"], same["recorded_hit_blocks"])
        self.assertGreater(same["hit_blocks"], 0)
        page = path + ".html"
        small, large = quire("replay", path, "--json", "--evictor", "lru", "--capacity-blocks", "30,1000", "--plot", page)
        self.assertLess(small["hit_blocks"], large["hit_blocks"])
        self.assertGreater(small["evictions"]["evicted_capacity"], 0)
        self.assertIn("<svg", read(page))

    def test_the_file_has_a_bound(self):
        path = self.record("--trace-max", "4KiB", requests=40)
        self.assertLessEqual(os.path.getsize(path), 4096)
        self.assertEqual(read(path).splitlines()[-1], '{"e":"full"}')
        (cut,) = quire("replay", path, "--json", "--capacity-blocks", "100")
        self.assertLess(cut["requests"], 40)

    def test_what_if_in_virtual_time(self):
        path = self.record("--kv-cache-memory", "64MiB", requests=200)
        (head, *_), (costs,) = [json.loads(x) for x in read(path).splitlines()[:1]], [
            json.loads(x) for x in read(path).splitlines() if '"costs"' in x]
        self.assertGreater(head["layers"][0]["kv_heads"], 0)
        self.assertGreater(costs["step_ms"] + costs["prompt_token_us"], 0)
        (same,) = quire("replay", path, "--order", "virtual", "--json")
        recorded = same["recorded"]
        self.assertEqual((same["order"], same["requests"], same["refused"]), ("virtual", 200, 0))
        # One after another, and room for all: it differs only where a request came before the last one had ended.
        self.assertAlmostEqual(same["hit_blocks"], recorded["hit_blocks"], delta=recorded["hit_blocks"] // 50)
        self.assertAlmostEqual(same["hit_rate"], recorded["hit_rate"], delta=0.01)
        print(f"first token p50: virtual {same['first_token_ms']['p50']:.2f} ms, recorded {recorded['first_token_ms']['p50']:.2f} ms; "
              f"per token {same['token_ms']['p50']:.2f} and {recorded['token_ms']['p50']:.2f} ms")
        (small,) = quire("replay", path, "--capacity-blocks", "40", "--json")
        self.assertLess(small["hit_blocks"], same["hit_blocks"])
        self.assertGreater(small["evictions"]["evicted_capacity"], 0)
        (disk,) = quire("replay", path, "--capacity-blocks", "40", "--tier", "disk:1GiB:4GiB:1", "--costs",
                        '{"step_ms": 5, "prompt_token_us": 5000}', "--speed", "0.01", "--json")
        self.assertGreater(disk["hit_tokens"]["disk"], 0)
        (less,) = quire("replay", path, "--kv-format", "int8", "--json")
        self.assertGreater(less["capacity_blocks"], 2 * same["capacity_blocks"])  # of f32
        (larger,) = quire("replay", path, "--block-size", "64", "--json")
        self.assertEqual(larger["block_size"], 64)
        self.assertGreater(larger["hit_tokens"]["memory"], 0)
        curve = path + ".html"
        quire("replay", path, "--evictor", "lru,odds", "--plot", curve, "--json")
        self.assertEqual(read(curve).count("<polyline"), 2)

    def test_a_live_server_gets_the_trace(self):
        path = self.record("--kv-cache-memory", "64MiB", requests=40)
        server = Server(QUIRE, tiny("llama-F32"), "--kv-cache-memory", "64MiB")
        try:
            (live,) = quire("replay", path, "--url", server.url, "--vocabulary", "200", "--speed", "20", "--json")
        finally:
            server.stop()
        self.assertEqual((live["order"], live["requests"], live["failed"]), ("live", 40, 0), live)
        self.assertGreater(live["hit_rate"], 0.2)

    def test_mooncakes_traces(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.jsonl")
            with open(path, "w") as f:
                for i in range(300):
                    ids = [0, 1, 2 + i % 7, 100 + i]
                    f.write(json.dumps({"timestamp": 200 * i, "input_length": 1600, "output_length": 20, "hash_ids": ids}) + "\n")
            (opaque,) = quire("replay", path, "--format", "mooncake", "--evictor", "lru", "--capacity-blocks", "10000", "--json")
            self.assertEqual((opaque["blocks"], opaque["hit_blocks"]), (1200, 2 * 299 + 293))
            self.assertAlmostEqual(opaque["hit_share"], opaque["hit_blocks"] / 1200)
            (served,) = quire("replay", path, "--format", "mooncake", "--evictor", "lru", "--capacity-blocks", "10000",
                              "--order", "virtual", "--json")
            self.assertEqual(served["hit_blocks"], opaque["hit_blocks"])  # the last block is not whole
            self.assertGreater(served["first_token_ms"]["p99"], 0)

    def test_what_a_trace_may_not_do(self):
        head = '{"quire_trace":1,"block_size":32,"block_bytes":1,"cache_bytes":1,"capacity_blocks":9,"format":"f16","evictor":"odds"}\n'
        with tempfile.TemporaryDirectory() as folder:
            for number, text in enumerate((
                    "", "{}", head + "[1]\n", head + '{"e":"attach","prompt":-1}\n', head + '{"e":"attach","prompt":1e99}\n',
                    head + '{"e":"store","k":"zz"}\n', head.replace("32", "33"), head.replace("32", "0"),
                    head + '{"e":"end","first_token_s":-5}\n', head + '{"e":"costs","step_ms":1e99}\n', "x" * (17 << 20))):
                path = os.path.join(folder, str(number))
                with gzip.open(path, "wb") as f:
                    f.write(text.encode())
                for order in "recorded", "virtual":
                    done = subprocess.run([QUIRE, "replay", path, "--order", order, "--capacity-blocks", "9"], capture_output=True,
                                          text=True, timeout=60)
                    self.assertIn(done.returncode, (1, 2), (text[:100], done))
                    self.assertIn("error:", done.stderr)
            path = os.path.join(folder, "cut.gz")
            with open(path, "wb") as f:
                f.write(gzip.compress((head * 50).encode())[:-9])
            done = subprocess.run([QUIRE, "replay", path], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 1, done)

    def test_plan_says_what_the_server_has(self):
        server = Server(QUIRE, tiny("llama-F32"), "--kv-cache-memory", "16MiB")
        try:
            stats = server.call("GET", "/v1/kv/stats")[2]
            code, _, plan = server.call("POST", "/v1/kv/plan", {"context": 256})
            self.assertEqual(code, 200, plan)
            self.assertEqual(plan["block_size"], 32)
            per_block = plan["bytes_per_token"] * plan["block_size"]
            self.assertLessEqual(plan["max_concurrency"] * plan["bytes_per_sequence"], 16 << 20)
            self.assertGreater((plan["max_concurrency"] + 8) * plan["bytes_per_sequence"], 16 << 20)
            self.assertTrue(stats and per_block > 0)
            code, _, plan = server.call("POST", "/v1/kv/plan", {
                "config": {"layers": 30, "kv_heads": 3, "head_dim": 64}, "context": 4096, "concurrency": 1, "format": "f16",
                "workload": {"prompt": 2000, "output": 200, "shared_prefix": 1500, "prefix_groups": 4}})
            self.assertEqual(code, 200, plan)
            self.assertEqual(plan["bytes_per_token"], 23040)
            self.assertAlmostEqual(plan["est"]["hit_rate"], 1472 / 2000)
            self.assertIn("q8_0", [f["format"] for f in plan["by_format"]])
            for bad in ({"format": "nonsense"}, {"model": "nonsense"}, {"config": {"layers": 3}}, {"context": -1},
                        {"config": {"layers": 512, "kv_heads": 128, "head_dim": 512}, "context": 1 << 24}):
                code, _, error = server.call("POST", "/v1/kv/plan", bad)
                self.assertIn(code, (400, 404), error)
            conversation(server, 3, 5)
            (top,) = quire("top", server.url, "--count", "1", "--json")
            self.assertGreater(top["hit_rate"], 0)
            self.assertEqual(top["running"], 0)
        finally:
            server.stop()


if __name__ == "__main__":
    unittest.main(argv=["check_replay"])
