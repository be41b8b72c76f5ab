"""The server behind Google's own client (google-genai): items 53 to 57 of the checklist, function calling, cached contents
of several tenants and what bounds them.

    scripts/python --clients tests/server/check_gemini.py QUIRE WRITE_TINY
"""
import datetime
import json
import os
import re
import sys
import tempfile
import time
import unittest

import pydantic
from google import genai
from google.genai import errors, types

from kv_testing import QUIRE, tiny
from serving import HURRY, Server

DOCUMENT = "The keys lie in the third drawer. " * 38  # about 1,300 tokens of a model that reads bytes
GREEDY = {"temperature": 0, "max_output_tokens": 12}
KEYS = {"a": "key-of-tenant-a", "b": "key-of-tenant-b", "admin": "key-of-the-admin"}


def client(server, key="none", version="v1"):
    return genai.Client(api_key=key, http_options={"base_url": server.url, "api_version": version, "timeout": HURRY * 1000})


class Gemini(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(QUIRE, tiny("llama-F32"), "-a", "org/m", "--kv-cache-memory", "64MiB")
        cls.client = client(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def setUp(self):
        self.server.call("POST", "/v1/kv/clear", {})

    def ask(self, contents, model="m", **config):
        return self.client.models.generate_content(model=model, contents=contents, config={**GREEDY, **config})

    def fails(self, code, status, call, *arguments, **more):
        with self.assertRaises(errors.ClientError) as caught:
            call(*arguments, **more)
        self.assertEqual((caught.exception.code, caught.exception.status), (code, status), caught.exception)
        return str(caught.exception)

    def test_53_generate_content_and_its_stream_are_equal(self):
        whole = self.ask("Hello there")
        self.assertIsInstance(whole.text, str)
        self.assertIn(whole.candidates[0].finish_reason, (types.FinishReason.STOP, types.FinishReason.MAX_TOKENS))
        usage = whole.usage_metadata
        self.assertEqual(usage.total_token_count, usage.prompt_token_count + usage.candidates_token_count)
        self.assertEqual(whole.model_version, "m")
        for version in ("v1", "v1beta", "v1alpha"):
            other = client(self.server, version=version)
            chunks = list(other.models.generate_content_stream(model="m", contents="Hello there", config=GREEDY))
            self.assertEqual("".join(c.text for c in chunks), whole.text)
            self.assertEqual([c.candidates[0].finish_reason for c in chunks],
                             [None] * (len(chunks) - 1) + [whole.candidates[0].finish_reason])
            self.assertEqual(chunks[-1].usage_metadata.total_token_count, usage.total_token_count)
            self.assertTrue(all(c.usage_metadata for c in chunks))
        self.assertEqual(self.ask("Hello there", model="org/m").text, whole.text)

    def test_53_a_stream_has_no_lines_but_data_and_may_be_an_array(self):
        body = {"contents": [{"parts": [{"text": "Hello there"}]}], "generationConfig": {"temperature": 0, "maxOutputTokens": 6}}
        status, headers, events = self.server.call("POST", "/v1beta/models/m:streamGenerateContent?alt=sse", body, raw=True)
        self.assertEqual((status, headers["Content-Type"].split(";")[0]), (200, "text/event-stream"))
        lines = [line for line in events.decode().split("\n") if line]
        self.assertTrue(all(line.startswith("data: {") for line in lines), lines)
        status, headers, array = self.server.call("POST", "/v1beta/models/m:streamGenerateContent", body)
        self.assertEqual((status, headers["Content-Type"].split(";")[0]), (200, "application/json"))
        texts = ["".join(e["candidates"][0]["content"]["parts"][0]["text"] for e in all_of)
                 for all_of in (array, [json.loads(line[6:]) for line in lines])]
        self.assertEqual(texts[0], texts[1])
        whole = self.server.post("/v1/models/m:generateContent", body)
        self.assertEqual(whole["candidates"][0]["content"]["parts"][0]["text"], texts[0])
        snake = {"contents": body["contents"], "generation_config": {"temperature": 0, "max_output_tokens": 6}}
        self.assertEqual(self.server.post("/v1/models/org%2Fm:generateContent", snake)["candidates"], whole["candidates"])

    def test_53_chats_keep_their_prefix(self):
        chat = self.client.chats.create(model="m", config=GREEDY)
        first = list(chat.send_message_stream("Tell me something long, please. " * 4))
        second = chat.send_message("Go on.")
        self.assertGreaterEqual(second.usage_metadata.cached_content_token_count,
                                first[-1].usage_metadata.prompt_token_count // 32 * 32)
        same = self.server.post("/v1/chat/completions", {
            "model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Tell me something long, please. " * 4}]})
        self.assertGreater(same["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(same["usage"]["prompt_tokens"], first[-1].usage_metadata.prompt_token_count)

    def test_53_candidates_logprobs_stops_and_seeds(self):
        answer = self.ask("x", candidate_count=3, temperature=1, seed=5)
        again = self.ask("x", candidate_count=3, temperature=1, seed=5)
        texts = [c.content.parts[0].text for c in answer.candidates]
        self.assertEqual(texts, [c.content.parts[0].text for c in again.candidates])
        self.assertEqual([c.index or 0 for c in answer.candidates], [0, 1, 2])
        answer = self.ask("x", response_logprobs=True, logprobs=3).candidates[0]
        self.assertEqual(len(answer.logprobs_result.chosen_candidates), 12)
        self.assertEqual([len(t.candidates) for t in answer.logprobs_result.top_candidates], [3] * 12)
        mean = sum(t.log_probability for t in answer.logprobs_result.chosen_candidates) / 12
        self.assertAlmostEqual(answer.avg_logprobs, mean, places=4)
        plain = self.ask("Hello there").text
        cut = self.ask("Hello there", stop_sequences=[plain[3:5]]).text
        self.assertEqual(cut, plain[:plain.index(plain[3:5])])

    def test_53_errors_have_the_vendors_shape(self):
        self.fails(404, "NOT_FOUND", self.ask, "x", model="nobody")
        self.fails(400, "INVALID_ARGUMENT", self.ask, "x", temperature=3)
        self.assertIn("maximum context", self.fails(400, "INVALID_ARGUMENT", self.ask, "x" * 6000))
        status, _, body = self.server.call("POST", "/v1beta/models/m:generateContent", "{")
        self.assertEqual((status, body["error"]["status"]), (400, "INVALID_ARGUMENT"))
        status, _, body = self.server.call("GET", "/v1beta/nothing")
        self.assertEqual((status, body["error"]["status"]), (404, "NOT_FOUND"))
        status, _, body = self.server.call("POST", "/v1/models/m:generateContent",
                                           {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": ""}}]}]})
        self.assertEqual((status, body["error"]["status"]), (400, "INVALID_ARGUMENT"))
        self.assertEqual([m.name for m in self.client.models.list()], ["models/m", "models/org/m"])
        self.assertIn("createCachedContent", self.client.models.get(model="m").supported_actions)
        self.fails(404, "NOT_FOUND", self.client.models.get, model="nobody")

    def test_54_count_tokens_is_the_prompts_count(self):
        for contents in ("Hello", ["a", "b"], [types.UserContent("x"), types.ModelContent("y"), types.UserContent("z")]):
            counted = self.client.models.count_tokens(model="m", contents=contents)
            self.assertEqual(counted.total_tokens, self.ask(contents).usage_metadata.prompt_token_count)
        body = {"contents": [{"parts": [{"text": "x"}]}], "systemInstruction": {"parts": [{"text": "Be brief."}]}}
        counted = self.server.post("/v1beta/models/m:countTokens", {"generateContentRequest": {"model": "models/m", **body}})
        used = self.server.post("/v1beta/models/m:generateContent", {**body, "generationConfig": {"maxOutputTokens": 1}})
        self.assertEqual(counted["totalTokens"], used["usageMetadata"]["promptTokenCount"])

    def test_55_a_cache_is_made_used_and_deleted(self):
        caches = self.client.caches
        made = caches.create(model="m", config=types.CreateCachedContentConfig(
            display_name="drawers", system_instruction="Be terse.", contents=[DOCUMENT], ttl="300s"))
        self.assertRegex(made.name, r"^cachedContents/[a-z0-9]{12}$")
        self.assertGreater(made.usage_metadata.total_token_count, 1200)
        self.assertAlmostEqual((made.expire_time - made.create_time).total_seconds(), 300, delta=1)
        self.assertEqual(caches.get(name=made.name).display_name, "drawers")
        pins = self.server.get("/v1/kv/pins")["data"]
        self.assertEqual([p["tokens"] for p in pins], [made.usage_metadata.total_token_count // 32 * 32])

        other = caches.create(model="m", config=types.CreateCachedContentConfig(contents=["short"], expire_time=(
            datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=5))))
        listed = [c.name for c in caches.list(config={"page_size": 1})]
        self.assertEqual(sorted(listed), sorted([made.name, other.name]))
        later = caches.update(name=made.name, config=types.UpdateCachedContentConfig(ttl="600s"))
        self.assertGreater(later.expire_time, made.expire_time)

        # Whatever else is dropped, the pinned blocks stay; and the answer is that of the same request without a cache.
        self.server.call("POST", "/v1/kv/clear", {})
        answer = self.ask("Where are the keys?", cached_content=made.name)
        usage = answer.usage_metadata
        self.assertGreaterEqual(usage.cached_content_token_count, pins[0]["tokens"])
        counted = self.server.post("/v1/models/m:countTokens",
                                   {"contents": [{"parts": [{"text": "Where are the keys?"}]}], "cachedContent": made.name})
        self.assertEqual(counted["totalTokens"], usage.prompt_token_count)
        self.assertEqual(counted["cachedContentTokenCount"], made.usage_metadata.total_token_count)
        caches.delete(name=made.name)
        self.server.call("POST", "/v1/kv/clear", {})
        plain = self.ask([DOCUMENT, "Where are the keys?"], system_instruction="Be terse.")
        self.assertEqual(plain.usage_metadata.cached_content_token_count, 0)
        self.assertEqual((plain.text, plain.usage_metadata.prompt_token_count), (answer.text, usage.prompt_token_count))
        self.fails(404, "NOT_FOUND", caches.get, name=made.name)
        self.fails(404, "NOT_FOUND", caches.delete, name=made.name)
        self.fails(404, "NOT_FOUND", caches.update, name=made.name, config={"ttl": "10s"})
        self.fails(403, "PERMISSION_DENIED", self.ask, "x", cached_content=made.name)
        caches.delete(name=other.name)
        self.assertEqual(self.server.get("/v1/kv/pins")["data"], [])
        self.assertEqual(list(caches.list()), [])

    def test_55_a_cache_holds_tools(self):
        f = types.FunctionDeclaration(name="find", description="Finds a thing. " * 20,
                                      parameters_json_schema={"type": "object", "properties": {"what": {"type": "string"}}})
        config = {"tools": [types.Tool(function_declarations=[f])], "tool_config": types.ToolConfig(
            function_calling_config=types.FunctionCallingConfig(mode="ANY", allowed_function_names=["find"]))}
        made = self.client.caches.create(model="m", config=types.CreateCachedContentConfig(
            system_instruction="Use tools.", ttl="60s", **config))
        plain = self.ask("keys", system_instruction="Use tools.", max_output_tokens=60, **config)
        cached = self.ask("keys", cached_content=made.name, max_output_tokens=60)
        self.assertGreater(cached.usage_metadata.cached_content_token_count, 32)
        self.assertEqual(cached.usage_metadata.prompt_token_count, plain.usage_metadata.prompt_token_count)
        self.assertEqual(cached.candidates[0].content.parts[0].text, plain.candidates[0].content.parts[0].text)
        self.client.caches.delete(name=made.name)

    def test_56_a_cache_excludes_what_it_holds_and_expires(self):
        made = self.client.caches.create(model="m", config=types.CreateCachedContentConfig(contents=[DOCUMENT], ttl="2s"))
        self.fails(400, "INVALID_ARGUMENT", self.ask, "x", cached_content=made.name, system_instruction="Be terse.")
        self.fails(400, "INVALID_ARGUMENT", self.ask, "x", cached_content=made.name, model="org/m")
        self.ask("x", cached_content=made.name)
        time.sleep(max(0, (made.expire_time - datetime.datetime.now(datetime.timezone.utc)).total_seconds()) + 0.1)
        self.assertIn("CachedContent not found", self.fails(403, "PERMISSION_DENIED", self.ask, "x", cached_content=made.name))
        self.fails(404, "NOT_FOUND", self.client.caches.get, name=made.name)
        self.ask("x")  # a step, after which the lease is gone too
        self.assertEqual(self.server.get("/v1/kv/pins")["data"], [])

        def create(**more):
            return self.client.caches.create(model=more.pop("model", "m"), config=types.CreateCachedContentConfig(
                **{"contents": ["x"], **more}))
        self.fails(400, "INVALID_ARGUMENT", create, expire_time=datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc))
        self.fails(400, "INVALID_ARGUMENT", create, ttl="1m")
        self.fails(400, "INVALID_ARGUMENT", create, display_name="x" * 129)
        self.fails(400, "INVALID_ARGUMENT", create, contents=["x" * 6000])
        self.fails(404, "NOT_FOUND", create, model="nobody")
        status, _, body = self.server.call("PATCH", "/v1/cachedContents/x?updateMask=displayName", {"displayName": "y"})
        self.assertEqual((status, body["error"]["status"]), (400, "INVALID_ARGUMENT"))

    def test_57_a_schema_makes_parsed_answers(self):
        class Color(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=8)
            shade: int | None = pydantic.Field(ge=0, le=9)
            kind: str = pydantic.Field(pattern="^(warm|cold)$")

        answer = self.ask("A color?", response_mime_type="application/json", response_schema=Color, max_output_tokens=200)
        self.assertEqual(answer.parsed, Color.model_validate_json(answer.text))
        answer = self.ask("A color?", response_mime_type="application/json", max_output_tokens=200, response_schema=types.Schema(
            type="OBJECT", property_ordering=["b", "a"], required=["a", "b"],
            properties={"a": types.Schema(type="BOOLEAN"), "b": types.Schema(type="STRING", enum=["x", "y"], nullable=False)}))
        self.assertEqual(list(json.loads(answer.text)), ["b", "a"])
        answer = self.ask("One?", response_mime_type="text/x.enum", response_schema=types.Schema(type="STRING", enum=["up", "down"]))
        self.assertIn(answer.text, ("up", "down"))
        answer = self.ask("One?", response_mime_type="application/json", max_output_tokens=100,
                          response_json_schema={"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2})
        self.assertEqual(len(json.loads(answer.text)), 2)

    def test_functions_are_called_and_answered(self):
        def weather(city: str) -> str:
            """The weather of a city."""
            return "fine"

        config = {"tools": [weather], "automatic_function_calling": {"disable": True}, "max_output_tokens": 400,
                  "tool_config": types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode="ANY")),
                  "seed": 3}
        answer = self.ask("Rain?", **config)
        if answer.candidates[0].finish_reason != types.FinishReason.MAX_TOKENS:
            call = answer.function_calls[0]
            self.assertEqual((call.name, list(call.args)), ("weather", ["city"]))
            streamed = list(self.client.models.generate_content_stream(model="m", contents="Rain?", config={**GREEDY, **config}))
            calls = [c for chunk in streamed for c in chunk.function_calls or []]
            self.assertEqual([(c.name, c.args) for c in calls], [(c.name, c.args) for c in answer.function_calls])
        history = [types.UserContent("Rain?"),
                   types.ModelContent(types.Part.from_function_call(name="weather", args={"city": "Ulm"})),
                   types.UserContent(types.Part.from_function_response(name="weather", response={"result": "fine"}))]
        del config["tool_config"]
        counted = self.ask(history, **{**config, "max_output_tokens": 1}).usage_metadata.prompt_token_count
        self.assertGreater(counted, self.ask(history[:1], **{**config, "max_output_tokens": 1}).usage_metadata.prompt_token_count)

    def test_embeddings_are_those_of_openai(self):
        texts = ["Hello there", "General"]
        other = self.server.post("/v1/embeddings", {"model": "m", "input": texts, "encoding_format": "float"})["data"]
        answer = self.client.models.embed_content(model="m", contents=texts)
        self.assertEqual([e.values for e in answer.embeddings], [e["embedding"] for e in other])
        short = self.client.models.embed_content(model="m", contents=texts[0], config={"output_dimensionality": 16})
        self.assertEqual(len(short.embeddings[0].values), 16)
        content = {"content": {"parts": [{"text": texts[0]}]}}
        one = self.server.post("/v1beta/models/m:embedContent", content)
        self.assertEqual(one["embedding"]["values"], other[0]["embedding"])
        batch = self.server.post("/v1beta/models/m:batchEmbedContents", {"requests": [{"model": "models/m", **content}] * 2})
        self.assertEqual([e["values"] for e in batch["embeddings"]], [other[0]["embedding"]] * 2)
        for bad in ({}, {"content": {"parts": []}}, {"content": {"parts": [{"inlineData": {}}]}}, {**content, "outputDimensionality": 0}):
            status, _, error = self.server.call("POST", "/v1beta/models/m:embedContent", bad)
            self.assertEqual((status, error["error"]["status"]), (400, "INVALID_ARGUMENT"), bad)

    def test_the_kv_object_is_taken_and_answered(self):
        body = {"contents": [{"parts": [{"text": "Hello there"}]}], "generationConfig": {"maxOutputTokens": 2},
                "kv": {"report": ["explain"]}}
        self.assertIn("explain", self.server.post("/v1beta/models/m:generateContent", body)["kv"])
        last = self.server.post("/v1beta/models/m:streamGenerateContent", body)[-1]
        self.assertEqual(last["kv"]["prompt_tokens"], last["usageMetadata"]["promptTokenCount"])
        explained = self.server.get(f"/v1/kv/requests/{last['responseId']}")
        self.assertEqual(explained["prompt_tokens"], last["usageMetadata"]["promptTokenCount"])
        hypothetical = self.server.post("/v1/kv/explain", {"dialect": "gemini", "request": {"contents": body["contents"]}})
        self.assertEqual(hypothetical["prompt_tokens"], explained["prompt_tokens"])


class Tenants(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.keys = tempfile.NamedTemporaryFile("w", suffix=".keys")
        cls.keys.write(f"{KEYS['a']} tenant=a\n{KEYS['b']} tenant=b\n{KEYS['admin']} admin\n")
        cls.keys.flush()
        os.chmod(cls.keys.name, 0o600)
        cls.server = Server(QUIRE, tiny("llama-F32"), "--api-key-file", cls.keys.name, "--kv-cache-memory", "16MiB",
                            "--pin-budget", "0.1", "--gemini-min-cached-tokens", "64")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def create(self, who, text, status=200, **more):
        code, _, body = self.server.call("POST", "/v1beta/cachedContents", {
            "model": "models/m", "contents": [{"parts": [{"text": text}]}], **more}, {"x-goog-api-key": KEYS[who]})
        self.assertEqual(code, status, body)
        return body

    def delete(self, name):
        self.assertEqual(self.server.call("DELETE", f"/v1beta/{name}", headers={"x-goog-api-key": KEYS["a"]})[0], 200)

    def test_caches_are_their_tenants_own(self):
        made = self.create("a", "something " * 20)
        for who in ("b", "admin"):
            other = client(self.server, KEYS[who])
            with self.assertRaises(errors.ClientError) as caught:
                other.caches.get(name=made["name"])
            self.assertEqual(caught.exception.code, 404)
            self.assertEqual(list(other.caches.list()), [])
            with self.assertRaises(errors.ClientError) as caught:
                other.models.generate_content(model="m", contents="x", config={"cached_content": made["name"]})
            self.assertEqual(caught.exception.code, 403)
        self.delete(made["name"])
        stranger = client(self.server, "a-key-that-is-wrong")
        with self.assertRaises(errors.ClientError) as caught:
            stranger.caches.list()
        self.assertEqual((caught.exception.code, caught.exception.status), (401, "UNAUTHENTICATED"))

    def test_pins_have_a_budget(self):
        self.create("a", "x", 400)  # fewer than 64 tokens
        made, full = [], None
        for i in range(200):
            code, headers, body = self.server.call("POST", "/v1beta/cachedContents", {
                "model": "models/m", "contents": [{"parts": [{"text": f"{i} " * 60}]}]}, {"x-goog-api-key": KEYS["a"]})
            if code != 200:
                full = (code, body["error"]["status"])
                break
            made.append(body["name"])
        self.assertEqual(full, (429, "RESOURCE_EXHAUSTED"))
        self.assertGreater(len(made), 0)
        for name in made:
            self.delete(name)
        self.delete(self.create("a", "0 " * 60)["name"])  # there is room again


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
