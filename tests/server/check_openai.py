"""The OpenAI dialect with OpenAI's own client: the checklist of the API, on a model that can talk.

    scripts/python tests/server/check_openai.py QUIRE WRITE_TINY [MODEL]

One server for all. Without MODEL (SmolLM2) everything runs on a tiny random model: shapes, counts and equality, never quality.
"""
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import unittest

import openai

from serving import HURRY, Server, Wire, events, find_model, in_threads, unchunk, wait_for

QUIRE, WRITE_TINY = sys.argv[1:3]
folder = tempfile.TemporaryDirectory()
MODEL = find_model(sys.argv[3] if len(sys.argv) > 3 else "")
if MODEL is None:
    subprocess.run([WRITE_TINY, folder.name], check=True)
    MODEL = f"{folder.name}/llama-F32.gguf"
BLOCK = 32
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards brew strong tea beside an old river".split()
SERVER = CLIENT = None


def text(count, seed=0):
    """Words that are the same for the same seed, and different from the first one on for others."""
    return " ".join(f"{seed}" if i == 0 else WORDS[(i * 7 + seed * (i % 5 + 1)) % len(WORDS)] for i in range(count))


def chat(content="Say something.", **more):
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    more = {"temperature": 0, "max_completion_tokens": 16, **more}
    return CLIENT.chat.completions.create(model="m", messages=messages, **more)


def said(answer):
    return answer.choices[0].message.content


def streamed(**more):
    return list(chat(stream=True, **more))


def long_text(seed, tokens=1300):
    """About so many tokens of words, whatever the tokenizer makes of a word."""
    per_word = len(SERVER.post("/tokenize", {"content": text(200)})["tokens"]) / 200
    return text(int(tokens / per_word), seed)


def joined(chunks, index=0):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices and c.choices[0].index == index)


class Chat(unittest.TestCase):
    def test_01_plain_call(self):
        answer = chat()
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.model, "m")
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertTrue(answer.system_fingerprint.startswith("fp_"))
        self.assertTrue(answer.id.startswith("chatcmpl-"))

    def test_02_limits(self):
        newer = chat(max_completion_tokens=1)
        older = chat(max_completion_tokens=openai.omit, max_tokens=1)
        for answer in (newer, older):
            self.assertEqual(answer.usage.completion_tokens, 1)
            self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(said(newer), said(older))

    def test_03_stream_ends_with_done(self):
        wire = Wire(SERVER)
        wire.post("/v1/chat/completions", {"model": "m", "stream": True, "max_tokens": 8, "temperature": 0, "n": 2,
                                           "messages": [{"role": "user", "content": "hi"}]})
        head = wire.until(b"\r\n\r\n")
        self.assertIn(b"text/event-stream", head)
        self.assertIn(b"x-request-id: req_", head)
        self.assertIn(b"x-kv-prompt-tokens: ", head)
        all_events = events(unchunk(wire.until(b"\r\n0\r\n\r\n")))
        wire.close()
        self.assertEqual(all_events[-1], "[DONE]")
        chunks = [json.loads(e) for e in all_events[:-1]]
        self.assertTrue(all("usage" not in c for c in chunks))
        self.assertEqual(len({(c["id"], c["created"], c["model"]) for c in chunks}), 1)
        for index in range(2):
            mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
            self.assertEqual([bool(c["delta"].get("role")) for c in mine].count(True), 1)
            self.assertTrue(mine[0]["delta"].get("role"))
            self.assertEqual([c["finish_reason"] for c in mine if c["finish_reason"]], ["length"])

    def test_04_and_05_stream_equals_whole(self):
        chat()  # so that both find the same in the cache
        whole = chat()
        chunks = streamed(stream_options={"include_usage": True})
        self.assertEqual(joined(chunks), said(whole))
        self.assertEqual(chunks[-1].choices, [])
        self.assertTrue(all(c.usage is None for c in chunks[:-1]))
        self.assertEqual(chunks[-1].usage, whole.usage)
        running = streamed(stream_options={"include_usage": True, "continuous_usage_stats": True})
        counts = [c.usage.completion_tokens for c in running]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[-1], whole.usage.completion_tokens)

    def test_06_stream_helper(self):
        ends = dict(max_completion_tokens=300, stop=[" ", "e", "a", "."])  # the helper refuses answers cut by length
        with CLIENT.chat.completions.stream(model="m", temperature=0, messages=[{"role": "user", "content": "Hello"}],
                                            **ends) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        self.assertEqual(said(final), said(chat("Hello", **ends)))

    def test_07_concurrent_streams_equal_sequential_ones(self):
        prompts = [text(30 + i, i) for i in range(8)]
        alone = [said(chat(p)) for p in prompts]

        async def one(client, prompt):
            out = ""
            async for c in await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": prompt}], temperature=0,
                    max_completion_tokens=16, stream=True):
                out += c.choices[0].delta.content or ""
            return out

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=SERVER.url + "/v1", api_key="x", timeout=HURRY) as client:
                return await asyncio.gather(*(one(client, p) for p in prompts))

        self.assertEqual(asyncio.run(all_of_them()), alone)

    def test_08_second_time_is_cached_and_says_the_same(self):
        prompt = long_text(1001)
        first, second = chat(prompt), chat(prompt)
        self.assertTrue(1000 < first.usage.prompt_tokens < 1700, first.usage.prompt_tokens)
        self.assertEqual(said(first), said(second))
        cached = second.usage.prompt_tokens_details.cached_tokens
        self.assertGreaterEqual(cached, (second.usage.prompt_tokens - 1) // BLOCK * BLOCK)
        self.assertLessEqual(cached, second.usage.prompt_tokens - 1)
        self.assertEqual(first.usage.prompt_tokens, second.usage.prompt_tokens)
        details = second.usage.prompt_tokens_details
        self.assertLessEqual(details.cached_tokens + details.cache_write_tokens, second.usage.prompt_tokens)

    def test_09_a_shared_prefix_is_shared_and_an_early_difference_is_not(self):
        prefix = long_text(1002, 1000)
        first = chat(prefix + " alpha")
        second = chat(prefix + " omega and more")
        shared = second.usage.prompt_tokens_details.cached_tokens
        self.assertGreaterEqual(shared, first.usage.prompt_tokens - 2 * BLOCK)
        other = CLIENT.completions.create(model="m", prompt=[40, *range(60, 160)], max_tokens=1, temperature=0)
        self.assertEqual(other.usage.prompt_tokens_details.cached_tokens, 0)
        other = CLIENT.completions.create(model="m", prompt=[41, *range(60, 160)], max_tokens=1, temperature=0)
        self.assertEqual(other.usage.prompt_tokens_details.cached_tokens, 0)

    def test_10_next_turn_hits_the_last_one(self):
        messages = [{"role": "user", "content": text(120, 1003)}]
        first = chat(messages)
        messages += [{"role": "assistant", "content": said(first)}, {"role": "user", "content": "And then?"}]
        second = chat(messages)
        self.assertGreaterEqual(second.usage.prompt_tokens_details.cached_tokens,
                                first.usage.prompt_tokens // BLOCK * BLOCK)

    def test_11_choices_share_one_prefill_and_repeat(self):
        ask = dict(content=text(100, 1004), n=3, temperature=1, seed=1, extra_body={"kv": {"report": ["seed"]}})
        first = chat(**ask)
        self.assertEqual([c.index for c in first.choices], [0, 1, 2])
        self.assertEqual(first.kv["computed_tokens"] + first.kv["cached_tokens"], first.usage.prompt_tokens)
        self.assertEqual(first.kv["seed"], 1)
        second = chat(**ask)
        self.assertEqual([c.message.content for c in first.choices], [c.message.content for c in second.choices])
        self.assertEqual(first.usage.completion_tokens, second.usage.completion_tokens)

    def test_12_stop_strings(self):
        whole = said(chat("Tell me a long story.", max_completion_tokens=40))
        if len(whole) < 12:
            self.skipTest("the model says too little")
        tokens = [t.token for t in chat("Tell me a long story.", max_completion_tokens=40, logprobs=True)
                  .choices[0].logprobs.content]
        at = next(i for i in range(2, len(tokens) - 1) if tokens[i].isascii() and tokens[i + 1].isascii() and
                  len(tokens[i + 1]) > 0 < len(tokens[i]))
        stop = tokens[at][-1] + tokens[at + 1][0]  # the end of a token and the beginning of the next
        self.assertIn(stop, whole)
        cut = whole[:whole.find(stop)]
        for given in (stop, [stop], ["\x00never", stop]):
            answer = chat("Tell me a long story.", max_completion_tokens=40, stop=given)
            self.assertEqual(said(answer), cut)
            self.assertEqual(answer.choices[0].finish_reason, "stop")
        chunks = streamed(content="Tell me a long story.", max_completion_tokens=40, stop=stop)
        self.assertEqual(joined(chunks), cut)
        kept = chat("Tell me a long story.", max_completion_tokens=40, stop=stop,
                    extra_body={"include_stop_str_in_output": True})
        self.assertEqual(said(kept), cut + stop)

    def test_13_logprobs(self):
        answer = chat(logprobs=True, top_logprobs=5)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), answer.usage.completion_tokens)
        self.assertEqual(bytes(b for c in content for b in c.bytes).decode(errors="replace"), said(answer))
        for entry in content:
            tops = [t.logprob for t in entry.top_logprobs]
            self.assertEqual(len(tops), 5)
            self.assertEqual(tops, sorted(tops, reverse=True))
            self.assertAlmostEqual(entry.logprob, tops[0], places=4)  # greedy
        chunks = streamed(logprobs=True, top_logprobs=5)
        again = [c for chunk in chunks if chunk.choices and chunk.choices[0].logprobs
                 for c in chunk.choices[0].logprobs.content]
        self.assertEqual([c.token for c in again], [c.token for c in content])

    def test_14_logit_bias(self):
        token = 65
        forced = CLIENT.completions.create(model="m", prompt="x", max_tokens=3, temperature=0, logit_bias={str(token): 100},
                                           extra_body={"return_token_ids": True})
        self.assertEqual(forced.choices[0].token_ids, [token] * 3)
        first = CLIENT.completions.create(model="m", prompt="x", max_tokens=1, temperature=0,
                                          extra_body={"return_token_ids": True}).choices[0].token_ids[0]
        banned = CLIENT.completions.create(model="m", prompt="x", max_tokens=1, temperature=0, logit_bias={str(first): -100},
                                           extra_body={"return_token_ids": True})
        self.assertNotEqual(banned.choices[0].token_ids, [first])

    def test_19_cache_fields_are_obeyed(self):
        prompt = text(120, 1005)
        for _ in range(2):
            quiet = chat(prompt, prompt_cache_key="k", prompt_cache_options={"mode": "explicit"})
            self.assertEqual(quiet.usage.prompt_tokens_details.cached_tokens, 0)
            self.assertEqual(quiet.usage.prompt_tokens_details.cache_write_tokens, 0)
        marked = [{"role": "user", "content": [
            {"type": "text", "text": prompt, "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}},
            {"type": "text", "text": "Go on."}]}]
        first = chat(marked, prompt_cache_options={"mode": "explicit"}, extra_body={"prompt_cache_retention": "24h"})
        self.assertLess(first.usage.prompt_tokens_details.cached_tokens, BLOCK)  # what templates begin with
        self.assertGreater(first.usage.prompt_tokens_details.cache_write_tokens, 0)
        second = chat(marked, prompt_cache_options={"mode": "explicit"})
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, BLOCK)

    def test_20_seeds(self):
        ask = dict(temperature=1, max_completion_tokens=12)
        self.assertEqual(said(chat(seed=5, **ask)), said(chat(seed=5, **ask)))
        self.assertTrue(any(said(chat(text(5, i), seed=1, **ask)) != said(chat(text(5, i), seed=2, **ask))
                            for i in range(5)))

    def test_21_unknown_model(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            CLIENT.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "x"}])
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_22_bad_values_name_their_parameter(self):
        for more, param in (({"messages": []}, "messages"),
                            ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
                            ({"temperature": 3}, "temperature"), ({"n": 0}, "n"),
                            ({"top_logprobs": 2}, "top_logprobs")):
            with self.assertRaises(openai.BadRequestError) as caught:
                CLIENT.chat.completions.create(**{"model": "m", "messages": [{"role": "user", "content": "x"}], **more})
            self.assertEqual(caught.exception.param, param)

    def test_23_length(self):
        window = SERVER.get("/v1/models")["data"][0]["max_model_len"]
        for call in (lambda: CLIENT.completions.create(model="m", prompt=[50] * (window + 1), max_tokens=1),
                     lambda: chat("a b " * window)):
            with self.assertRaises(openai.BadRequestError) as caught:
                call()
            self.assertEqual(caught.exception.code, "context_length_exceeded")
            self.assertIn(str(window), caught.exception.message)
        answer = chat("Hi", max_completion_tokens=10 * window, stop=[" ", "e", "a", "t"])
        self.assertLess(answer.usage.total_tokens, window + 1)

    def test_26_a_closed_stream_is_freed(self):
        stream = chat("Count for ever.", stream=True, max_completion_tokens=1500, extra_body={"ignore_eos": True})
        for i, _ in enumerate(stream):
            if i == 3:
                break
        running = lambda: [line.endswith(b" 0") for line in SERVER.call("GET", "/metrics", raw=True)[2].splitlines()
                           if line.startswith(b"vllm:num_requests_running")]
        self.assertEqual(running(), [False])
        stream.close()
        began = time.monotonic()
        wait_for(lambda: running() == [True])
        self.assertLess(time.monotonic() - began, 1)
        self.assertTrue(said(chat()))

    def test_extras_of_other_servers(self):
        answer = chat(max_completion_tokens=9, extra_body={"ignore_eos": True, "min_tokens": 9})
        self.assertEqual(answer.usage.completion_tokens, 9)
        greedy = chat("Well", max_completion_tokens=6, extra_body={"return_token_ids": True})
        ids = greedy.choices[0].token_ids
        self.assertEqual(len(ids), greedy.usage.completion_tokens)
        self.assertEqual(len(greedy.prompt_token_ids), greedy.usage.prompt_tokens)
        stopped = chat("Well", max_completion_tokens=6, extra_body={"stop_token_ids": [ids[2]]})
        self.assertEqual(stopped.choices[0].finish_reason, "stop")
        self.assertLessEqual(stopped.usage.completion_tokens, 3)
        short = chat(text(100), extra_body={"truncate_prompt_tokens": 10})
        self.assertEqual(short.usage.prompt_tokens, 10)
        salted = [chat(text(100, 1006), extra_body={"cache_salt": s}).usage.prompt_tokens_details.cached_tokens
                  for s in ("a", "b", "a")]
        self.assertEqual(salted[:2], [0, 0])
        self.assertGreater(salted[2], 0)

    def test_continuing_the_last_message(self):
        answer = chat([{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}],
                      extra_body={"continue_final_message": True, "add_generation_prompt": False})
        rendered = SERVER.post("/apply-template", {"messages": [{"role": "user", "content": "Count."},
                                                                {"role": "assistant", "content": "One, two,"}],
                                                   "continue_final_message": True, "add_generation_prompt": False})
        self.assertTrue(rendered["prompt"].endswith("One, two,"))
        self.assertTrue(answer.usage.prompt_tokens > 0)

    def test_tools_are_accepted_and_keep_the_prefix(self):
        tools = [{"type": "function", "function": {"name": "get_weather", "description": text(60, 1007),
                                                   "parameters": {"type": "object",
                                                                  "properties": {"city": {"type": "string"}}}}}]
        first = chat("Weather?", tools=tools)
        second = chat("Weather?", tools=tools, tool_choice="none")
        self.assertEqual(first.usage.prompt_tokens, second.usage.prompt_tokens)
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, 0)
        turn = [{"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "call_1", "type": "function",
                     "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": "18 C"}]
        self.assertTrue(chat(turn, tools=tools).usage.prompt_tokens > second.usage.prompt_tokens)


class Completions(unittest.TestCase):
    def complete(self, prompt, **more):
        return CLIENT.completions.create(model="m", prompt=prompt, **{"temperature": 0, "max_tokens": 6, **more})

    def test_27_prompts_of_all_forms(self):
        tokens = SERVER.post("/tokenize", {"prompt": "Once upon"})["tokens"]
        one = self.complete("Once upon").choices[0].text
        self.assertEqual(self.complete(tokens).choices[0].text, one)
        two = self.complete(["Once upon", "The sea"], n=2, temperature=0)
        self.assertEqual([c.index for c in two.choices], [0, 1, 2, 3])
        self.assertEqual([c.text for c in two.choices], [one, one] + [self.complete("The sea").choices[0].text] * 2)
        self.assertEqual([c.text for c in self.complete([tokens, tokens]).choices], [one, one])
        self.assertEqual("".join(c.choices[0].text for c in self.complete("Once upon", stream=True)), one)

    def test_28_scoring(self):
        prompt = "The quick brown fox jumps."
        for limit in (0, 1):
            answer = self.complete(prompt, echo=True, logprobs=1, max_tokens=limit)
            scores = answer.choices[0].logprobs
            self.assertTrue(answer.choices[0].text.startswith(prompt))
            self.assertEqual(len(scores.tokens), answer.usage.prompt_tokens + answer.usage.completion_tokens)
            self.assertIsNone(scores.token_logprobs[0])
            self.assertIsNone(scores.top_logprobs[0])
            self.assertTrue(all(p < 0 for p in scores.token_logprobs[1:]))
            self.assertEqual(scores.text_offset[0], 0)
            self.assertTrue(all(a < b for a, b in zip(scores.text_offset, scores.text_offset[1:])), scores.text_offset)
        self.assertEqual("".join(self.complete(prompt, echo=True, logprobs=1, max_tokens=0).choices[0].logprobs.tokens),
                         prompt)

    def test_29_best_of_and_beams(self):
        best = self.complete("Once", best_of=3, n=1, temperature=1, seed=3, logprobs=0)
        every = self.complete("Once", n=3, temperature=1, seed=3, logprobs=0)
        means = [sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs) for c in every.choices]
        got = best.choices[0].logprobs.token_logprobs
        self.assertEqual(len(best.choices), 1)
        self.assertAlmostEqual(sum(got) / len(got), max(means), places=4)
        for more in ({"best_of": 1, "n": 2}, {"best_of": 2, "stream": True}):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.complete("x", **more)
            self.assertEqual(caught.exception.param, "best_of")
        greedy = self.complete("Once", logprobs=0, extra_body={"ignore_eos": True})
        beam = self.complete("Once", n=3, logprobs=0, extra_body={"use_beam_search": True, "ignore_eos": True})
        self.assertGreaterEqual(sum(beam.choices[0].logprobs.token_logprobs) + 1e-3,
                                sum(greedy.choices[0].logprobs.token_logprobs))

    def test_30_suffix(self):
        try:
            self.complete("a", suffix="b")
        except openai.BadRequestError as e:
            self.assertEqual(e.param, "suffix")


class Models(unittest.TestCase):
    def test_37_models(self):
        self.assertEqual([m.id for m in CLIENT.models.list()], ["m", "org/other"])
        self.assertEqual(CLIENT.models.retrieve("org/other").id, "org/other")
        with self.assertRaises(openai.NotFoundError):
            CLIENT.models.retrieve("nobody")


class Load(unittest.TestCase):
    def test_equal_prompts_at_once_are_computed_once(self):
        prompt = text(300, 1008)
        answers = in_threads([lambda: chat(prompt, extra_body={"kv": {}})] * 6)
        self.assertEqual(len({said(a) for a in answers}), 1)
        computed = sum(a.kv["computed_tokens"] for a in answers)
        self.assertLess(computed, 2 * answers[0].usage.prompt_tokens)


if __name__ == "__main__":
    with Server(QUIRE, MODEL, "-a", "org/other") as SERVER:
        CLIENT = SERVER.openai()
        done = unittest.main(argv=[sys.argv[0], *sys.argv[4:]], exit=False)
    sys.exit(not done.result.wasSuccessful())
