"""What a dialect costs: the time that 32 streams take in each vendor's dialect, beside OpenAI's. The same conversations are the same
tokens, and answers are greedy, so that the engine's work is equal. Rounds alternate, and medians of ratios count.

    check_dialect_speed.py QUIRE WRITE_TINY MODEL [--rounds N] [--tokens N] [--limit 0.97]

Fails where a dialect has less than `limit` of OpenAI's throughput. Needs a machine with nothing else to do.
"""
import argparse
import json
import selectors
import socket
import statistics
import sys
import time

from serving import Server

STREAMS = 32


def body_openai(text, tokens):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0, "stream": True,
            "ignore_eos": True, "stream_options": {"include_usage": True}}


def body_responses(text, tokens):
    return {"model": "m", "input": text, "max_output_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True,
            "store": False}


def body_anthropic(text, tokens):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0, "stream": True,
            "ignore_eos": True}


# Gemini and Ollama have no ignore_eos, so the prompt asks for long answers.
def body_gemini(text, tokens):
    return {"contents": [{"role": "user", "parts": [{"text": text}]}],
            "generationConfig": {"maxOutputTokens": tokens, "temperature": 0}}


def body_ollama(text, tokens):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "options": {"num_predict": tokens, "temperature": 0}}


DIALECTS = {
    "openai": ("/v1/chat/completions", body_openai),
    "responses": ("/v1/responses", body_responses),
    "anthropic": ("/v1/messages", body_anthropic),
    "gemini": ("/v1beta/models/m:streamGenerateContent?alt=sse", body_gemini),
    "ollama": ("/api/chat", body_ollama),
}


def run(server, dialect, texts, tokens):
    """Seconds until all streams have ended, and bytes. Nothing is parsed, so the client costs the same for all."""
    path, body = DIALECTS[dialect]
    waiting = selectors.DefaultSelector()
    for text in texts:
        data = json.dumps(body(text, tokens)).encode()
        s = socket.create_connection(("127.0.0.1", server.port))
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        waiting.register(s, selectors.EVENT_READ)
    began, size, open_streams = time.perf_counter(), 0, len(texts)
    while open_streams:
        for key, _ in waiting.select(60):
            part = key.fileobj.recv(1 << 16)
            size += len(part)
            if not part:
                waiting.unregister(key.fileobj)
                key.fileobj.close()
                open_streams -= 1
    return time.perf_counter() - began, size


def generated(server):
    text = server.call("GET", "/metrics", raw=True)[2].decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("vllm:generation_tokens_total"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("quire")
    parser.add_argument("write_tiny")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--limit", type=float, default=0.97)
    o = parser.parse_args()
    texts = [f"Write a long story about the number {i}, with many chapters." for i in range(STREAMS)]
    rates = {name: [] for name in DIALECTS}
    with Server(o.quire, o.model) as server:
        for name in DIALECTS:
            run(server, name, texts, o.tokens)  # prompts are cached from now on
        for r in range(o.rounds):
            names = list(DIALECTS) if r % 2 == 0 else list(reversed(DIALECTS))
            for name in names:
                before = generated(server)
                seconds, size = run(server, name, texts, o.tokens)
                end = time.time() + 5
                while (tokens := generated(server) - before) < STREAMS * o.tokens * 0.5 and time.time() < end:
                    time.sleep(0.05)
                rates[name].append(tokens / seconds)
                print(f"round {r} {name}: {tokens:.0f} tokens in {seconds:.2f} s, {tokens / seconds:.0f} tokens/s, "
                      f"{size / tokens:.0f} bytes a token", flush=True)
    slow = []
    for name in DIALECTS:
        ratio = statistics.median(a / b for a, b in zip(rates[name], rates["openai"]))
        print(f"{name}: median {statistics.median(rates[name]):.0f} tokens/s, {ratio:.3f} of OpenAI's")
        if ratio < o.limit:
            slow.append(f"{name} {ratio:.3f}")
    if slow:
        sys.exit(f"slower than {o.limit} of OpenAI's dialect: {', '.join(slow)}")


main()
