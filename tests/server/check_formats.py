#!/usr/bin/env python3
"""Cache formats, chosen per request: check_formats.py QUIRE WRITE_TINY"""
import sys
import unittest

from kv_testing import QUIRE, KvTest, tiny
from serving import Server, in_threads

WAYS = ["f16", "int8", "q8", {"k": "int8", "v": "hadamard-int4"}, {"k": "kivi-2", "recent_exact": 40, "sinks": 4},
        {"k": "q4_0", "skip_layers": [0]}]


def prompt(number):
    return f"{number}: " + "every block is encoded once, when it is full. " * 6


class Formats(KvTest):
    model = tiny("gemma3-F32")

    def test_a_hit_says_what_a_miss_says(self):
        for way in WAYS:
            with self.subTest(way=way):
                first = self.complete(prompt(1), {"format": way})
                self.assertEqual(first["kv"]["cached_tokens"], 0)  # formats share nothing
                again = self.complete(prompt(1), {"format": way})
                self.assertGreater(again["kv"]["cached_tokens"], 200)
                self.assertEqual(first["choices"][0]["text"], again["choices"][0]["text"])
                cold = self.complete(prompt(1), {"format": way, "reuse": "none"})
                self.assertEqual(cold["kv"]["cached_tokens"], 0)
                self.assertEqual(first["choices"][0]["text"], cold["choices"][0]["text"])
                self.assertEqual(first["kv"]["lossy"], way != "f16")

    def test_side_by_side(self):
        asks = [lambda way=way: self.text(prompt(2), {"format": way, "reuse": "none"}) for way in WAYS]
        alone = [ask() for ask in asks]
        self.assertEqual(in_threads(asks), alone)

    def test_bytes_and_names(self):
        exact = self.complete(prompt(3), {"format": "float16"})["kv"]
        half = self.complete(prompt(3), {"format": "u8"})["kv"]
        self.assertEqual(half["format"], {"k": "int8", "v": "int8"})
        self.assertLess(half["bytes"], 0.8 * exact["bytes"])

    def test_refusals(self):
        def refused(kv):
            code, _, body = self.server.call("POST", "/v1/completions",
                                             {"model": "m", "prompt": "x", "max_tokens": 1, "kv": kv})
            self.assertEqual(code, 400, body)
            return body["error"]
        error = refused({"format": "int9"})
        self.assertEqual(error["code"], "kv_format_unsupported")
        self.assertIn("hadamard-int4", error["message"])
        self.assertEqual(refused({"format": "q4_0"})["code"], "lossy_not_allowed")
        self.assertEqual(refused({"format": {"k": "int8", "skip_layers": [99]}})["code"], "kv_format_unsupported")
        self.assertEqual(refused({"format": {"k": "f32", "v": "f16"}})["code"], "kv_format_unsupported")

    def test_what_is_lost_is_measured(self):
        self.complete(prompt(4), {"format": "q4_0"})
        _, _, text = self.server.call("GET", "/metrics", raw=True)
        lost = [float(line.split()[-1]) for line in text.decode().splitlines() if line.startswith("kv_quant_error{")]
        self.assertEqual(len(lost), 2)
        for x in lost:
            self.assertTrue(0 < x < 0.05, x)
        _, _, models = self.server.call("GET", "/v1/models")
        self.assertIn("kivi-2", models["data"][0]["kv"]["formats"])

    def test_exact_blocks_are_converted(self):
        with Server(QUIRE, tiny("qwen3-Q8_0")) as server:
            cached = lambda **kv: self.complete(prompt(6), kv, server=server)["kv"]["cached_tokens"]
            self.assertEqual(cached(), 0)
            converted = cached(format="int8", convert=True)
            self.assertGreater(converted, 200)  # encoded, not computed
            self.assertEqual(cached(format="int8"), 0)  # under an identity of its own
            self.assertGreaterEqual(cached(format="int8", convert=True), converted)

    def test_a_server_in_a_format_of_its_own(self):
        with Server(QUIRE, self.model, "--kv-format", "int8", "--kv-recent-exact", "32") as server:
            first, again = (self.complete(prompt(5), {}, server=server) for _ in range(2))
            self.assertEqual(first["choices"][0]["text"], again["choices"][0]["text"])
            self.assertGreater(again["kv"]["cached_tokens"], 200)
            self.assertEqual(again["kv"]["format"], {"k": "int8", "v": "int8", "recent_exact": 32})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
