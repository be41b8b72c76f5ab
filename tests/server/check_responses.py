"""OpenAI's Responses with OpenAI's own client: items 31 to 36 of the checklist, restarts and tenants.

    scripts/python tests/server/check_responses.py QUIRE WRITE_TINY [MODEL]

Without MODEL (SmolLM2) everything runs on a tiny random model: shapes, counts and equality, never quality.
"""
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import typing
import unittest

import openai
import pydantic

from serving import Server, Wire, find_model, unchunk, wait_for

QUIRE, WRITE_TINY = sys.argv[1:3]
folder = tempfile.TemporaryDirectory()
subprocess.run([WRITE_TINY, folder.name], check=True)
TINY = f"{folder.name}/llama-F32.gguf"
MODEL = find_model(sys.argv[3] if len(sys.argv) > 3 else "")
BLOCK = 32
RULES = "You answer questions about rivers, bridges and tea. " * 8
SERVER = CLIENT = None
TOOL = {"type": "function", "name": "get_weather", "description": "The weather in a city", "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
                       "required": ["city"], "additionalProperties": False}}


def respond(asked="Say something.", **more):
    more = {"temperature": 0, "max_output_tokens": 12, **more}
    return CLIENT.responses.create(model="m", input=asked, **more)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


class Responses(unittest.TestCase):
    def test_31_plain(self):
        whole = respond(instructions=RULES)
        self.assertEqual((whole.object, whole.model), ("response", "m"))
        self.assertTrue(whole.id.startswith("resp_"))
        self.assertEqual(whole.output[0].type, "message")
        self.assertEqual(whole.output_text, whole.output[0].content[0].text)
        usage = whole.usage
        self.assertEqual(usage.total_tokens, usage.input_tokens + usage.output_tokens)
        self.assertGreaterEqual(usage.input_tokens_details.cached_tokens, 0)
        self.assertGreaterEqual(usage.input_tokens_details.cache_write_tokens, 0)
        self.assertEqual(usage.output_tokens_details.reasoning_tokens, 0)
        self.assertEqual((whole.instructions, whole.temperature, whole.max_output_tokens), (RULES, 0, 12))
        again = respond(instructions=RULES)
        self.assertEqual(again.output_text, whole.output_text)
        self.assertGreaterEqual(again.usage.input_tokens_details.cached_tokens, (usage.input_tokens - 1) // BLOCK * BLOCK)

    def test_31_the_limit_makes_it_incomplete(self):
        cut = respond(max_output_tokens=2, extra_body={"ignore_eos": True})
        self.assertEqual((cut.status, cut.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        self.assertEqual(cut.usage.output_tokens, 2)
        self.assertEqual(cut.output[0].status, "incomplete")

    def test_31_the_same_tokens_as_a_chat(self):
        chat = CLIENT.chat.completions.create(
            model="m", messages=[{"role": "system", "content": RULES}, user("Say something.")], temperature=0,
            max_completion_tokens=12)
        whole = respond(instructions=RULES)
        self.assertEqual(whole.usage.input_tokens, chat.usage.prompt_tokens)
        self.assertEqual(whole.output_text, chat.choices[0].message.content)
        self.assertGreater(whole.usage.input_tokens_details.cached_tokens, 0)

    def test_32_stream(self):
        whole = respond(extra_body={"ignore_eos": True})
        events = list(respond(stream=True, extra_body={"ignore_eos": True}))
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        order = [e.type for e in events]
        deltas = order.count("response.output_text.delta")
        self.assertGreater(deltas, 1)
        self.assertEqual(order, ["response.created", "response.in_progress", "response.output_item.added",
                                 "response.content_part.added", *["response.output_text.delta"] * deltas,
                                 "response.output_text.done", "response.content_part.done", "response.output_item.done",
                                 "response.incomplete"])
        self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"), whole.output_text)
        final = events[-1].response
        self.assertEqual(final.output_text, whole.output_text)
        self.assertEqual(final.usage.input_tokens, whole.usage.input_tokens)
        self.assertEqual(len({e.response.id for e in events if hasattr(e, "response")}), 1)
        items = {e.item_id for e in events if hasattr(e, "item_id")} | {e.item.id for e in events if hasattr(e, "item")}
        self.assertEqual(items, {final.output[0].id})
        kept = CLIENT.responses.retrieve(final.id)
        self.assertEqual(kept.output, final.output)

    def test_32_stream_helper(self):
        ends = dict(max_output_tokens=300, extra_body={"stop": [" ", "e", "a", "."]})  # completed, not cut
        whole = respond("Hello", **ends)
        with CLIENT.responses.stream(model="m", input="Hello", temperature=0, **ends) as stream:
            for _ in stream:
                pass
            final = stream.get_final_response()
        self.assertEqual(final.output_text, whole.output_text)

    def test_32_raw_bytes(self):
        wire = Wire(SERVER)
        wire.post("/v1/responses", {"model": "m", "stream": True, "max_output_tokens": 4, "input": "hi"})
        self.assertIn(b"text/event-stream", wire.until(b"\r\n\r\n"))
        blocks = unchunk(wire.until(b"\r\n0\r\n\r\n")).decode().rstrip("\n").split("\n\n")
        wire.close()
        for block in blocks:
            name, data = block.split("\n")
            self.assertTrue(name.startswith("event: ") and data.startswith("data: "), block)
            self.assertEqual(json.loads(data[6:])["type"], name[7:])

    def test_33_chain(self):
        first = respond(RULES + "What is a river?")
        second = respond("And a bridge?", previous_response_id=first.id)
        self.assertEqual(second.previous_response_id, first.id)
        self.assertGreater(second.usage.input_tokens, first.usage.input_tokens)
        cached = second.usage.input_tokens_details.cached_tokens
        self.assertGreaterEqual(cached, first.usage.input_tokens // BLOCK * BLOCK)
        third = respond("And tea?", previous_response_id=second.id)
        self.assertGreaterEqual(third.usage.input_tokens_details.cached_tokens, second.usage.input_tokens // BLOCK * BLOCK)
        told = [user(RULES + "What is a river?"), assistant(first.output_text), user("And a bridge?"),
                assistant(second.output_text), user("And tea?")]
        apart = respond(told)
        self.assertEqual(apart.output_text, third.output_text)
        self.assertEqual(apart.usage.input_tokens, third.usage.input_tokens)
        items = CLIENT.responses.input_items.list(third.id, order="asc").data
        self.assertEqual([i.role for i in items], ["user", "assistant", "user", "assistant", "user"])
        self.assertEqual(items[1].id, first.output[0].id)
        page = CLIENT.responses.input_items.list(third.id, limit=2)
        self.assertEqual([i.id for i in page.data], [items[4].id, items[3].id])
        self.assertTrue(page.has_more)
        self.assertEqual([i.id for i in page.get_next_page().data], [items[2].id, items[1].id])

    def test_33_unknown_ids_and_instructions(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            respond(previous_response_id="resp_nobody")
        self.assertEqual((caught.exception.code, caught.exception.param),
                         ("previous_response_not_found", "previous_response_id"))
        first = respond("Hello", instructions=RULES)
        second = respond("Hello again", previous_response_id=first.id)
        self.assertIsNone(second.instructions)
        self.assertLess(second.usage.input_tokens, first.usage.input_tokens)
        again = respond("Hello again", previous_response_id=first.id, instructions=RULES)
        self.assertGreater(again.usage.input_tokens, first.usage.input_tokens)

    def test_33_references(self):
        first = respond("A river.")
        item = first.output[0].id
        told = respond([{"type": "item_reference", "id": item}, user("Go on.")])
        apart = respond([assistant(first.output_text), user("Go on.")])
        self.assertEqual((told.output_text, told.usage.input_tokens), (apart.output_text, apart.usage.input_tokens))

    def test_34_two_children(self):
        parent = respond(RULES + "Begin.")
        for text in ("Left or right?", "Up or down?"):
            child = respond(text, previous_response_id=parent.id)
            apart = respond([user(RULES + "Begin."), assistant(parent.output_text), user(text)])
            self.assertEqual(child.output_text, apart.output_text)
            self.assertEqual(child.usage.input_tokens, apart.usage.input_tokens)
            self.assertGreaterEqual(child.usage.input_tokens_details.cached_tokens, parent.usage.input_tokens // BLOCK * BLOCK)

    def test_35_counted_retrieved_deleted(self):
        asked = dict(instructions=RULES, tools=[TOOL])
        whole = respond("Count me.", **asked)
        self.assertEqual(CLIENT.responses.input_tokens.count(model="m", input="Count me.", **asked).input_tokens,
                         whole.usage.input_tokens)
        kept = CLIENT.responses.retrieve(whole.id)
        self.assertEqual(kept.to_dict(), whole.to_dict())
        child = respond("More.", previous_response_id=whole.id)
        self.assertEqual(CLIENT.responses.input_tokens.count(model="m", input="More.", previous_response_id=whole.id)
                         .input_tokens, child.usage.input_tokens)
        with self.assertRaises(openai.BadRequestError):
            CLIENT.responses.cancel(whole.id)
        status, _, gone = SERVER.call("DELETE", f"/v1/responses/{whole.id}")
        self.assertEqual((status, gone), (200, {"id": whole.id, "object": "response.deleted", "deleted": True}))
        for call in (CLIENT.responses.retrieve, CLIENT.responses.delete, CLIENT.responses.cancel,
                     CLIENT.responses.input_items.list):
            with self.assertRaises(openai.NotFoundError):
                call(whole.id)
        with self.assertRaises(openai.BadRequestError):
            respond(previous_response_id=whole.id)
        respond("Still there.", previous_response_id=child.id)  # a child stands for itself

    def test_35_store_false(self):
        whole = respond(store=False)
        self.assertFalse(whole.store)
        with self.assertRaises(openai.NotFoundError):
            CLIENT.responses.retrieve(whole.id)

    def test_36_diagnostics_and_prewarm(self):
        def compared(text, to):
            return respond(text, prompt_cache_options={"comparison_response_id": to}).prompt_cache_diagnostics
        first = respond(RULES + "One red fox.")
        seen = compared(RULES + "Two blue fish swim here.", first.id)
        self.assertEqual((seen.type, seen.reason), ("cache_miss", "input_changed"))
        self.assertGreater(seen.cache_missed_tokens, 0)
        self.assertGreater(seen.comparison_reusable_tokens, 64)
        self.assertLess(seen.comparison_reusable_tokens, first.usage.input_tokens)
        self.assertEqual(compared(RULES + "One red fox.", first.id).type, "cache_hit")
        self.assertEqual(compared(RULES, "resp_nobody").type, "comparison_response_not_found")
        tools = respond(RULES + "One red fox.", tools=[TOOL],
                        prompt_cache_options={"comparison_response_id": first.id}).prompt_cache_diagnostics
        self.assertEqual((tools.type, tools.reason), ("cache_miss", "tools_changed"))

        warm = respond("A prompt to be read first. " * 12, prompt_cache_options={"prewarm": True})
        self.assertEqual((warm.status, warm.output, warm.usage.output_tokens), ("completed", [], 0))
        after = respond("A prompt to be read first. " * 12)
        self.assertGreaterEqual(after.usage.input_tokens_details.cached_tokens, (warm.usage.input_tokens - 1) // BLOCK * BLOCK)
        self.assertGreater(after.usage.output_tokens, 0)
        events = [e.type for e in respond("Another prompt.", stream=True, prompt_cache_options={"prewarm": True})]
        self.assertEqual(events, ["response.created", "response.in_progress", "response.completed"])

    def test_cache_fields(self):
        whole = respond(RULES, prompt_cache_key="k", prompt_cache_retention="24h", prompt_cache_options={"ttl": "12h"})
        self.assertEqual((whole.prompt_cache_key, whole.prompt_cache_options.ttl), ("k", "12h"))
        explicit = respond(RULES, prompt_cache_options={"mode": "explicit"})
        self.assertEqual((explicit.usage.input_tokens_details.cached_tokens,
                          explicit.usage.input_tokens_details.cache_write_tokens), (0, 0))
        told = respond(RULES, extra_body={"kv": {"report": ["explain"]}})
        self.assertEqual(told.kv["prompt_tokens"], told.usage.input_tokens)
        self.assertEqual(SERVER.get(f"/v1/kv/requests/{told.id}")["prompt_tokens"], told.usage.input_tokens)

    def test_logprobs(self):
        whole = respond(include=["message.output_text.logprobs"], top_logprobs=2, extra_body={"ignore_eos": True})
        logprobs = whole.output[0].content[0].logprobs
        self.assertEqual(len(logprobs), whole.usage.output_tokens)
        self.assertTrue(all(len(l.top_logprobs) == 2 for l in logprobs))
        events = list(respond(include=["message.output_text.logprobs"], top_logprobs=2, stream=True,
                              extra_body={"ignore_eos": True}))
        joined = [l.logprob for e in events if e.type == "response.output_text.delta" for l in e.logprobs]
        self.assertEqual(joined, [l.logprob for l in logprobs])

    def test_tools(self):
        forced = dict(tools=[TOOL], tool_choice={"type": "function", "name": "get_weather"}, max_output_tokens=64)
        whole = respond("Weather in Rome?", **forced)
        call = whole.output[0]
        self.assertEqual((call.type, call.name), ("function_call", "get_weather"))
        self.assertIn(json.loads(call.arguments)["city"], ("Paris", "Rome"))
        events = list(respond("Weather in Rome?", stream=True, **forced))
        joined = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
        self.assertEqual(joined, call.arguments)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "18 C"}
        after = respond([result], previous_response_id=whole.id, tools=[TOOL])
        self.assertGreaterEqual(after.usage.input_tokens_details.cached_tokens, whole.usage.input_tokens // BLOCK * BLOCK)
        with self.assertRaises(openai.BadRequestError) as caught:
            respond([{**result, "call_id": "call_x"}], previous_response_id=whole.id)
        self.assertEqual(caught.exception.param, "input[0].call_id")

    def test_structured_output(self):
        class Pet(pydantic.BaseModel):
            kind: typing.Literal["cat", "dog"]
            legs: typing.Literal[3, 4]
        schema = {"type": "json_schema", "name": "pet", "strict": True, "schema": {
            "type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}, "legs": {"enum": [3, 4]}},
            "required": ["kind", "legs"], "additionalProperties": False}}
        pet = json.loads(respond("A pet.", text={"format": schema}, max_output_tokens=64).output_text)
        self.assertIn(pet["kind"], ("cat", "dog"))
        parsed = CLIENT.responses.parse(model="m", input="A cat.", text_format=Pet, temperature=0, max_output_tokens=64)
        self.assertIn(parsed.output_parsed.legs, (3, 4))
        with self.assertRaises(openai.BadRequestError) as caught:
            respond(text={"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}})
        self.assertEqual(caught.exception.param, "text.format")

    def test_truncation(self):
        window = CLIENT.models.retrieve("m").max_model_len
        turns = []
        for i in range(window // 64):
            turns += [user(f"{i} " + "river " * 40), assistant("bridge " * 40)]
        turns.append(user("The end?"))
        with self.assertRaises(openai.BadRequestError) as caught:
            respond(turns)
        self.assertEqual((caught.exception.code, caught.exception.param), ("context_length_exceeded", "input"))
        kept = respond(turns, truncation="auto", instructions="Rules.")
        self.assertLess(kept.usage.input_tokens, window)
        self.assertGreater(kept.usage.input_tokens, window // 3)
        self.assertEqual(CLIENT.responses.input_tokens.count(model="m", input=turns, truncation="auto", instructions="Rules.")
                         .input_tokens, kept.usage.input_tokens)

    def test_what_is_not_there(self):
        for field, value in (("background", True), ("conversation", "conv_1"), ("prompt", {"id": "p"})):
            with self.assertRaises(openai.BadRequestError) as caught:
                respond(**{field: value})
            self.assertEqual(caught.exception.param, field)
        with self.assertRaises(openai.BadRequestError) as caught:
            respond(tools=[{"type": "web_search"}])
        self.assertEqual(caught.exception.param, "tools[0].type")
        with self.assertRaises(openai.NotFoundError) as caught:
            CLIENT.responses.create(model="nobody", input="x")
        self.assertEqual(caught.exception.code, "model_not_found")
        self.assertEqual(SERVER.call("POST", "/v1/responses/compact", {})[0], 501)


class Cancelled(unittest.TestCase):
    def running(self):
        stream = respond(stream=True, max_output_tokens=900, extra_body={"ignore_eos": True})
        return stream, next(stream).response.id

    def test_a_response_that_runs_is_cancelled(self):
        stream, id = self.running()
        self.assertEqual(SERVER.post(f"/v1/responses/{id}/cancel", {})["status"], "cancelled")
        last = list(stream)[-1]
        self.assertEqual((last.type, last.code), ("error", "request_aborted"))
        with self.assertRaises(openai.NotFoundError):
            CLIENT.responses.retrieve(id)

    def test_routes_of_other_servers(self):
        self.assertEqual(SERVER.get("/health_generate")["status"], "ok")
        self.assertTrue(SERVER.get("/get_model_info")["is_generation"])
        self.assertEqual(SERVER.get("/get_server_info")["model"], "m")
        stream, id = self.running()
        self.assertEqual(SERVER.call("POST", "/flush_cache")[0], 400)
        rid = "req_" + id.removeprefix("resp_")
        self.assertFalse(SERVER.post("/abort_request", {"rid": "req_nobody"})["success"])
        self.assertTrue(SERVER.post("/abort_request", {"rid": rid})["success"])
        self.assertEqual(list(stream)[-1].type, "error")
        wait_for(lambda: SERVER.get("/load")["server_load"] == 0)
        status, _, text = SERVER.call("GET", "/flush_cache", raw=True)
        self.assertEqual((status, text), (200, b"Cache flushed.\n"))


class Stored(unittest.TestCase):
    def test_restart(self):
        kv = tempfile.mkdtemp(dir=folder.name) + "/kv"
        for how in (signal.SIGTERM, signal.SIGKILL):
            with Server(QUIRE, TINY, "--kv-dir", kv) as server:
                client = server.openai()
                first = client.responses.create(model="m", input="river " * 20, temperature=0, max_output_tokens=8)
                gone = client.responses.create(model="m", input="bridge", max_output_tokens=8)
                client.responses.delete(gone.id)
                next_ = client.responses.create(model="m", input="tea", temperature=0, max_output_tokens=8,
                                                previous_response_id=first.id)
                client.responses.delete(next_.id)  # answered when the files before it are written
                files = os.listdir(kv + "/responses")
                self.assertEqual(len(files), 1)
                self.assertEqual(stat.S_IMODE(os.stat(f"{kv}/responses/{files[0]}").st_mode), 0o600)
                server.stop(how)
            with Server(QUIRE, TINY, "--kv-dir", kv) as server:
                client = server.openai()
                self.assertEqual(client.responses.retrieve(first.id).to_dict(), first.to_dict())
                after = client.responses.create(model="m", input="tea", temperature=0, max_output_tokens=8,
                                                previous_response_id=first.id)
                self.assertEqual(after.output_text, next_.output_text)
                self.assertEqual(after.usage.input_tokens, next_.usage.input_tokens)
                for id in (gone.id, next_.id):
                    with self.assertRaises(openai.NotFoundError):
                        client.responses.retrieve(id)
                for r in (first, after):
                    client.responses.delete(r.id)
                self.assertEqual(os.listdir(kv + "/responses"), [])

    def test_a_damaged_file_is_not_found(self):
        kv = tempfile.mkdtemp(dir=folder.name) + "/kv"
        with Server(QUIRE, TINY, "--kv-dir", kv) as server:
            first = server.openai().responses.create(model="m", input="river", max_output_tokens=4)
        (name,) = os.listdir(kv + "/responses")
        with open(f"{kv}/responses/{name}", "r+b") as file:
            file.seek(80)
            file.write(b"\xff\xfe")
        with Server(QUIRE, TINY, "--kv-dir", kv) as server:
            with self.assertRaises(openai.NotFoundError):
                server.openai().responses.retrieve(first.id)
            self.assertIn("is damaged", server.output())

    def test_tenants_and_bounds(self):
        keys = tempfile.NamedTemporaryFile("w", suffix=".keys", dir=folder.name)
        keys.write("key-of-tenant-a tenant=a\nkey-of-tenant-b tenant=b\n")
        keys.flush()
        os.chmod(keys.name, 0o600)
        with Server(QUIRE, TINY, "--api-key-file", keys.name, "--responses-max", "4") as server:
            a, b = (server.openai(api_key=f"key-of-tenant-{who}") for who in "ab")

            def ask(client, **more):
                return client.responses.create(model="m", input="river", max_output_tokens=2, **more).id
            mine = ask(a)
            for call in (b.responses.retrieve, b.responses.delete, b.responses.input_items.list):
                with self.assertRaises(openai.NotFoundError):
                    call(mine)
            with self.assertRaises(openai.BadRequestError):
                ask(b, previous_response_id=mine)
            seen = b.responses.create(model="m", input="river", max_output_tokens=2,
                                      prompt_cache_options={"comparison_response_id": mine})
            self.assertEqual(seen.prompt_cache_diagnostics.type, "comparison_response_not_found")
            others = [ask(b) for _ in range(8)]
            a.responses.retrieve(mine)  # b made room with its own
            b.responses.retrieve(others[-1])
            with self.assertRaises(openai.NotFoundError):
                b.responses.retrieve(others[0])

    def test_expiry(self):
        with Server(QUIRE, TINY, "--responses-ttl", "1") as server:
            client = server.openai()
            first = client.responses.create(model="m", input="river", max_output_tokens=2)
            deadline = 40
            while deadline:
                try:
                    client.responses.retrieve(first.id)
                except openai.NotFoundError:
                    break
                deadline -= 1
                time.sleep(0.1)
            self.assertGreater(deadline, 0)


if __name__ == "__main__":
    with Server(QUIRE, MODEL or TINY, *(["--ctx-size", "1024"] if MODEL else [])) as SERVER:
        CLIENT = SERVER.openai()
        done = unittest.main(argv=[sys.argv[0], *sys.argv[4:]], exit=False)
    sys.exit(not done.result.wasSuccessful())
