"""What an engine answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Answer", "Piece", "QuireError"]


class QuireError(Exception):
    """The engine refused a request, or could not finish it."""

    def __init__(self, message: str, status: int = 0, code: str | None = None, param: str | None = None):
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


class Answer(str):
    """The text of an answer, and what is known about it."""

    finish_reason: str
    token_ids: list[int]
    prompt_token_ids: list[int] | None
    logprobs: Any
    reasoning: str | None
    tool_calls: list[dict[str, Any]]
    usage: dict[str, Any]
    kv: dict[str, Any]

    @classmethod
    def of(cls, choice: Mapping[str, Any], whole: Mapping[str, Any]) -> Answer:
        message = choice.get("message") or {}
        text = choice.get("text")
        answer = cls(message.get("content") or "" if text is None else text)
        answer.finish_reason = choice.get("finish_reason") or ""
        answer.token_ids = list(choice.get("token_ids") or [])
        answer.prompt_token_ids = choice.get("prompt_token_ids") or whole.get("prompt_token_ids")
        answer.logprobs = choice.get("logprobs")
        answer.reasoning = message.get("reasoning_content")
        answer.tool_calls = list(message.get("tool_calls") or [])
        answer.usage = dict(whole.get("usage") or {})
        answer.kv = dict(whole.get("kv") or {})
        return answer

    @property
    def cached_tokens(self) -> int:
        """How many tokens of the prompt came from the cache."""
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))


class Piece(str):
    """A part of a streamed answer: the text that became certain."""

    choice: int  # which of n
    token_ids: list[int]
    finish_reason: str | None
    reasoning: str | None
    tool_calls: list[dict[str, Any]]

    @classmethod
    def of(cls, choice: Mapping[str, Any]) -> Piece:
        delta = choice.get("delta") or {}
        text = choice.get("text")
        piece = cls(delta.get("content") or "" if text is None else text)
        piece.choice = choice.get("index", 0)
        piece.token_ids = list(choice.get("token_ids") or [])
        piece.finish_reason = choice.get("finish_reason")
        piece.reasoning = delta.get("reasoning_content")
        piece.tool_calls = list(delta.get("tool_calls") or [])
        return piece
