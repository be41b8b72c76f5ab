"""The same answer under load: random arrivals, cancels, shared prefixes, seeds and choices, each compared with the same
request sent alone and computed from nothing.

    scripts/python tests/server/check_trace.py QUIRE WRITE_TINY [MODEL] [--requests N] [--seed S]

By default 1,900 requests on a tiny model whose cache is too small for them, and 100 on MODEL (SmolLM2), where there is one.
"""
import argparse
import http.client
import json
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time

from serving import HURRY, Server, Wire, events, find_model, unchunk, wait_for


def make_request(chance, prefixes, vocabulary, tokens_max, long_ones=0):
    prefix = chance.choice(prefixes)
    prompt = prefix[:chance.randrange(1, len(prefix) + 1)] + [chance.randrange(40, vocabulary)
                                                               for _ in range(chance.randrange(0, 40))]
    request = {"model": "m", "prompt": prompt, "max_tokens": chance.randrange(1, tokens_max + 1),
               "temperature": chance.choice([0, 0, 1, 1.5]), "seed": chance.randrange(1000), "ignore_eos": True,
               "return_token_ids": True}
    if chance.random() < long_ones:  # so that they outgrow the room there was when they began
        request["max_tokens"] += 40 * tokens_max
    elif chance.random() < 0.2:
        request["n"] = chance.randrange(2, 5)
    if chance.random() < 0.1:
        request["logprobs"] = 2
    if chance.random() < 0.1:
        request["stop_token_ids"] = [chance.randrange(40, vocabulary) for _ in range(20)]
    if chance.random() < 0.05:
        request.update(use_beam_search=True, n=3, temperature=0, max_tokens=tokens_max)
    elif chance.random() < 0.1:
        request["frequency_penalty"] = 0.7
    return request


def send(server, request, cancel_after=None):
    """The choices, or None for a request that was left alone midway."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HURRY)
    try:
        connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
        if cancel_after is not None:
            time.sleep(cancel_after)
            return None
        response = connection.getresponse()
        body = json.loads(response.read())
        assert response.status == 200, body
        assert body["usage"]["prompt_tokens"] == len(request["prompt"]), body["usage"]
        return body["choices"]
    finally:
        connection.close()


def send_streaming(server, request):
    """Text and reason of every choice, put together from its pieces."""
    wire = Wire(server)
    try:
        wire.post("/v1/completions", {**request, "stream": True})
        head = wire.until(b"\r\n\r\n")
        assert b" 200 " in head, head + wire.buffer
        parts = events(unchunk(wire.until(b"\r\n0\r\n\r\n")))
    finally:
        wire.close()
    assert parts[-1] == "[DONE]", parts[-1]
    told = {}
    for choice in (c for part in parts[:-1] for c in json.loads(part)["choices"]):
        text, _ = told.get(choice["index"], ("", None))
        told[choice["index"]] = (text + choice["text"], choice["finish_reason"])
    return [told[i] for i in sorted(told)]


def as_streamed(choices):
    return [(c["text"], c["finish_reason"]) for c in choices]


def run(quire, model, count, distinct, clients, seed, vocabulary, tokens_max, long_ones, *arguments):
    chance = random.Random(seed)
    prefixes = [[chance.randrange(40, vocabulary) for _ in range(chance.choice([40, 100, 400, 900]))] for _ in range(6)]
    requests = [make_request(chance, prefixes, vocabulary, tokens_max, long_ones) for _ in range(distinct)]
    with Server(quire, model, *arguments) as server:
        work = queue.Queue()
        sessions = random.Random(seed + 1)  # a plain request answers the same, whatever its session was before
        for number in range(count):
            session = f"s{sessions.randrange(4)}" if number < 500 and sessions.random() < 0.3 else None
            work.put((chance.randrange(distinct), chance.random() * 0.05 if chance.random() < 0.08 else None,
                      chance.random() < 0.3, chance.random() * 0.01, session))
        answers, streamed, problems = {}, {}, []

        def client():
            while not problems:
                try:
                    index, cancel_after, stream, pause, session = work.get_nowait()
                except queue.Empty:
                    return
                time.sleep(pause)
                asked = requests[index]
                if session and "n" not in asked:
                    asked = {**asked, "kv": {"session": session, "session_mode": "fork"}}
                try:
                    if stream and cancel_after is None and "use_beam_search" not in asked:
                        known, got = streamed, send_streaming(server, asked)
                    else:
                        known, got = answers, send(server, asked, cancel_after)
                    if got is not None and known.setdefault(index, got) != got:
                        problems.append((index, got, known[index]))
                except Exception as e:  # noqa: BLE001 - reported below
                    problems.append((index, repr(e)))

        began = time.time()
        threads = [threading.Thread(target=client) for _ in range(clients)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        took = time.time() - began
        assert not problems, f"seed {seed}: {problems[:2]}"
        wait_for(lambda: server.get("/load")["server_load"] == 0, 30)
        stats = server.get("/v1/kv/stats")
        for index in sorted(answers.keys() | streamed.keys()):
            alone = send(server, {**requests[index], "kv": {"reuse": "none", "write": "none"}})
            for got, expected in ((answers.get(index), alone), (streamed.get(index), as_streamed(alone))):
                assert got in (None, expected), f"seed {seed}: request {requests[index]}\n  alone {expected}\n  loaded {got}"
        # The last answer's blocks are let go just after it was told.
        wait_for(lambda: server.get("/v1/kv/stats")["tiers"][0]["blocks"]["active"] == 0, 30)
    print(f"{count} requests in {took:.1f} s, {len(answers)} distinct answers and {len(streamed)} streams equal alone; hit rate "
          f"{stats['hit_rate']['total']:.2f}, {stats['preemptions']} preemptions, {stats['evictions']['total']} evictions",
          flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("quire")
    parser.add_argument("write_tiny")
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--requests", type=int, default=1900, help="on the tiny model")
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([o.write_tiny, folder], check=True)
        run(o.quire, f"{folder}/llama-F32.gguf", o.requests, max(50, o.requests // 6), 24, o.seed, 256, 16, 0.15,
            "--kv-cache-memory", "2MiB", "--max-num-seqs", 16, "--threads", 2)
    model = find_model(o.model)
    if model is None:
        sys.exit("there is no model that can talk: only the tiny one ran")
    run(o.quire, model, 100, 40, 8, o.seed, 49000, 16, 0, "--kv-cache-memory", "256MiB")


if __name__ == "__main__":
    main()
