"""Embeddings and rerank through OpenAI's client and plain HTTP, on a model that can talk.

    scripts/python tests/server/check_embeddings.py QUIRE MODEL

tests/reference/embeddings.json holds what transformers computes (tests/reference/make_embeddings.py).
"""
import base64
import json
import math
import os
import pathlib
import struct
import sys
import unittest

from serving import Server

QUIRE, MODEL = sys.argv[1:3]
if not os.path.exists(MODEL):
    print(f"skipped: {MODEL} is not there")
    sys.exit(77)
REFERENCE = pathlib.Path(__file__).parents[1] / "reference" / "embeddings.json"
SERVER = None
TEXTS = ["A cat sat on the mat.", "Stocks fell sharply today.", "The kitten lay on the rug.", ""]
LONG = "A long text that several requests begin with. " * 20


def floats(text):
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def embed(texts, **more):
    return SERVER.post("/v1/embeddings", {"model": "m", "input": texts, "encoding_format": "base64", **more})


def vectors(answer):
    return [floats(one["embedding"]) for one in answer["data"]]


def refused(body, param, path="/v1/embeddings", status=400):
    got, _, answer = SERVER.call("POST", path, {"model": "m", **body})
    assert got == status, (got, answer)
    assert answer["error"]["param"] == param, answer
    return answer["error"]["message"]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


class Embeddings(unittest.TestCase):
    def test_38_base64_and_float_agree_and_batches_keep_their_order(self):
        client = SERVER.openai()
        coded = client.embeddings.create(model="m", input=TEXTS[:3])  # the client asks for base64
        plain = client.embeddings.create(model="m", input=TEXTS[:3], encoding_format="float")
        self.assertEqual([d.embedding for d in coded.data], [d.embedding for d in plain.data])
        self.assertEqual([d.index for d in coded.data], [0, 1, 2])
        for text, of in zip(TEXTS, coded.data):
            alone = client.embeddings.create(model="m", input=text)
            self.assertEqual(alone.data[0].embedding, of.embedding)
            self.assertAlmostEqual(sum(x * x for x in of.embedding), 1, places=5)
        self.assertEqual(coded.usage.prompt_tokens, coded.usage.total_tokens)
        self.assertEqual(coded.object, "list")

    def test_tokens_are_taken_as_they_are(self):
        for add in (True, False):
            tokens = SERVER.post("/tokenize", {"prompt": TEXTS[0], "add_special_tokens": add})["tokens"]
            answer = embed([tokens], add_special_tokens=add)
            self.assertEqual(answer["usage"]["prompt_tokens"], len(tokens))
            self.assertEqual(vectors(answer), vectors(embed(TEXTS[0], add_special_tokens=add)))

    def test_dimensions_are_cut_and_scaled(self):
        [whole] = vectors(embed(TEXTS[0]))
        [part] = vectors(embed(TEXTS[0], dimensions=64))
        self.assertEqual(len(part), 64)
        length = math.sqrt(sum(x * x for x in whole[:64]))
        for a, b in zip(part, whole):
            self.assertAlmostEqual(a, b / length, places=6)
        [raw] = vectors(embed(TEXTS[0], normalize=False))
        self.assertGreater(abs(sum(x * x for x in raw) - 1), 0.1)
        self.assertAlmostEqual(cosine(raw, whole), 1, places=6)

    def test_many_texts_are_those_alone(self):
        texts = [f"{LONG[:(i * 7) % 300]} number {i}" for i in range(150)]
        for pooling in ("last", "mean"):
            together = vectors(embed(texts, pooling=pooling, dimensions=32))
            for i in (0, 63, 64, 100, 149):
                self.assertEqual(together[i], vectors(embed(texts[i], pooling=pooling, dimensions=32))[0])

    def test_the_last_state_reads_the_cache(self):
        for pooling, reads in (("last", True), ("mean", False), ("cls", False)):
            for _ in range(2):
                usage = embed(LONG, pooling=pooling)["usage"]
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"] > 0, reads)

    def test_reference(self):
        """int8 activations against fp32: the angle is small."""
        for case in json.loads(REFERENCE.read_text())["cases"]:
            for pooling in ("last", "mean", "cls"):
                data = base64.b64decode(case[pooling])
                wanted = struct.unpack(f"<{len(data) // 2}e", data)
                [got] = vectors(embed([case["tokens"]], pooling=pooling))
                self.assertGreater(cosine(got, wanted), 0.99, (case["text"], pooling))

    def test_errors_name_the_field(self):
        refused({}, "input")
        refused({"input": []}, "input")
        refused({"input": [[]]}, "input")
        refused({"input": ["a", 1]}, "input")
        refused({"input": [10**9]}, "input")
        refused({"input": "a", "dimensions": 100000}, "dimensions")
        refused({"input": "a", "dimensions": 0}, "dimensions")
        refused({"input": "a", "encoding_format": "hex"}, "encoding_format")
        refused({"input": "a", "pooling": "max"}, "pooling")
        refused({"input": ["a"] * 1025}, "input")
        refused({"input": "word " * 20000}, "input")
        self.assertIn("at most", refused({"input": ["a"] * 1024 + ["b"] * 1024}, "input"))
        self.assertIn("kv.budget", refused({"input": "a", "kv": {"budget": {"tokens": 64, "policy": "snapkv"},
                                                               "allow_lossy": True}}, None))

    def test_the_kv_object(self):
        answer = embed(LONG + "kv", kv={"report": ["explain"]})
        self.assertEqual(answer["kv"]["explain"]["segments"][0]["name"], "prompt")
        self.assertEqual(answer["kv"]["prompt_tokens"], answer["usage"]["prompt_tokens"])
        salted = embed(LONG + "kv", cache_salt="other")
        self.assertEqual(salted["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(vectors(salted), vectors(answer))


class Rerank(unittest.TestCase):
    QUERY = "What is the capital of France?"
    DOCUMENTS = ["Bananas are rich in potassium and are grown in warm countries around the world.",
                 "Paris is the capital of France. It lies on the river Seine.",
                 "To change a tyre, first loosen the nuts, then lift the car with a jack.",
                 "The stock market closed lower on Friday after a weak report on jobs."]

    def rerank(self, **more):
        return SERVER.post("/v1/rerank", {"model": "m", "query": self.QUERY, "documents": self.DOCUMENTS, **more})

    def test_the_document_that_answers_comes_first(self):
        first = self.rerank()
        results = first["results"]
        self.assertEqual(results[0]["index"], 1)
        self.assertEqual(sorted(r["index"] for r in results), [0, 1, 2, 3])
        scores = [r["relevance_score"] for r in results]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertTrue(all(0 < s < 1 for s in scores))
        self.assertEqual(self.rerank()["results"], results)  # from the cache
        shuffled = [3, 1, 0, 2]
        again = self.rerank(documents=[self.DOCUMENTS[i] for i in shuffled])["results"]
        self.assertEqual([(shuffled[r["index"]], r["relevance_score"]) for r in again],
                         [(r["index"], r["relevance_score"]) for r in results])

    def test_scores_are_likelihoods_of_the_query(self):
        def tokens(text, special=False):
            return SERVER.post("/tokenize", {"prompt": text, "add_special_tokens": special, "parse_special": False})["tokens"]
        for result in self.rerank()["results"]:
            before = tokens("Document: " + self.DOCUMENTS[result["index"]], True) + tokens("\n\nQuery:")
            query = tokens(" " + self.QUERY)
            scored = SERVER.post("/v1/completions", {"model": "m", "prompt": before + query, "max_tokens": 0, "echo": True,
                                                     "logprobs": 0})["choices"][0]["logprobs"]["token_logprobs"]
            mean = sum(scored[len(before):]) / len(query)
            self.assertAlmostEqual(result["relevance_score"], math.exp(mean), places=9)

    def test_documents_are_cached_prefixes(self):
        documents = [LONG + str(i) for i in range(3)]
        self.rerank(documents=documents)
        usage = self.rerank(documents=documents, query="Something else?")["usage"]
        self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 0.8 * usage["prompt_tokens"])

    def test_top_n_and_documents(self):
        answer = self.rerank(top_n=2, return_documents=True)
        self.assertEqual([r["document"]["text"] for r in answer["results"]],
                         [self.DOCUMENTS[r["index"]] for r in answer["results"]])
        self.assertEqual(len(answer["results"]), 2)
        self.assertEqual(self.rerank(documents=[{"text": d} for d in self.DOCUMENTS])["results"], self.rerank()["results"])
        cut = self.rerank(documents=[LONG * 20], max_tokens_per_doc=50)
        self.assertLess(cut["usage"]["prompt_tokens"], 80)
        self.assertEqual(SERVER.post("/v2/rerank", {"model": "m", "query": self.QUERY, "documents": self.DOCUMENTS})["results"],
                         self.rerank()["results"])

    def test_errors_name_the_field(self):
        for body, param in (({"query": "a"}, "documents"), ({"documents": ["a"]}, "query"),
                            ({"query": "", "documents": ["a"]}, "query"), ({"query": "a", "documents": []}, "documents"),
                            ({"query": "a", "documents": [1]}, "documents"), ({"query": "a", "documents": ["a"] * 1001}, "documents"),
                            ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
                            ({"query": "a", "documents": [LONG * 500]}, "documents")):
            refused(body, param, "/v1/rerank")


if __name__ == "__main__":
    with Server(QUIRE, MODEL, "--kv-cache-memory", "256MiB") as SERVER:
        unittest.main(argv=sys.argv[:1], verbosity=1)
