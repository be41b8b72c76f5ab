"""The Anthropic dialect with Anthropic's own client: the checklist of the API, on a model that can talk.

    scripts/python --clients tests/server/check_anthropic.py QUIRE WRITE_TINY [MODEL]

Without MODEL (SmolLM2) everything runs on a tiny random model: shapes, counts and equality, never quality.
"""
import json
import subprocess
import sys
import tempfile
import unittest

import anthropic

from serving import HURRY, Server, Wire, find_model, unchunk

QUIRE, WRITE_TINY = sys.argv[1:3]
folder = tempfile.TemporaryDirectory()
MODEL = find_model(sys.argv[3] if len(sys.argv) > 3 else "")
if MODEL is None:
    subprocess.run([WRITE_TINY, folder.name], check=True)
    MODEL = f"{folder.name}/llama-F32.gguf"
BLOCK = 32
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards brew strong tea beside an old river".split()
FIVE, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
TOOL = {"name": "get_weather", "description": "Weather of a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
                         "required": ["city"], "additionalProperties": False}}
SERVER = CLIENT = None
seeds = iter(range(1000, 10**6))


def words(count, seed=None):
    """Words that no other seed begins with."""
    seed = next(seeds) if seed is None else seed
    return " ".join(f"{seed}" if i == 0 else WORDS[(i * 7 + seed * (i % 5 + 1)) % len(WORDS)] for i in range(count))


def block(text, control=None):
    return {"type": "text", "text": text, **({"cache_control": control} if control else {})}


def user(*content):
    return {"role": "user", "content": content[0] if len(content) == 1 and isinstance(content[0], str) else list(content)}


def arguments(messages="Say something.", client=None, **more):
    messages = [user(messages)] if isinstance(messages, str) else messages
    extra = {"temperature": 0, **more.pop("extra_body", {})}
    return {"model": "m", "messages": messages, "extra_body": extra, "max_tokens": 12, **more}


def ask(messages="Say something.", client=None, **more):
    return (client or CLIENT).messages.create(**arguments(messages, **more))


def said(answer):
    return "".join(b.text for b in answer.content if b.type == "text")


def prompt_tokens(usage):
    return usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens


def raw_events(body, **more):
    """(name, data) of every event of a stream, byte by byte."""
    wire = Wire(SERVER)
    wire.post("/v1/messages", {"model": "m", "max_tokens": 8, "temperature": 0, "stream": True, **body}, **more)
    head = wire.until(b"\r\n\r\n")
    text = unchunk(wire.until(b"\r\n0\r\n\r\n")).decode()
    wire.close()
    assert text.endswith("\n\n"), text
    out = []
    for event in text[:-2].split("\n\n"):
        name, data = event.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), event
        out.append((name[7:], json.loads(data[6:])))
    return head, out


class Messages(unittest.TestCase):
    def counts(self, usage):
        """(input, read, 5 minutes, 1 hour), which add up."""
        for name in ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"):
            self.assertIsInstance(getattr(usage, name), int, name)
        made = usage.cache_creation
        self.assertEqual(usage.cache_creation_input_tokens,
                         made.ephemeral_5m_input_tokens + made.ephemeral_1h_input_tokens)
        return (usage.input_tokens, usage.cache_read_input_tokens, made.ephemeral_5m_input_tokens,
                made.ephemeral_1h_input_tokens)

    def test_39_basic(self):
        answer = ask()
        self.assertEqual((answer.type, answer.role, answer.model), ("message", "assistant", "m"))
        self.assertTrue(answer.id.startswith("msg_"))
        self.assertIn(answer.stop_reason, ("end_turn", "max_tokens"))
        self.assertIsNone(answer.stop_sequence)
        self.counts(answer.usage)
        self.assertEqual(ask(max_tokens=1).usage.output_tokens, 1)
        self.assertEqual(ask(max_tokens=1).stop_reason, "max_tokens")
        raw = CLIENT.messages.with_raw_response.create(**arguments())
        self.assertEqual(raw.headers["anthropic-organization-id"], "local")
        self.assertTrue(raw.headers["request-id"].startswith("req_"))
        self.assertIn("x-kv-cached-tokens", raw.headers)
        self.assertEqual(raw.parse()._request_id, raw.headers["request-id"])

    def test_40_stream_equals_whole(self):
        ask(words(60, 40))
        whole = ask(words(60, 40))
        with CLIENT.messages.stream(**arguments(words(60, 40))) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, said(whole))
        self.assertEqual([b.text for b in final.content], [b.text for b in whole.content])
        self.assertEqual(final.stop_reason, whole.stop_reason)
        for name in ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"):
            self.assertEqual(getattr(final.usage, name), getattr(whole.usage, name), name)

    def test_40_raw_events_are_in_order(self):
        head, all_events = raw_events({"messages": [user("Hello")]})
        self.assertIn(b"text/event-stream", head)
        names = [name for name, _ in all_events]
        self.assertTrue(all(name == data["type"] for name, data in all_events))
        deltas = names.count("content_block_delta")
        self.assertGreater(deltas, 0)
        self.assertEqual(names, ["message_start", "content_block_start", "ping", *["content_block_delta"] * deltas,
                                 "content_block_stop", "message_delta", "message_stop"])
        started = all_events[0][1]["message"]
        self.assertEqual((started["content"], started["stop_reason"]), ([], None))
        self.assertGreater(started["usage"]["input_tokens"], 0)
        self.assertEqual(all_events[-2][1]["usage"]["output_tokens"], 8)

    def test_40_a_long_prompt_begins_its_stream_before_the_first_token(self):
        # What message_start says about the cache is what message_delta says in the end.
        body = {"system": [block(words(200), FIVE)], "messages": [user("Hello")]}
        for _ in range(2):
            _, all_events = raw_events(body)
            start, end = all_events[0][1]["message"]["usage"], all_events[-2][1]["usage"]
            for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "cache_creation"):
                self.assertEqual(start[name], end[name], name)

    def test_41_count_tokens(self):
        cases = [
            dict(messages=[user("Hello")]),
            dict(messages=[user("Hello")], system="Be terse."),
            dict(messages=[user("Hello")], system=[block("Be terse."), block(words(80), HOUR)]),
            dict(messages=[user("Weather?")], tools=[TOOL]),
            dict(messages=[user(block("One"), block("two", FIVE)), {"role": "assistant", "content": "Three"}, user("four")]),
            dict(messages=[user("Hi"), {"role": "assistant", "content": "The answer is"}]),
        ]
        for case in cases:
            counted = CLIENT.messages.count_tokens(model="m", **case).input_tokens
            for _ in range(2):
                self.assertEqual(prompt_tokens(ask(**case).usage), counted, case)
        # What is too long to answer can be counted.
        self.assertGreater(CLIENT.messages.count_tokens(model="m", messages=[user(words(20000))]).input_tokens, 15000)

    def test_42_cache_control_on_system(self):
        case = dict(messages=[user("Hello")], system=[block(words(150), FIVE)])
        first, second = ask(**case), ask(**case)
        self.assertEqual(said(first), said(second))
        a, b = self.counts(first.usage), self.counts(second.usage)
        self.assertGreater(a[2], 0)
        self.assertLess(a[1], BLOCK)  # the template's own words
        self.assertEqual(a[3], 0)
        self.assertGreaterEqual(b[1], a[1] + a[2])
        self.assertEqual(b[2:], (0, 0))
        self.assertEqual(sum(a), sum(b))
        # A change behind the breakpoint leaves what was kept.
        case["messages"] = [user("Something else")]
        self.assertGreaterEqual(self.counts(ask(**case).usage)[1], a[2])

    def test_42_without_cache_control_nothing_is_kept_and_a_hit_is_a_hit(self):
        text = words(150)
        first, second = self.counts(ask(text).usage), self.counts(ask(text).usage)
        self.assertEqual((first[2:], second[2:]), ((0, 0), (0, 0)))
        self.assertLess(first[1], BLOCK)
        self.assertGreater(second[1], 64)

    def test_43_times_to_live(self):
        hour = self.counts(ask(system=[block(words(150), HOUR)]).usage)
        self.assertLess(hour[1], BLOCK)
        self.assertEqual(hour[2], 0)
        self.assertGreater(hour[3], 0)
        rules, more = words(150), words(150)
        mixed = self.counts(ask([user(block(more, FIVE), block("Go."))], system=[block(rules, HOUR)]).usage)
        self.assertTrue(mixed[2] > 0 and mixed[3] > 0, mixed)
        self.assertEqual(mixed[2] % BLOCK + sum(mixed[1:]) % BLOCK, 0)
        tools = self.counts(ask(tools=[{**TOOL, "description": words(80), "cache_control": HOUR}]).usage)
        self.assertGreater(tools[3], 0)
        for wrong in (
                dict(messages=[user(block("a", FIVE), block("b", HOUR))]),
                dict(messages=[user(*[block(f"{i}", FIVE) for i in range(5)])]),
                dict(messages=[user(*[block(f"{i}", FIVE) for i in range(4)], block("last"))], cache_control=FIVE),
                dict(messages=[user(block("a", {"type": "ephemeral", "ttl": "2h"}))]),
                dict(messages=[user(block("a", {"type": "other"}))])):
            with self.assertRaises(anthropic.BadRequestError):
                ask(**wrong)

    def test_44_growing_conversation(self):
        turns, kept = [], 0
        for turn in range(4):
            turns.append(user(block(words(70), FIVE)))
            answer = ask(turns)
            usage = self.counts(answer.usage)
            # What was kept is read, and only what is new is made.
            self.assertGreaterEqual(usage[1], kept)
            self.assertLess(usage[1], kept + 3 * BLOCK)
            self.assertEqual(usage[1] + usage[2], (usage[1] + usage[2]) // BLOCK * BLOCK)
            self.assertGreater(usage[2], 0)
            kept = usage[1] + usage[2]
            del turns[-1]["content"][0]["cache_control"]
            turns.append({"role": "assistant", "content": said(answer) or "Yes."})

    def test_45_top_level_cache_control(self):
        text = words(150)
        alone = self.counts(ask([user(block(text, HOUR))]).usage)
        other = words(150)
        automatic = self.counts(ask([user(block(other))], cache_control=HOUR).usage)
        self.assertEqual((automatic[1] < BLOCK, automatic[2], automatic[3] > 0), (True, 0, True))
        self.assertLessEqual(abs(sum(automatic[1:]) - sum(alone[1:])), BLOCK)
        self.assertEqual(self.counts(ask([user(block(text))], cache_control=FIVE).usage)[2:], (0, 0))

    def test_46_stop_sequences(self):
        whole = said(ask("Count to ten.", max_tokens=40))
        stop = whole[len(whole) // 2:][:3]
        stopped = ask("Count to ten.", max_tokens=40, stop_sequences=["never said", stop])
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", stop))
        self.assertEqual(said(stopped), whole[:whole.index(stop)])
        with CLIENT.messages.stream(**arguments("Count to ten.", max_tokens=40, stop_sequences=[stop])) as stream:
            final = stream.get_final_message()
        self.assertEqual((said(final), final.stop_reason, final.stop_sequence), (said(stopped), "stop_sequence", stop))

    def test_47_prefill(self):
        whole = said(ask("Tell a story.", max_tokens=16))
        cut = whole[:len(whole) // 2].rstrip()
        continued = said(ask([user("Tell a story."), {"role": "assistant", "content": cut}], max_tokens=8))
        self.assertFalse(continued.startswith(cut), continued)
        self.assertGreater(len(continued), 0)
        # The same text before it: nothing of a template stands between.
        self.assertEqual(
            CLIENT.messages.count_tokens(model="m", messages=[user("Hi"), {"role": "assistant", "content": "x"}]).input_tokens,
            CLIENT.messages.count_tokens(model="m", messages=[user("Hi")]).input_tokens + 1)

    def test_48_forced_tool(self):
        case = dict(tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=80)
        answer = ask("Weather in Rome?", **case)
        self.assertEqual(answer.stop_reason, "tool_use")
        call = answer.content[-1]
        self.assertEqual((call.type, call.name), ("tool_use", "get_weather"))
        self.assertIn(call.input["city"], ("Oslo", "Rome"))
        with CLIENT.messages.stream(**arguments("Weather in Rome?", **case)) as stream:
            pieces = [e.partial_json for e in stream if e.type == "input_json"]
            final = stream.get_final_message()
        self.assertEqual(json.loads("".join(pieces)), call.input)
        self.assertEqual(final.content[-1].input, call.input)
        any_tool = ask("Weather?", **{**case, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}})
        self.assertEqual([b.type for b in any_tool.content], ["tool_use"])
        turns = [user("Weather in Rome?"), {"role": "assistant", "content": [call.to_dict()]},
                 user({"type": "tool_result", "tool_use_id": call.id, "content": [block("18 C", FIVE)]})]
        self.assertGreater(ask(turns, tools=[TOOL]).usage.output_tokens, 0)
        turns[-1]["content"][0]["tool_use_id"] = "toolu_other"
        with self.assertRaises(anthropic.BadRequestError):
            ask(turns, tools=[TOOL])

    def test_48_output_format(self):
        schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
        answer = ask("Number?", max_tokens=60, extra_body={"output_config": {"format": {"type": "json_schema", "schema": schema}}})
        self.assertIn(json.loads(said(answer))["n"], (1, 2))

    def test_49_max_tokens_0_warms(self):
        case = dict(messages=[user("Hello")], system=[block(words(150), HOUR)])
        warm = ask(**case, max_tokens=0)
        self.assertEqual((warm.content, warm.stop_reason, warm.usage.output_tokens), ([], "max_tokens", 0))
        made = self.counts(warm.usage)[3]
        self.assertGreater(made, 0)
        self.assertGreaterEqual(self.counts(ask(**case).usage)[1], made)
        _, all_events = raw_events({**case, "max_tokens": 0})
        self.assertEqual([name for name, _ in all_events], ["message_start", "message_delta", "message_stop"])

    def test_50_diagnostics(self):
        rules, text = words(120), words(60)
        base = dict(system=[block(rules)], tools=[TOOL])
        turns = [user(text)]

        def reason(previous, messages=turns, **changed):
            answer = ask(messages, diagnostics={"previous_message_id": previous}, **{**base, **changed})
            return answer.diagnostics and answer.diagnostics.cache_miss_reason

        first = ask(turns, **base)
        self.assertIsNone(first.diagnostics)
        self.assertIsNone(reason(None))
        self.assertIsNone(reason(first.id))
        # Appended turns are no change.
        self.assertIsNone(reason(first.id, [*turns, {"role": "assistant", "content": said(first) or "Yes."}, user("And?")]))
        other = {**TOOL, "name": "get_time"}
        cases = [
            ("messages_changed", dict(messages=[user(words(60))])),
            ("system_changed", dict(system=[block(words(120))])),
            ("tools_changed", dict(tools=[{**other, "description": words(30)}])),
            ("tools_changed", dict(tools=[TOOL, {**other, "description": words(30)}])),
            ("tools_changed", dict(tools=[], system=[block(words(120))])),  # the first difference of both
        ]
        for type, changed in cases:
            seen = reason(first.id, **changed)
            self.assertEqual(seen.type, type, changed)
            self.assertGreater(seen.cache_missed_input_tokens, 0)
        salted = ask(turns, diagnostics={"previous_message_id": first.id}, extra_body={"kv": {"salt": "s"}}, **base)
        self.assertEqual(salted.diagnostics.cache_miss_reason.type, "unavailable")
        unread = ask(turns, diagnostics={"previous_message_id": first.id}, extra_body={"kv": {"reuse": "none"}}, **base)
        self.assertEqual(unread.diagnostics.cache_miss_reason.type, "unavailable")

    def test_50_unknown_messages_and_streams(self):
        answer = ask(words(60), diagnostics={"previous_message_id": "msg_nobody"})
        self.assertEqual(answer.diagnostics.cache_miss_reason.type, "previous_message_not_found")
        _, streamed = raw_events({"messages": [user(words(60))], "diagnostics": {"previous_message_id": answer.id}})
        reason = streamed[0][1]["message"]["diagnostics"]["cache_miss_reason"]
        self.assertEqual(reason["type"], "messages_changed")
        self.assertGreater(reason["cache_missed_input_tokens"], 0)
        with self.assertRaises(anthropic.BadRequestError):
            ask(diagnostics={"previous_message_id": "x" * 300})

    def test_51_errors(self):
        status, headers, body = SERVER.call("POST", "/v1/messages", {"model": "m", "messages": [user("x")]})
        self.assertEqual((status, body["type"], body["error"]["type"]), (400, "error", "invalid_request_error"))
        self.assertEqual(body["error"]["message"], "max_tokens: Field required")
        self.assertEqual(body["request_id"], headers["request-id"])
        with self.assertRaises(anthropic.NotFoundError) as caught:
            ask(model="nobody")
        self.assertEqual(caught.exception.type, "not_found_error")
        self.assertEqual(caught.exception.body["error"]["message"], "model: nobody")
        self.assertTrue(caught.exception.request_id.startswith("req_"))
        with self.assertRaises(anthropic.NotFoundError):
            CLIENT.messages.count_tokens(model="nobody", messages=[user("x")])
        with self.assertRaises(anthropic.BadRequestError) as caught:
            ask(words(20000))
        self.assertRegex(caught.exception.body["error"]["message"], r"prompt is too long: \d+ tokens > \d+ maximum")
        for wrong in (dict(messages=[]), dict(messages=[{"role": "robot", "content": "x"}]),
                      dict(messages=[user({"type": "image", "source": {"type": "url", "url": "http://x"}})]),
                      dict(messages=[user(block(""))]), dict(extra_body={"kv": {"tpyo": 1}})):
            with self.assertRaises(anthropic.BadRequestError, msg=wrong):
                ask(**wrong)
        status, _, body = SERVER.call("GET", "/v1/messages")
        self.assertEqual((status, body["type"]), (405, "error"))
        status, _, body = SERVER.call("POST", "/v1/messages", "{")
        self.assertEqual((status, body["error"]["type"]), (400, "invalid_request_error"))
        with self.assertRaises(anthropic.NotFoundError) as caught:
            CLIENT.models.retrieve("nobody")
        self.assertEqual(caught.exception.body["type"], "error")
        self.assertEqual(CLIENT.models.retrieve("m").id, "m")
        self.assertEqual([m.id for m in CLIENT.models.list()], ["m"])

    def test_52_dialects_share_what_is_cached(self):
        rules, question = words(150), words(20)
        first = SERVER.post("/v1/chat/completions", {
            "model": "m", "max_tokens": 8, "temperature": 0,
            "messages": [{"role": "system", "content": [block(rules), block("More.")]}, {"role": "user", "content": question}]})
        second = ask(question, system=[block(rules), block("More.", FIVE)], max_tokens=8)
        tokens = first["usage"]["prompt_tokens"]
        self.assertEqual(prompt_tokens(second.usage), tokens)
        self.assertGreaterEqual(second.usage.cache_read_input_tokens, (tokens - 1) // BLOCK * BLOCK)
        self.assertEqual(said(second), first["choices"][0]["message"]["content"])
        # With calls and their results, too.
        call = {"name": "get_weather", "input": {"city": "Oslo"}}
        turns = [user(question), {"role": "assistant", "content": [block("I look."), {"type": "tool_use", "id": "t", **call}]},
                 user({"type": "tool_result", "tool_use_id": "t", "content": "18 C"})]
        mine = ask(turns, tools=[TOOL], system=rules, max_tokens=4)
        theirs = SERVER.post("/v1/chat/completions", {
            "model": "m", "max_tokens": 4, "temperature": 0,
            "tools": [{"type": "function", "function": {"name": TOOL["name"], "description": TOOL["description"],
                                                        "parameters": TOOL["input_schema"]}}],
            "messages": [{"role": "system", "content": rules}, user(question),
                         {"role": "assistant", "content": "I look.", "tool_calls": [
                             {"id": "c", "type": "function", "function": {"name": call["name"],
                                                                         "arguments": json.dumps(call["input"])}}]},
                         {"role": "tool", "tool_call_id": "c", "content": "18 C"}]})
        tokens = prompt_tokens(mine.usage)
        self.assertEqual(theirs["usage"]["prompt_tokens"], tokens)
        self.assertGreaterEqual(theirs["usage"]["prompt_tokens_details"]["cached_tokens"], (tokens - 1) // BLOCK * BLOCK)

    def test_kv_object(self):
        case = dict(messages=[user(words(100))], extra_body={"kv": {"report": ["explain", "timing"]}})
        ask(**case)
        kv = ask(**case).kv
        self.assertGreater(kv["cached_tokens"], 0)
        self.assertEqual(kv["prompt_tokens"], kv["cached_tokens"] + kv["computed_tokens"])
        self.assertEqual(kv["explain"]["outcome"], "hit")
        self.assertNotIn("kv", ask().to_dict())
        _, all_events = raw_events({"messages": [user("Hello")], "kv": {"report": ["usage"]}})
        self.assertIn("cached_tokens", all_events[-2][1]["kv"])
        found = SERVER.get(f"/v1/kv/requests/{ask(words(50)).id}")
        self.assertEqual(found["segments"][-1]["name"], "messages[0]")
        asked = SERVER.post("/v1/kv/lookup", {"dialect": "anthropic", "request": {
            "max_tokens": 1, "system": "Rules", "messages": [user(block("a"), block(words(50)))]}})
        self.assertEqual(asked["first_miss"]["segment"], "system[0]")


class Keeping(unittest.TestCase):
    """What a breakpoint asks to keep is there until its time is over, within the pin budget."""

    def test_pressure_leaves_what_breakpoints_keep(self):
        with Server(QUIRE, MODEL, "--kv-cache-memory", self.memory(), "-c", "1024") as server:
            client = server_client(server)
            rules = words(220)
            kept = ask("Hi", client, system=[block(rules, FIVE)], max_tokens=1)
            plain = words(220)
            ask(plain, client, max_tokens=1)
            made = kept.usage.cache_creation_input_tokens
            self.assertGreater(made, 0)
            self.assertGreater(server.get("/v1/kv/leases")["data"][0]["tokens"], 0)
            for _ in range(12):
                ask(words(220), client, max_tokens=1)
            self.assertGreater(server.get("/v1/kv/stats")["evictions"]["total"], 0)
            self.assertEqual(ask(plain, client, max_tokens=1).usage.cache_read_input_tokens // BLOCK, 0)
            self.assertGreaterEqual(ask("Hi again", client, system=[block(rules, FIVE)], max_tokens=1).usage.cache_read_input_tokens,
                                    made)
            # Asked for again, it is one lease with a later end.
            self.assertEqual(len(server.get("/v1/kv/leases")["data"]), 1)
            # Pins have a budget: what exceeds it is not kept, and not reported as kept.
            for _ in range(8):
                last = ask("Hi", client, system=[block(words(220), HOUR)], max_tokens=1, extra_body={"kv": {}})
            self.assertEqual(last.usage.cache_creation_input_tokens, 0)
            self.assertIn("pin", last.kv["lease_problem"])
            # A request that could not go on otherwise gets the room.
            long = ask(words(620), client, max_tokens=200, extra_body={"ignore_eos": True})
            self.assertEqual(long.usage.output_tokens, 200)

    def memory(self):
        """Of about five prompts of 220 words."""
        per_token = SERVER.get("/v1/models/m")["kv"]["bytes_per_token"]
        tokens = CLIENT.messages.count_tokens(model="m", messages=[user(words(220))]).input_tokens
        return max(int(5.2 * tokens * per_token), 1 << 20)

    def test_vendor_accounting(self):
        with Server(QUIRE, MODEL, "--cache-accounting", "vendor", "--cache-min-tokens", "64") as server:
            client = server_client(server)
            text, rules = words(150), words(150)
            for _ in range(2):
                usage = ask(text, client).usage
                self.assertEqual((usage.cache_read_input_tokens, usage.cache_creation_input_tokens), (0, 0))
            case = dict(messages=[user("Hello")], client=client, system=[block(rules, FIVE)])
            first, second = ask(**case).usage, ask(**case).usage
            self.assertEqual(first.cache_read_input_tokens, 0)
            self.assertGreater(first.cache_creation_input_tokens, 64)
            self.assertGreaterEqual(second.cache_read_input_tokens, first.cache_creation_input_tokens)
            self.assertEqual(second.cache_creation_input_tokens, 0)
            self.assertEqual(prompt_tokens(first), prompt_tokens(second))
            # A prefix that is too short is not cached, and its breakpoint is no error.
            short = ask("Hi", client, system=[block("Be terse.", FIVE)]).usage
            self.assertEqual(short.cache_creation_input_tokens, 0)
            # The vendor looks at most 20 blocks back.
            blocks = [block(words(8)) for _ in range(30)]
            ask([user(*blocks[:5], {**blocks[5], "cache_control": FIVE})], client)
            near = ask([user(*blocks[:20], {**blocks[20], "cache_control": FIVE})], client).usage
            self.assertGreater(near.cache_read_input_tokens, 0)

    def test_50_diagnostics_are_about_the_tenant_s_own(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("secret-key-1 tenant=a\nsecret-key-2 tenant=b\n")
            keys.flush()
            with Server(QUIRE, MODEL, "--api-key-file", keys.name, "--explain-keep", "4") as server:
                a, b = server_client(server, "secret-key-1"), server_client(server, "secret-key-2")
                text = words(60)
                mine = ask(text, a).id

                def why(client, messages=text):
                    told = ask(messages, client, diagnostics={"previous_message_id": mine}).diagnostics
                    return told and told.cache_miss_reason.type
                self.assertEqual(why(b), "previous_message_not_found")
                self.assertIsNone(why(a))
                self.assertEqual(why(a, words(60)), "messages_changed")
                for _ in range(4):
                    ask("x", a, max_tokens=1)
                self.assertEqual(why(a, words(60)), "previous_message_not_found")  # only so many are remembered

    def test_51_keys_and_strictness(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("secret-key-1 tenant=a\n")
            keys.flush()
            with Server(QUIRE, MODEL, "--api-key-file", keys.name, "--anthropic-strict") as server:
                for headers in ({"x-api-key": "secret-key-1"}, {"Authorization": "Bearer secret-key-1"}):
                    server.post("/v1/messages", {"model": "m", "max_tokens": 1, "messages": [user("x")]}, headers=headers)
                status, _, body = server.call("POST", "/v1/messages", {}, headers={"x-api-key": "wrong-key-2"})
                self.assertEqual((status, body["error"]["type"]), (401, "authentication_error"))
                with self.assertRaises(anthropic.AuthenticationError):
                    ask(client=server_client(server, "wrong-key-2"))
                warm = {"model": "m", "max_tokens": 1, "temperature": 0.5, "messages": [user("x")]}
                for version, want in (("2023-06-01", 200), ("2026-10-21", 400)):
                    status, _, _ = server.call("POST", "/v1/messages", warm,
                                               headers={"x-api-key": "secret-key-1", "anthropic-version": version})
                    self.assertEqual(status, want)


def server_client(server, key="none"):
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=HURRY)


if __name__ == "__main__":
    with Server(QUIRE, MODEL) as SERVER:
        CLIENT = server_client(SERVER)
        done = unittest.main(argv=[sys.argv[0], *sys.argv[4:]], exit=False)
    sys.exit(not done.result.wasSuccessful())
