#!/usr/bin/env python3
"""Cache formats, chosen per request: check_formats.py QUIRE WRITE_TINY"""
import subprocess
import sys
import tempfile
import threading
import unittest

from serving import Server

QUIRE, WRITE_TINY = sys.argv[1:3]
folder = tempfile.TemporaryDirectory()
subprocess.run([WRITE_TINY, folder.name], check=True)
MODEL = f"{folder.name}/gemma3-F32.gguf"
WAYS = ["f16", "int8", "q8", {"k": "int8", "v": "hadamard-int4"}, {"k": "kivi-2", "recent_exact": 40, "sinks": 4},
        {"k": "q4_0", "skip_layers": [0]}]


def prompt(number):
    return f"{number}: " + "every block is encoded once, when it is full. " * 6


class Formats(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(QUIRE, MODEL)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def complete(self, text, way, status=200, **kv):
        code, _, body = self.server.call("POST", "/v1/completions", {
            "model": "m", "prompt": text, "max_tokens": 40, "temperature": 0, "ignore_eos": True,
            "kv": {"format": way, "allow_lossy": True, "report": ["usage"], **kv}})
        self.assertEqual(code, status, body)
        return body

    def test_a_hit_says_what_a_miss_says(self):
        for way in WAYS:
            with self.subTest(way=way):
                first = self.complete(prompt(1), way)
                self.assertEqual(first["kv"]["cached_tokens"], 0)  # formats share nothing
                again = self.complete(prompt(1), way)
                self.assertGreater(again["kv"]["cached_tokens"], 200)
                self.assertEqual(first["choices"][0]["text"], again["choices"][0]["text"])
                cold = self.complete(prompt(1), way, reuse="none")
                self.assertEqual(cold["kv"]["cached_tokens"], 0)
                self.assertEqual(first["choices"][0]["text"], cold["choices"][0]["text"])
                self.assertEqual(first["kv"]["lossy"], way != "f16")

    def test_side_by_side(self):
        alone = [self.complete(prompt(2), way, reuse="none")["choices"][0]["text"] for way in WAYS]
        together = [None] * len(WAYS)

        def ask(i):
            together[i] = self.complete(prompt(2), WAYS[i], reuse="none")["choices"][0]["text"]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(WAYS))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(alone, together)

    def test_bytes_and_names(self):
        exact = self.complete(prompt(3), "float16")["kv"]
        half = self.complete(prompt(3), "u8")["kv"]
        self.assertEqual(half["format"], {"k": "int8", "v": "int8"})
        self.assertLess(half["bytes"], 0.8 * exact["bytes"])

    def test_refusals(self):
        def refused(kv):
            code, _, body = self.server.call("POST", "/v1/completions",
                                             {"model": "m", "prompt": "x", "max_tokens": 1, "kv": kv})
            self.assertEqual(code, 400)
            return body["error"]
        error = refused({"format": "int9"})
        self.assertEqual(error["code"], "kv_format_unsupported")
        self.assertIn("hadamard-int4", error["message"])
        self.assertEqual(refused({"format": "q4_0"})["code"], "lossy_not_allowed")
        self.assertEqual(refused({"format": {"k": "int8", "skip_layers": [99]}})["code"], "kv_format_unsupported")
        self.assertEqual(refused({"format": {"k": "f32", "v": "f16"}})["code"], "kv_format_unsupported")

    def test_what_is_lost_is_measured(self):
        self.complete(prompt(4), "q4_0")
        _, _, text = self.server.call("GET", "/metrics", raw=True)
        lost = [float(line.split()[-1]) for line in text.decode().splitlines() if line.startswith("kv_quant_error{")]
        self.assertEqual(len(lost), 2)
        for x in lost:
            self.assertTrue(0 < x < 0.05, x)
        _, _, models = self.server.call("GET", "/v1/models")
        self.assertIn("kivi-2", models["data"][0]["kv"]["formats"])

    def test_exact_blocks_are_converted(self):
        server = Server(QUIRE, f"{folder.name}/qwen3-Q8_0.gguf")
        try:
            def ask(**kv):
                code, _, body = server.call("POST", "/v1/completions", {
                    "model": "m", "prompt": prompt(6), "max_tokens": 20, "temperature": 0, "ignore_eos": True,
                    "kv": {"report": ["usage"], **kv}})
                self.assertEqual(code, 200, body)
                return body["kv"]["cached_tokens"], body["choices"][0]["text"]
            self.assertEqual(ask()[0], 0)
            cached, _ = ask(format="int8", convert=True)
            self.assertGreater(cached, 200)  # encoded, not computed
            self.assertEqual(ask(format="int8")[0], 0)  # under an identity of its own
            self.assertGreaterEqual(ask(format="int8", convert=True)[0], cached)
        finally:
            server.stop()

    def test_a_server_in_a_format_of_its_own(self):
        server = Server(QUIRE, MODEL, "--kv-format", "int8", "--kv-recent-exact", "32")
        try:
            ask = {"model": "m", "prompt": prompt(5), "max_tokens": 20, "temperature": 0, "kv": {}}
            _, _, first = server.call("POST", "/v1/completions", ask)
            _, _, again = server.call("POST", "/v1/completions", ask)
            self.assertEqual(first["choices"][0]["text"], again["choices"][0]["text"])
            self.assertGreater(again["kv"]["cached_tokens"], 200)
            self.assertEqual(again["kv"]["format"], {"k": "int8", "v": "int8", "recent_exact": 32})
        finally:
            server.stop()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
