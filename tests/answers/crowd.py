"""Random requests to one server from several clients at once, with a cache too small for all of them.

Request number i is drawn from i alone, so answers can be compared number by number, whatever else was asked. Left out is
what may answer otherwise in a crowd: `cut` and `convert`, and methods that read the prompt again for several choices.
"""
import dataclasses
import http.client
import json
import queue
import random
import time

from asking import digest, in_threads, post, refused, stream
from cases import SAMPLED, SELECT, lossy

FORMATS = ["int8", "hadamard-int4", "q4_0", "fp8-e4m3", "kivi-2", "turbo-4", {"k": "int8", "v": "hadamard-int4"},
           {"k": "int8", "recent_exact": 40}]
RETAIN = ["streaming", "window", "snapkv", "expected", "keydiff", "knorm", "h2o", "scissorhands", "tova", "random",
          "ada-snapkv"]
RETRIES = 50  # of a request that found no room


@dataclasses.dataclass(frozen=True)
class Trace:
    name: str
    model: str
    numbers: range
    vocabulary: int
    memory: str  # of the cache
    threads: int = 1


def traces(quick):
    if quick:
        return [Trace("smollm2/trace", "smollm2", range(60), 49000, "28MiB")]
    return [Trace("smollm2/trace", "smollm2", range(1300), 49000, "28MiB"),
            Trace("gemma/trace", "gemma", range(600), 200000, "20MiB"),
            Trace("smollm2/trace,threads", "smollm2", range(2000, 2100), 49000, "28MiB", threads=2)]


def prefixes(vocabulary):
    chance = random.Random("prefixes")
    return [[chance.randrange(300, vocabulary) for _ in range(length)] for length in (33, 64, 80, 120, 160, 230)]


def draw_kv(chance, choices):
    kind = chance.random()
    if kind < 0.45:
        return {}
    if kind < 0.7:
        return lossy(format=chance.choice(FORMATS))
    if kind < 0.86:
        names = RETAIN if choices > 1 else RETAIN + ["kvzip", "kvcompose"]
        return lossy(budget={"policy": chance.choice(names), "ratio": chance.choice([0.25, 0.5])})
    if kind < 0.9:
        return lossy(window={"size": chance.choice([32, 64])})
    return lossy(select=SELECT[chance.choice(sorted(SELECT))])


def draw_request(number, vocabulary):
    chance = random.Random(f"request {number}")
    prefix = chance.choice(prefixes(vocabulary))
    cut = len(prefix) if chance.random() < 0.6 else chance.randrange(1, len(prefix) + 1)
    prompt = prefix[:cut] + [chance.randrange(300, vocabulary) for _ in range(chance.choice([0, 1, 4, 12, 30]))]
    body = {"prompt": prompt, "max_tokens": chance.randrange(1, 11), "temperature": 0, "ignore_eos": True,
            "return_token_ids": True}
    if chance.random() < 0.04:  # outgrows the room there was when it began
        body["max_tokens"] = chance.randrange(40, 100)
    elif chance.random() < 0.12:
        body["n"] = 2
    if chance.random() < 0.5:
        body.update(SAMPLED, seed=number)
        if chance.random() < 0.7:
            del body["logprobs"]
    if chance.random() < 0.04:
        body.update(use_beam_search=True, n=2, temperature=0, max_tokens=8)
    elif chance.random() < 0.1:
        body.update(chance.choice([{"frequency_penalty": 0.7}, {"repetition_penalty": 1.2}, {"top_k": 20}, {"top_p": 0.8}]))
    elif chance.random() < 0.05:
        body.update(structured_outputs={"regex": r"[a-z]{3,9} \d{2,6}"}, ignore_eos=False)
    if chance.random() < 0.1:
        body["stop_token_ids"] = [chance.randrange(300, vocabulary) for _ in range(20)]
    if "use_beam_search" not in body:
        body.update(draw_kv(chance, body.get("n", 1)))
    kv = {**body.get("kv", {}), "priority": chance.randrange(0, 3)}
    if chance.random() < 0.1:
        kv["salt"] = "salt"
    if chance.random() < 0.1:
        kv["tenant"] = "other"
    if chance.random() < 0.1:
        kv["reuse"] = "none"
    if chance.random() < 0.1:
        kv["write"] = chance.choice(["none", "prompt"])
    return {**body, "kv": kv}


def ask(server, number, body):
    """(digest or "refused", how often it found no room)"""
    streamed = number % 4 == 0 and "use_beam_search" not in body and "logprobs" not in body
    for attempt in range(RETRIES):
        status, answer = (stream if streamed else post)(server, "/v1/completions", body)
        if status not in (429, 503):
            break
        time.sleep(0.05)
    if refused(status, answer):
        return "refused", attempt
    if status != 200:
        raise RuntimeError(f"request {number}: {status} {answer}\n{json.dumps(body)}")
    return digest(answer), attempt


def leave(server, body, seconds):
    """Asks and does not wait for the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    try:
        connection.request("POST", "/v1/completions", json.dumps({**body, "model": "m"}), {"Content-Type": "application/json"})
        time.sleep(seconds)
    finally:
        connection.close()


def run(server, trace, clients):
    """The digests by number, and how the cache fared."""
    work = queue.Queue()
    for number in trace.numbers:
        work.put(number)
    answers, retries = {}, []

    def client():
        while True:
            try:
                number = work.get_nowait()
            except queue.Empty:
                return
            if number % 25 == 7:
                leave(server, draw_request(1_000_000 + number, trace.vocabulary), 0.01 * (number % 7))
            answers[number], tried = ask(server, number, draw_request(number, trace.vocabulary))
            retries.append(tried)

    in_threads([client] * clients)
    stats = server.get("/v1/kv/stats")
    return answers, {"hit_rate": stats["hit_rate"]["total"], "preemptions": stats["preemptions"],
                     "evictions": stats["evictions"]["total"], "found_no_room": sum(retries)}
