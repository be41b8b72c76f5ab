"""A server records what its cache saw; the recording holds no text, and a replay of it has the recorded hits. The plan of a
running server, and `quire top`.

    check_replay.py QUIRE WRITE_TINY
"""
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
