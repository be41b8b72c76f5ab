"""Streams of server-sent events, as they come from a call of the engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from . import _native
from .answer import Piece, QuireError


class _Lines:
    """Cuts bytes into the JSON of their `data:` lines."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, chunk: bytes) -> list[Any]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        said = [line[6:] for line in lines if line.startswith(b"data: ")]
        return [json.loads(text) for text in said if text != b"[DONE]"]


def error_of(body: Any, status: int) -> QuireError:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return QuireError(f"the engine answered {status}", status)
    return QuireError(str(error.get("message")), status, error.get("code"), error.get("param"))


def _whole_error(call: _native.Call) -> QuireError:
    body = b""
    while chunk := call.read():
        body += chunk
    try:
        return error_of(json.loads(body), call.status())
    except ValueError:
        return QuireError("the engine ended", call.status())


class PieceStream:
    """The pieces of an answer, for `for` or for `async for`. Leaving the loop ends the request."""

    def __init__(self, call: _native.Call) -> None:
        self._call = call
        self._lines = _Lines()
        self.usage: dict[str, Any] = {}
        self.kv: dict[str, Any] = {}

    def close(self) -> None:
        self._call.cancel()

    def _pieces(self, chunk: bytes) -> Iterator[Piece]:
        for event in self._lines.add(chunk):
            if "error" in event:
                raise error_of(event, self._call.status())
            self.usage = event.get("usage") or self.usage
            self.kv = event.get("kv") or self.kv
            for choice in event.get("choices", ()):
                yield Piece.of(choice)

    def __iter__(self) -> Iterator[Piece]:
        try:
            if self._call.status() != 200:
                raise _whole_error(self._call)
            while chunk := self._call.read():
                yield from self._pieces(chunk)
        finally:
            self.close()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        try:
            async for chunk in chunks(self._call):
                if self._call.status() != 200:
                    raise error_of(json.loads(chunk), self._call.status())
                for piece in self._pieces(chunk):
                    yield piece
        finally:
            self.close()


async def chunks(call: _native.Call) -> AsyncIterator[bytes]:
    """The body of a call as it comes, without a thread that waits."""
    loop = asyncio.get_running_loop()
    news = asyncio.Event()
    loop.add_reader(call.fileno(), news.set)
    try:
        while True:
            await news.wait()
            news.clear()
            chunk = call.try_read()
            if chunk == b"":
                return
            if chunk:
                yield chunk
    finally:
        loop.remove_reader(call.fileno())
