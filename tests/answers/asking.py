"""How record.py asks a server, and what it keeps of an answer."""
import hashlib
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))
import serving  # noqa: E402
from serving import Server, Wire, events, in_threads, unchunk  # noqa: E402,F401 - two of them for record.py and crowd.py

serving.HURRY = 900  # seconds that an answer may take; they are compared, not timed

DEFAULTS = {"model": "m", "top_p": 1}  # a server's own default for top_p is no part of an answer
KEPT = ("text", "token_ids", "prompt_token_ids", "logprobs", "prompt_logprobs", "finish_reason")


def post(server, path, body):
    status, _, answer = server.call("POST", path, {**DEFAULTS, **body})
    return status, answer


def stream(server, path, body):
    """The same answer, put together from its pieces."""
    wire = Wire(server)
    try:
        wire.post(path, {**DEFAULTS, **body, "stream": True}, headers="Connection: close\r\n")
        head = wire.until(b"\r\n\r\n")
        status = int(head.split()[1])
        if status != 200:
            return status, json.loads(wire.rest())
        parts = events(unchunk(wire.until(b"\r\n0\r\n\r\n")))
    finally:
        wire.close()
    if parts[-1] != "[DONE]":
        return 503, parts[-1]
    choices = {}
    for piece in (c for part in parts[:-1] for c in json.loads(part)["choices"]):
        choice = choices.setdefault(piece["index"], {**piece, "text": "", "token_ids": []})
        choice["text"] += piece["text"]
        choice["token_ids"] += piece["token_ids"]
        choice["finish_reason"] = piece["finish_reason"]
    return 200, {"choices": [choices[i] for i in sorted(choices)]}


def refused(status, answer):
    """Whether the server says that this cannot be asked of this model."""
    return status == 400 and answer["error"]["code"] in ("kv_format_unsupported", "invalid_value")


def digest(answer):
    """Of the tokens, texts and log-probabilities; not of names, times and counters."""
    kept = []
    for choice in answer["choices"]:
        one = {key: choice[key] for key in KEPT if choice.get(key) is not None}
        message = choice.get("message", {})
        one["content"] = message.get("content")
        one["calls"] = [call["function"] for call in message.get("tool_calls") or []]
        kept.append(one)
    data = json.dumps([kept, answer.get("prompt_token_ids")], sort_keys=True)
    return hashlib.sha256(data.encode()).hexdigest()[:16]
