"""llama-server's POST /completion: whole, streamed, with tokens, probabilities and grammars; equal to OpenAI's completions.

    check_llama.py QUIRE WRITE_TINY
"""
import json
import unittest

from kv_testing import QUIRE, tiny
from serving import Server


class Completes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(QUIRE, tiny("llama-F32"))

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def complete(self, **body):
        return self.server.post("/completion", {"prompt": "Once upon", "n_predict": 12, "temperature": 0, **body})

    def test_whole_and_streamed(self):
        whole = self.complete()
        other = self.server.post("/v1/completions", {"model": "m", "prompt": "Once upon", "max_tokens": 12, "temperature": 0})
        self.assertEqual(whole["content"], other["choices"][0]["text"])
        self.assertEqual((whole["tokens_evaluated"], whole["tokens_predicted"]),
                         (other["usage"]["prompt_tokens"], other["usage"]["completion_tokens"]))
        self.assertTrue(whole["stop"])
        self.assertIn(whole["stop_type"], ("limit", "eos"))
        t = whole["timings"]
        self.assertEqual(t["cache_n"] + t["prompt_n"], whole["tokens_evaluated"])
        self.assertGreater(t["predicted_ms"], 0)
        _, headers, raw = self.server.call("POST", "/completion", {"prompt": "Once upon", "n_predict": 12, "temperature": 0,
                                                                  "stream": True, "return_tokens": True}, raw=True)
        events = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: ")]
        self.assertEqual("".join(e["content"] for e in events), whole["content"])
        self.assertEqual([e["stop"] for e in events], [False] * (len(events) - 1) + [True])
        self.assertEqual(events[-1]["tokens_predicted"], whole["tokens_predicted"])
        self.assertNotIn("[DONE]", raw.decode())
        tokens = [t for e in events for t in e.get("tokens", [])]
        self.assertEqual(self.complete(return_tokens=True)["tokens"][:len(tokens)], tokens)

    def test_tokens_stops_and_cache(self):
        tokens = self.server.post("/tokenize", {"content": "Once upon", "add_special": True})["tokens"]
        self.assertEqual(self.complete(prompt=tokens)["content"], self.complete()["content"])
        word = self.complete()["content"][2:4]
        stopped = self.complete(stop=[word])
        self.assertEqual((stopped["stop_type"], stopped["stopping_word"]), ("word", word))
        self.assertNotIn(word, stopped["content"])
        long = "x" * 200
        self.complete(prompt=long)
        self.assertGreater(self.complete(prompt=long)["tokens_cached"], 150)
        self.assertEqual(self.complete(prompt=long, cache_prompt=False)["tokens_cached"], 0)

    def test_probabilities_and_shapes(self):
        answer = self.complete(n_probs=3)
        self.assertEqual(len(answer["completion_probabilities"]), answer["tokens_predicted"])
        for p in answer["completion_probabilities"]:
            self.assertEqual(len(p["top_logprobs"]), 3)
            self.assertEqual(p["id"], p["top_logprobs"][0]["id"])
        shaped = self.complete(grammar='root ::= "yes" | "no"', n_predict=8)["content"]
        self.assertIn(shaped, ("yes", "no"))
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
        self.assertIn(json.loads(self.complete(json_schema=schema, n_predict=64)["content"]), ({"a": True}, {"a": False}))

    def test_errors_and_explanations(self):
        for bad in ({"prompt": ["a", "b"]}, {"n_predict": -3}, {"logit_bias": [[99999, 1]]}, {"temperature": 3}):
            status, _, error = self.server.call("POST", "/completion", {"prompt": "a", **bad})
            self.assertEqual((status, error["error"]["param"]), (400, next(iter(bad))))
        self.assertEqual(self.complete(kv={"report": ["explain"]})["kv"]["prompt_tokens"], self.complete()["tokens_evaluated"])


if __name__ == "__main__":
    unittest.main(argv=["check_llama"])
