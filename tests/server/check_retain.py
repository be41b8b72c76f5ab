#!/usr/bin/env python3
"""Which tokens stay, which are read and which are reused, chosen per request: check_retain.py QUIRE WRITE_TINY"""
import sys
import unittest

from kv_testing import KvTest, tiny
from serving import in_threads

WAYS = [{"budget": {"policy": "snapkv", "ratio": 0.3}}, {"budget": {"policy": "streaming", "tokens": 100}},
        {"budget": {"policy": "h2o", "ratio": 0.25, "merge": "value"}}, {"window": {"size": 64, "sink": 4}},
        {"budget": {"policy": "expected", "ratio": 0.3, "per_head": True}, "format": "fp8-e4m3"},
        {"budget": {"policy": "kvzip", "ratio": 0.4}}, {"window": {"size": 64}},
        {"budget": {"policy": "keydiff", "tokens": 80, "every": 32}},
        {"select": {"policy": "quest", "tokens": 96}}, {"select": {"policy": "xattention", "threshold": 0.5}},
        {"select": {"policy": "vertical-slash", "columns": 20, "diagonals": 20}, "format": "int8"},
        {"select": {"policy": "xattention", "threshold": 0.5}, "budget": {"policy": "h2o", "ratio": 0.3}}]


def prompt(number):
    return f"{number}: " + "what is not looked at may go, and the rest stays where it was. " * 6


class Retain(KvTest):
    model = tiny("llama-F32")

    def test_a_hit_says_what_a_miss_says(self):
        for i, way in enumerate(WAYS):
            with self.subTest(way=way):
                miss = self.complete(prompt(i), {**way, "reuse": "none"})
                hit = self.complete(prompt(i), way)
                self.assertEqual(hit["choices"][0]["text"], miss["choices"][0]["text"])
                self.assertEqual(hit["kv"]["bytes"], miss["kv"]["bytes"])
                self.assertTrue(hit["kv"]["lossy"])
                if "budget" in hit["kv"]:
                    self.assertLess(hit["kv"]["bytes"], hit["kv"]["budget"]["bytes_whole"])
                if "select" in hit["kv"]:
                    self.assertLess(hit["kv"]["select"]["bytes_read"], hit["kv"]["select"]["bytes_whole"])

    def test_neighbours_change_nothing(self):
        asks = [lambda i=i, way=way: self.text(prompt(i), way) for i, way in enumerate(WAYS)]
        alone = [ask() for ask in asks]
        for _ in range(2):
            self.assertEqual(in_threads(asks), alone)

    def test_what_makes_no_sense_is_refused(self):
        error = lambda kv, **more: self.complete("x", kv, 400, **more)["error"]
        self.assertEqual(error({"budget": {"policy": "snapkv", "ratio": 0.3}, "allow_lossy": False})["code"],
                         "lossy_not_allowed")
        self.assertEqual(error({"window": {"size": 64}, "allow_lossy": False})["code"], "lossy_not_allowed")
        for budget in ({"policy": "nobody", "ratio": 0.3}, {"policy": "snapkv"}, {"policy": "snapkv", "ratio": 2},
                       {"policy": "snapkv", "ratio": 0.3, "tokens": 5}, {"policy": "snapkv", "tokens": 0}):
            self.assertEqual(error({"budget": budget})["code"], "invalid_value", budget)
        self.assertEqual(error({"budget": {"policy": "snapkv", "ratio": 0.3, "typo": 1}})["code"], "unknown_parameter")
        exact = {"k": "int8", "v": "int8", "recent_exact": 64}
        self.assertIn("recent", error({"budget": {"policy": "snapkv", "ratio": 0.3}, "format": exact})["message"])
        for select in ({"policy": "nobody"}, {"policy": "quest"}, {"policy": "quest", "threshold": 0.5},
                       {"policy": "xattention", "tokens": 5}):
            self.assertEqual(error({"select": select})["code"], "invalid_value", select)
        self.assertEqual(error({"select": {"tokens": 64}, "allow_lossy": False})["code"], "lossy_not_allowed")
        self.assertIn("budget", error({"select": {"tokens": 64}, "budget": {"policy": "snapkv", "ratio": 0.3}})["message"])
        self.assertEqual(error({"reuse": "approximate", "allow_lossy": False})["code"], "lossy_not_allowed")
        error({"reuse": "approximate", "format": "int8"})
        error({"select": {"tokens": 64}}, use_beam_search=True, best_of=2)
        error({"budget": {"policy": "snapkv", "ratio": 0.3}, "window": {"size": 5}})
        self.assertIn("cut", error({"budget": {"policy": "knorm", "ratio": 0.3, "cut": 32},
                                    "select": {"policy": "xattention"}})["message"])
        error({"budget": {"policy": "snapkv", "ratio": 0.3}}, use_beam_search=True, best_of=2)

    def test_texts_are_found_behind_other_prefixes(self):
        texts = ["the first text is about one thing, and goes on for a while about it. " * 3,
                 "another speaks of something else, in other words and at some length. " * 3]
        for text in texts:
            self.complete("it is said that " + text, {"reuse": "auto"})
        both = "question: " + texts[1] + " and " + texts[0] + " so what?"
        blended = self.complete(both, {"reuse": "approximate", "recompute": 0.2})
        self.assertGreater(blended["kv"]["approximate_tokens"], 200)
        self.assertTrue(blended["kv"]["lossy"])
        whole = self.complete(both, {"reuse": "approximate", "recompute": 1})
        self.assertEqual(whole["kv"]["approximate_tokens"], 0)
        plain = self.complete(both, {"reuse": "auto"})
        self.assertEqual(plain["kv"]["cached_tokens"], 0)
        self.assertEqual(plain["choices"][0]["text"], whole["choices"][0]["text"])

    def test_clearing_drops_what_was_left_at_a_cut(self):
        way = {"budget": {"policy": "knorm", "ratio": 0.3, "cut": 128}}
        cached = lambda: self.complete(prompt(77) + "and then?", way)["kv"]["cached_tokens"]
        self.assertLess(cached(), 32)
        self.assertEqual(cached(), 128)
        for clear in ("/v1/kv/clear", "/reset_prefix_cache"):
            code, _, body = self.server.call("POST", clear, {})
            self.assertEqual(code, 200, body)
            self.assertLess(cached(), 32, clear)
            self.assertEqual(cached(), 128, clear)

    def test_none_keeps_everything(self):
        plain = self.complete(prompt(1), {"reuse": "none"})
        none = self.complete(prompt(1), {"budget": {"policy": "none"}, "reuse": "none"})
        self.assertEqual(none["choices"][0]["text"], plain["choices"][0]["text"])
        self.assertFalse(none["kv"]["lossy"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
