"""Contexts larger than memory: a server whose cache is too small gives the answers of one whose cache is not.

    check_resident.py QUIRE WRITE_TINY [MODEL]
"""
import pathlib
import random
import sys
import tempfile
import unittest

from kv_testing import QUIRE, tiny
from serving import Server

MODEL = sys.argv[3] if len(sys.argv) > 3 and pathlib.Path(sys.argv[3]).exists() else None


def tokens(seed, count):
    chance = random.Random(seed)
    return [chance.randrange(32, 122) for _ in range(count)]


def ask(server, prompt, kv=None, status=200, **more):
    code, _, body = server.call("POST", "/v1/completions", {
        "model": "m", "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 2,
        "kv": {"report": ["usage"], **(kv or {})}, **more})
    assert code == status, body
    return body


def said(answer):
    return answer["choices"][0]["text"], answer["choices"][0]["logprobs"]


class Resident(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.top.cleanup()

    def small(self, model, memory, *more):
        return Server(QUIRE, model, "-c", 10000, "--kv-cache-memory", memory, "--kv-dir", self.top.name + "/kv",
                      "--kv-disk", "1GiB", *more)

    def check_same(self, model, memory, count):
        prompt = tokens(1, count)
        with Server(QUIRE, model, "-c", 10000, "--kv-cache-memory", "512MiB") as large:
            expected = said(ask(large, prompt))
            longer = prompt + tokens(2, 40)
            after = said(ask(large, longer))
        with self.small(model, memory) as small:
            refused = ask(small, prompt, status=400)
            self.assertIn("kv.resident", refused["error"]["message"])
            answer = ask(small, prompt, {"resident": memory})
            self.assertEqual(said(answer), expected)
            report = answer["kv"]["resident"]
            self.assertGreater(report["cold_blocks"], 0)
            self.assertGreater(report["bytes_read_per_token"], 0)
            self.assertTrue(0 <= report["hidden"] <= 1)
            # The conversation goes on from its blocks.
            more = ask(small, longer, {"resident": memory})
            self.assertEqual(said(more), after)
            self.assertGreaterEqual(more["usage"]["prompt_tokens_details"]["cached_tokens"], count - 64)
            self.assertGreater(more["kv"]["cached_by_tier"]["disk"], 0)
            stats = small.get("/v1/kv/stats")["resident"]
            self.assertGreater(stats["bytes_read"], 0)
            self.assertEqual(stats["lost_blocks"], 0)
            self.assertIn("kv_cold_bytes_total", small.call("GET", "/metrics", raw=True)[2].decode())
        # After a restart too, and by the server's default.
        with self.small(model, memory, "--kv-resident", memory) as small:
            again = ask(small, longer)
            self.assertEqual(said(again), after)
            self.assertGreaterEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], count - 64)

    def test_1_tiny(self):
        self.check_same(tiny("llama-F32"), "2MiB", 8000)

    def test_2_what_makes_no_sense_is_refused(self):
        with self.small(tiny("llama-F32"), "2MiB") as server:
            for resident, needle in ((0, "more than 0"), ("many", "size in bytes"), ("1KiB", "too few"), (-5, "size in bytes")):
                body = ask(server, tokens(3, 8000), {"resident": resident}, status=400)
                self.assertIn(needle, body["error"]["message"])
            body = ask(server, tokens(3, 8000), {"resident": "2MiB"}, status=400, n=2)
            self.assertIn("n, best_of and beam search", body["error"]["message"])
            ask(server, tokens(3, 100), {"resident": "1KiB"}, status=400)
            ask(server, tokens(3, 100), {"resident": "2MiB"})

    @unittest.skipUnless(MODEL, "needs a model")
    def test_3_a_real_model(self):
        self.check_same(MODEL, "8MiB", 900)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
