"""The server behind Ollama's own client: chat and generate, whole and as lines, tools, formats, and the model's routes.

    scripts/python --clients tests/server/check_ollama.py QUIRE WRITE_TINY
"""
import asyncio
import datetime
import json
import sys
import unittest

import ollama

from kv_testing import QUIRE, tiny
from serving import HURRY, Server

OPTIONS = {"temperature": 0, "num_predict": 12}
HELLO = [{"role": "user", "content": "Hello there"}]


class Ollama(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(QUIRE, tiny("llama-F32"), "--kv-cache-memory", "64MiB")
        cls.client = ollama.Client(host=cls.server.url, timeout=HURRY)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def chat(self, messages=HELLO, **more):
        return self.client.chat(model="m", messages=messages, options={**OPTIONS, **more.pop("options", {})}, **more)

    def check_end(self, last, tokens=None):
        self.assertTrue(last.done)
        self.assertIn(last.done_reason, ("stop", "length"))
        for duration in ("total_duration", "prompt_eval_duration", "eval_duration"):
            self.assertGreater(last[duration], 0, duration)
        self.assertGreaterEqual(last.total_duration, last.eval_duration)
        self.assertGreater(last.prompt_eval_count, 0)
        self.assertEqual(last.eval_count, tokens or last.eval_count)
        self.assertIsNotNone(last.load_duration)

    def test_chat_whole_and_streamed(self):
        whole = self.chat()
        self.assertEqual(whole.message.role, "assistant")
        self.assertEqual(whole.model, "m")
        datetime.datetime.fromisoformat(whole.created_at)
        self.check_end(whole, 12)
        parts = list(self.chat(stream=True))
        self.assertEqual("".join(p.message.content for p in parts), whole.message.content)
        self.assertEqual([p.done for p in parts], [False] * (len(parts) - 1) + [True])
        self.check_end(parts[-1], 12)
        same = self.server.post("/v1/chat/completions", {"model": "m", "messages": HELLO, "temperature": 0, "max_tokens": 12})
        self.assertEqual(same["choices"][0]["message"]["content"], whole.message.content)
        self.assertEqual(same["usage"]["prompt_tokens"], whole.prompt_eval_count)
        tagged = self.client.chat(model="m:latest", messages=HELLO, options=OPTIONS)
        self.assertEqual(tagged.message.content, whole.message.content)

        async def ask():
            stream = await ollama.AsyncClient(host=self.server.url).chat(model="m", messages=HELLO, options=OPTIONS, stream=True)
            return [part async for part in stream]
        self.assertEqual("".join(p.message.content for p in asyncio.run(ask())), whole.message.content)

    def test_a_stream_is_lines_of_json_by_default(self):
        status, headers, body = self.server.call("POST", "/api/chat", {"model": "m", "messages": HELLO, "options": OPTIONS}, raw=True)
        self.assertEqual((status, headers["Content-Type"]), (200, "application/x-ndjson"))
        lines = body.decode().split("\n")
        self.assertEqual(lines.pop(), "")
        self.assertTrue(json.loads(lines[-1])["done"])

    def test_generate_goes_on_from_its_context(self):
        first = self.client.generate(model="m", prompt="Hello there", system="Be brief.", options=OPTIONS)
        self.check_end(first, 12)
        self.assertEqual(len(first.context), first.prompt_eval_count + first.eval_count)
        parts = list(self.client.generate(model="m", prompt="Hello there", system="Be brief.", options=OPTIONS, stream=True))
        self.assertEqual("".join(p.response for p in parts), first.response)
        self.assertEqual(list(parts[-1].context)[:first.prompt_eval_count], list(first.context)[:first.prompt_eval_count])
        second = self.client.generate(model="m", prompt="And then?", context=first.context, options=OPTIONS)
        self.assertGreater(second.prompt_eval_count, len(first.context))
        raw = self.client.generate(model="m", prompt="Hello there", raw=True, options=OPTIONS)
        same = self.server.post("/v1/completions", {"model": "m", "prompt": "Hello there", "temperature": 0, "max_tokens": 12})
        self.assertEqual(raw.response, same["choices"][0]["text"])
        self.assertIsNone(raw.context)

    def test_options_have_an_effect(self):
        warm = {"temperature": 1, "seed": 4, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "repeat_penalty": 1.1}
        self.assertEqual(self.chat(options=warm).message.content, self.chat(options=warm).message.content)
        text = self.chat().message.content
        self.assertEqual(self.chat(options={"stop": [text[2:4]]}).message.content, text[:text.index(text[2:4])])
        self.assertEqual(self.chat(options={"num_predict": 3}).eval_count, 3)
        answer = self.chat(logprobs=True, top_logprobs=2)
        self.assertEqual([len(t.top_logprobs) for t in answer.logprobs], [2] * 12)

    def test_formats_give_json(self):
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 1, "maximum": 9}},
                  "required": ["ok", "n"]}
        answer = self.chat(format=schema, options={"num_predict": 100})
        self.assertEqual(list(json.loads(answer.message.content)), ["ok", "n"])
        self.assertEqual(answer.done_reason, "stop")
        answer = self.client.generate(model="m", prompt="x", format="json", options={"num_predict": 30})
        self.assertTrue(answer.response.lstrip().startswith("{"))

    def test_tools_and_their_results(self):
        def weather(city: str) -> str:
            """The weather.

            Args:
                city: where
            """
            return "fine"
        plain = self.chat(options={"num_predict": 1})
        asked = self.chat(tools=[weather], options={"num_predict": 1})
        self.assertGreater(asked.prompt_eval_count, plain.prompt_eval_count)
        history = HELLO + [{"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "weather", "arguments": {"city": "Ulm"}}}]},
            {"role": "tool", "content": "fine", "tool_name": "weather"}]
        answered = self.chat(history, tools=[weather], options={"num_predict": 1})
        self.assertGreater(answered.prompt_eval_count, asked.prompt_eval_count)

    def test_a_body_without_a_prompt_loads_the_model(self):
        loaded = self.client.generate(model="m", prompt="")
        self.assertEqual((loaded.done, loaded.done_reason, loaded.response), (True, "load", ""))
        unloaded = self.client.chat(model="m", messages=[], keep_alive=0)
        self.assertEqual((unloaded.done, unloaded.done_reason), (True, "unload"))
        self.assertEqual([p.done_reason for p in self.client.chat(model="m", messages=[], stream=True)], ["load"])
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.generate(model="nobody")
        self.assertEqual(caught.exception.status_code, 404)

    def test_embeddings_are_those_of_openai(self):
        texts = ["Hello there", "General"]
        answer = self.client.embed(model="m", input=texts)
        other = self.server.post("/v1/embeddings", {"model": "m", "input": texts, "encoding_format": "float"})
        self.assertEqual([list(e) for e in answer.embeddings], [e["embedding"] for e in other["data"]])
        self.assertEqual(answer.prompt_eval_count, other["usage"]["prompt_tokens"])
        self.assertEqual(len(self.client.embed(model="m", input="Hello there", dimensions=16).embeddings[0]), 16)
        one = self.client.embeddings(model="m", prompt="Hello there").embedding  # the older route; not normalized
        scale = sum(x * x for x in one) ** 0.5
        for a, b in zip(one, answer.embeddings[0]):
            self.assertAlmostEqual(a / scale, b, places=5)
        self.assertEqual(self.client.embed(model="m", input="").embeddings, [])
        long = "x" * 20000  # cut to the context unless the client says otherwise
        self.assertEqual(len(self.client.embed(model="m", input=long).embeddings), 1)
        with self.assertRaises(ollama.ResponseError):
            self.client.embed(model="m", input=long, truncate=False)

    def test_the_model_can_be_looked_at(self):
        listed = self.client.list().models
        self.assertEqual([m.model for m in listed], ["m"])
        self.assertGreater(listed[0].size, 0)
        self.assertEqual(len(listed[0].digest), 64)
        shown = self.client.show("m")
        family = shown.details.family
        self.assertEqual(shown.modelinfo["general.architecture"], family)
        self.assertEqual(shown.modelinfo[f"{family}.context_length"], 4096)
        self.assertIn("completion", shown.capabilities)
        self.assertIn("messages", shown.template)
        running = self.client.ps().models
        self.assertEqual((running[0].name, running[0].context_length), ("m", 4096))
        self.assertGreater(running[0].expires_at, datetime.datetime.now(datetime.timezone.utc))
        version = tuple(map(int, self.server.get("/api/version")["version"].split(".")))
        self.assertGreaterEqual(version, (0, 6, 4))  # what some editors ask for
        for method in ("HEAD", "GET"):  # how the command-line client sees whether a server is there
            self.assertEqual(self.server.call(method, "/", raw=True)[0], 200)

    def test_errors_are_told(self):
        def status(call, *arguments, **more):
            with self.assertRaises(ollama.ResponseError) as caught:
                call(*arguments, **more)
            self.assertNotIn("{", caught.exception.error)
            return caught.exception.status_code
        self.assertEqual(status(self.client.chat, model="nobody", messages=HELLO), 404)
        self.assertEqual(status(self.client.show, "nobody"), 404)
        self.assertEqual(status(self.chat, options={"temperature": 9}), 400)
        self.assertEqual(status(self.chat, [{"role": "user", "content": "x" * 6000}]), 400)
        self.assertEqual(status(self.chat, [{"role": "user", "content": "x", "images": [b"x"]}]), 400)
        self.assertEqual(status(self.client.generate, model="m", prompt="x", template="{{ .Prompt }}"), 403)
        self.assertEqual(status(self.client.pull, "m"), 501)
        with self.assertRaises(ollama.ResponseError):
            list(self.chat([{"role": "user", "content": "x" * 6000}], stream=True))
        code, _, body = self.server.call("GET", "/api/nothing")
        self.assertEqual((code, list(body)), (404, ["error"]))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
