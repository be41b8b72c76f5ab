"""The server behind litellm, which brings the older line of OpenAI's client along, and behind LangChain.

    scripts/python --clients tests/server/check_clients.py QUIRE WRITE_TINY
"""
import os
import subprocess
import sys
import tempfile
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch one from the internet otherwise

import langchain_openai
import litellm
import openai

from serving import HURRY, Server

QUIRE, WRITE_TINY = sys.argv[1:3]
folder = tempfile.TemporaryDirectory()
subprocess.run([WRITE_TINY, folder.name], check=True)
SERVER = None


def complete(content="Hello", **more):
    return litellm.completion("openai/m", api_base=SERVER.url + "/v1", api_key="x", temperature=0, timeout=HURRY,
                              messages=[{"role": "user", "content": content}], **{"max_tokens": 8, **more})


class Clients(unittest.TestCase):
    def test_58_whole_and_streamed(self):
        whole = complete()
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        chunks = list(complete(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
                         whole.choices[0].message.content)
        usage = [c.usage for c in chunks if getattr(c, "usage", None)]
        self.assertEqual(usage[-1].prompt_tokens, whole.usage.prompt_tokens)
        complete("Hello, you. " * 20)
        again = complete("Hello, you. " * 20)
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)

    def test_58_too_long_is_told_as_such(self):
        with self.assertRaises(litellm.ContextWindowExceededError):
            complete("x" * 5000)

    def test_58_the_same_through_anthropic(self):
        if SERVER.call("POST", "/v1/messages", {}, raw=True)[0] in (404, 501):
            self.skipTest("this server does not speak Anthropic's dialect")
        ask = dict(model="anthropic/m", api_base=SERVER.url, api_key="x", temperature=0, timeout=HURRY, max_tokens=8,
                   messages=[{"role": "user", "content": "Hello, you. " * 20}])
        whole = litellm.completion(**ask)
        self.assertEqual(whole.choices[0].message.content, complete("Hello, you. " * 20).choices[0].message.content)
        chunks = list(litellm.completion(**ask, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
                         whole.choices[0].message.content)
        self.assertEqual([c.usage.prompt_tokens for c in chunks if getattr(c, "usage", None)][-1], whole.usage.prompt_tokens)

    def test_59_langchain_calls_tools(self):
        def get_weather(city: str) -> str:
            """The weather in a city."""
        chat = langchain_openai.ChatOpenAI(base_url=SERVER.url + "/v1", api_key="x", model="m", temperature=0, max_tokens=200,
                                           timeout=HURRY)
        answer = chat.bind_tools([get_weather], tool_choice="get_weather").invoke("Weather in Paris?")
        calls = answer.tool_calls + answer.invalid_tool_calls  # a tiny model may not come to the end of a string
        self.assertEqual([c["name"] for c in calls], ["get_weather"])

    def test_59_langchain_streams_and_sees_what_was_cached(self):
        chat = langchain_openai.ChatOpenAI(base_url=SERVER.url + "/v1", api_key="x", model="m", temperature=0, max_tokens=8,
                                           stream_usage=True, timeout=HURRY)
        prompt = "Once there was a chain. " * 20
        whole = chat.invoke(prompt)
        parts = list(chat.stream(prompt))
        self.assertEqual("".join(p.content for p in parts), whole.content)
        total = parts[0]
        for p in parts[1:]:
            total += p
        usage = total.usage_metadata
        self.assertGreater(usage["input_token_details"]["cache_read"], 0)
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])
        self.assertEqual(usage["input_tokens"], whole.usage_metadata["input_tokens"])

    def test_the_older_client_works(self):
        self.assertTrue(openai.__version__.startswith("2."), openai.__version__)
        client = openai.OpenAI(base_url=SERVER.url + "/v1", api_key="x", timeout=HURRY)
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=4)
        self.assertEqual(answer.object, "chat.completion")
        with self.assertRaises(openai.NotFoundError):
            client.models.retrieve("nobody")


if __name__ == "__main__":
    with Server(QUIRE, f"{folder.name}/llama-F32.gguf") as SERVER:
        done = unittest.main(argv=[sys.argv[0], *sys.argv[3:]], exit=False)
    sys.exit(not done.result.wasSuccessful())
