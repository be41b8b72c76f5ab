"""A model, its cache and its server in this process.

    engine = Engine("model.gguf", kv_format="int8")
    print(engine.generate("The capital of France is", max_tokens=8))
    for piece in engine.chat_stream([{"role": "user", "content": "Hello"}]):
        print(piece, end="")
"""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, overload

from . import _native
from ._events import PieceStream, chunks, error_of
from .answer import Answer, QuireError
from .models import default_model
from .policy import Kv
from .session import Session

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Engine", "Server"]

Prompt = Union[str, Sequence[int]]
Message = Mapping[str, Any]
KvLike = Union[Kv, Mapping[str, Any], None]
SelfEngine = TypeVar("SelfEngine", bound="Engine")


def _words(model: str, options: Mapping[str, Any]) -> list[str]:
    """Options as `quire serve` takes them: kv_format="int8" is --kv-format int8."""
    words = [model]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
        elif isinstance(value, (list, tuple)):
            words += [flag, ",".join(map(str, value))]
        else:
            words += [flag, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return words


class Engine:
    """Answers prompts. One engine may be used from any number of threads and tasks at once; its
    requests share steps and the cache, and none of them changes the answer of another.

    `model` is a GGUF file, a Hugging Face folder or a name in the cache folder; without one, a small
    model is fetched on first use. Other options are those of `quire serve`, with underscores:
    `kv_format="int8"`, `kv_cache_memory="4GiB"`, `threads=4`, `kv_dir="cache"`.
    """

    _listens = False

    def __init__(self, model: str | os.PathLike[str] | None = None, **options: Any) -> None:
        path = os.fspath(model) if model is not None else default_model()
        if not self._listens:
            options.setdefault("max_queue", 1_000_000)  # there is nobody to protect from this program
        self._native = _native.Engine(_words(path, options), self._listens)

    def close(self) -> None:
        """Ends what is running and gives the memory back."""
        self._native.close()

    def __enter__(self: SelfEngine) -> SelfEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    # Requests of any route.

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Calls a route of the server (docs/server.md) and returns its JSON."""
        call = self._call(method, path, body)
        text = b""
        while chunk := call.read():
            text += chunk
        return _result(text, call.status())

    async def arequest(self, method: str, path: str, body: Any = None) -> Any:
        """As `request`, without holding up the event loop."""
        call = self._call(method, path, body)
        try:
            text = b"".join([chunk async for chunk in chunks(call)])
        finally:
            call.cancel()
        return _result(text, call.status())

    def _call(self, method: str, path: str, body: Any) -> _native.Call:
        text = b"" if body is None else json.dumps(body).encode()
        return self._native.call(method, path, text, [])

    # Answers.

    @overload
    def generate(self, prompt: Prompt, max_tokens: int | None = ..., *, n: Literal[1] = ..., kv: KvLike = ...,
                 **fields: Any) -> Answer: ...

    @overload
    def generate(self, prompt: Prompt | Sequence[Prompt], max_tokens: int | None = ..., *, n: int = ...,
                 kv: KvLike = ..., **fields: Any) -> Answer | list[Answer]: ...

    def generate(self, prompt: Prompt | Sequence[Prompt], max_tokens: int | None = None, *, n: int = 1,
                 kv: KvLike = None, **fields: Any) -> Answer | list[Answer]:
        """Continues a text, or token ids. A list of prompts is answered in one batch, in order.

        Fields are those of `/v1/completions`: temperature, top_p, stop, seed, logprobs, guided_json and others.
        Returns an `Answer` (a str with its tokens, usage and cache report), or a list where there are several
        prompts or n > 1.
        """
        body = _completion(prompt, max_tokens, n, kv, fields)
        return _answers(self.request("POST", "/v1/completions", body), _is_batch(prompt) or n > 1)

    async def agenerate(self, prompt: Prompt | Sequence[Prompt], max_tokens: int | None = None, *, n: int = 1,
                        kv: KvLike = None, **fields: Any) -> Answer | list[Answer]:
        """As `generate`, awaitable."""
        body = _completion(prompt, max_tokens, n, kv, fields)
        whole = await self.arequest("POST", "/v1/completions", body)
        return _answers(whole, _is_batch(prompt) or n > 1)

    def stream(self, prompt: Prompt, max_tokens: int | None = None, *, kv: KvLike = None, **fields: Any) -> PieceStream:
        """The answer as it is made, for `for` or `async for`."""
        body = _completion(prompt, max_tokens, 1, kv, fields)
        return PieceStream(self._call("POST", "/v1/completions", _streamed(body)))

    def chat(self, messages: str | Sequence[Message], max_tokens: int | None = None, *, kv: KvLike = None,
             **fields: Any) -> Answer:
        """Answers a conversation through the model's template. A str is the message of a user.

        Fields are those of `/v1/chat/completions`: tools, response_format and others.
        """
        whole = self.request("POST", "/v1/chat/completions", _chat(messages, max_tokens, kv, fields))
        return Answer.of(whole["choices"][0], whole)

    async def achat(self, messages: str | Sequence[Message], max_tokens: int | None = None, *, kv: KvLike = None,
                    **fields: Any) -> Answer:
        """As `chat`, awaitable."""
        whole = await self.arequest("POST", "/v1/chat/completions", _chat(messages, max_tokens, kv, fields))
        return Answer.of(whole["choices"][0], whole)

    def chat_stream(self, messages: str | Sequence[Message], max_tokens: int | None = None, *, kv: KvLike = None,
                    **fields: Any) -> PieceStream:
        """As `stream`, of a conversation."""
        body = _streamed(_chat(messages, max_tokens, kv, fields))
        return PieceStream(self._call("POST", "/v1/chat/completions", body))

    # Tokens and numbers.

    def tokenize(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text. With `special`, spellings of control tokens become those tokens."""
        body = {"content": text, "prompt": text, "parse_special": special, "add_special": special}
        return list(self.request("POST", "/tokenize", body)["tokens"])

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""
        said = self.request("POST", "/detokenize", {"tokens": list(tokens)})
        return str(said.get("content", said.get("prompt")))

    def logits(self, prompt: Prompt, all: bool = False) -> npt.NDArray[np.float32]:
        """The logits that follow the prompt, [vocabulary]; with `all` those after each token, [tokens, vocabulary]."""
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        return self._native.logits(tokens, all)

    def embed(self, texts: str | Sequence[str], **fields: Any) -> npt.NDArray[np.float32]:
        """Embeddings, [texts, numbers], or [numbers] of one text."""
        import numpy as np
        whole = self.request("POST", "/v1/embeddings", {"input": _listed(texts), **fields})
        rows = np.array([one["embedding"] for one in whole["data"]], dtype=np.float32)
        return rows[0] if isinstance(texts, str) else rows

    # The cache.

    def session(self, name: str, **kv: Any) -> Session:
        """A named conversation, which is made when it is first used. `kv` is its policy (`Kv`'s fields)."""
        return Session(self, name, Kv(session=name, **kv))

    def sessions(self) -> list[str]:
        """Names of the sessions that are there."""
        names: list[str] = []
        while True:
            query = urllib.parse.urlencode({"limit": 100, **({"after": names[-1]} if names else {})})
            page = self.request("GET", f"/v1/kv/sessions?{query}")
            names += [one["id"] for one in page["data"]]
            if not page.get("has_more"):
                return names

    def stats(self) -> dict[str, Any]:
        """What the cache holds and how often it hit: `/v1/kv/stats`."""
        return dict(self.request("GET", "/v1/kv/stats"))

    def clear(self) -> dict[str, Any]:
        """Empties the cache."""
        return dict(self.request("POST", "/v1/kv/clear", {}))


class Server(Engine):
    """An engine that also listens, as `quire serve` does: other programs reach it at `url`.

        with Server("model.gguf", port=8080) as server:
            print(server.url)
    """

    _listens = True

    @property
    def port(self) -> int:
        return self._native.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _result(text: bytes, status: int) -> Any:
    try:
        body = json.loads(text) if text else {}
    except ValueError:
        if status == 200:
            return text.decode()
        body = {}
    if status < 200 or status >= 300:
        raise error_of(body, status) if status else QuireError("the engine ended")
    return body


def _listed(texts: str | Iterable[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def _is_batch(prompt: Any) -> bool:
    return not isinstance(prompt, str) and bool(len(prompt)) and not isinstance(prompt[0], int)


def _asked(max_tokens: int | None, kv: KvLike, fields: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"return_token_ids": True, **fields}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    said = kv.to_json() if isinstance(kv, Kv) else dict(kv or {})
    body["kv"] = said
    return body


def _completion(prompt: Any, max_tokens: int | None, n: int, kv: KvLike, fields: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(prompt, str):
        prompt = [p if isinstance(p, (str, int)) else list(p) for p in prompt]
    return {"prompt": prompt, "n": n, **_asked(max_tokens, kv, fields)}


def _chat(messages: str | Sequence[Message], max_tokens: int | None, kv: KvLike,
          fields: Mapping[str, Any]) -> dict[str, Any]:
    said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    return {"messages": said, **_asked(max_tokens, kv, fields)}


def _streamed(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def _answers(whole: Mapping[str, Any], several: bool) -> Answer | list[Answer]:
    answers = [Answer.of(choice, whole) for choice in whole["choices"]]
    return answers if several else answers[0]
