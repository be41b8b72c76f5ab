"""Many clients at once, clients that misbehave, and clients that never stop.

    scripts/python tests/server/check_load.py QUIRE WRITE_TINY MODEL streams
        1,000 streams at once: every one is what it would be alone, memory stays bounded, nothing is left behind
    ... neighbours [--rounds N] [--limit X]
        clients that stop reading, flood or send garbage: nobody else's answer changes, and TPOT p99 of those who behave
        grows by at most X
    ... soak [--minutes N]
        random requests, cancels and garbage for a while: memory, blocks and descriptors do not grow
"""
import argparse
import json
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from check_trace import make_request, send
from serving import HURRY, Server, Wire, events, find_model, unchunk, wait_for


class Usage:
    """What a process holds now."""

    def __init__(self, process):
        with open(f"/proc/{process.pid}/status") as f:
            fields = dict(line.split(":", 1) for line in f)
        self.memory = int(fields["VmRSS"].split()[0]) << 10
        self.descriptors = len(os.listdir(f"/proc/{process.pid}/fd"))
        self.threads = int(fields["Threads"])


def idle(server):
    """Nothing runs, waits or is held any more."""
    wait_for(lambda: server.get("/load")["server_load"] == 0)
    wait_for(lambda: server.get("/v1/kv/stats")["tiers"][0]["blocks"]["active"] == 0)


def request_bytes(body):
    data = json.dumps(body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data


def streams(quire, tiny, count=1000):
    bodies = [{"model": "m", "prompt": [60 + i, *range(60, 100 + 5 * i)], "max_tokens": 30, "temperature": i % 2, "seed": i,
               "ignore_eos": True} for i in range(8)]
    with Server(quire, tiny, "--max-queue", 2 * count, "--max-connections", 2 * count) as server:
        alone = [server.post("/v1/completions", b)["choices"][0]["text"] for b in bodies]
        idle(server)
        before = Usage(server.process)
        wires = [Wire(server) for _ in range(count)]
        for i, wire in enumerate(wires):
            wire.send(request_bytes({**bodies[i % len(bodies)], "stream": True}))
            wire.socket.setblocking(False)
        most, got, end = 0, [bytearray() for _ in wires], time.monotonic() + HURRY
        with selectors.DefaultSelector() as ready:
            for i, wire in enumerate(wires):
                ready.register(wire.socket, selectors.EVENT_READ, i)
            while ready.get_map() and time.monotonic() < end:
                for key, _ in ready.select(1):
                    got[key.data] += key.fileobj.recv(1 << 16)
                    if got[key.data].endswith(b"\r\n0\r\n\r\n"):
                        ready.unregister(key.fileobj)
                most = max(most, Usage(server.process).memory)
            assert not ready.get_map(), f"{len(ready.get_map())} streams did not end"
        for i, data in enumerate(got):
            head, body = bytes(data).split(b"\r\n\r\n", 1)
            assert b" 200 " in head, head
            text = "".join(json.loads(e)["choices"][0]["text"] for e in events(unchunk(body))[:-1])
            assert text == alone[i % len(alone)], (i, text)
            wires[i].close()
        idle(server)
        wait_for(lambda: Usage(server.process).descriptors <= before.descriptors)
        per_stream = (most - before.memory) / count
        assert per_stream < 256 << 10, f"a stream takes {per_stream / 1024:.0f} KiB of memory"
    print(f"{count} streams: each as alone, at most {per_stream / 1024:.0f} KiB each", flush=True)


class Nuisance:
    """Clients that misbehave until told to end; in a process of their own, so that only the server is shared."""

    def __init__(self, port, kinds, rate):
        call = [sys.executable, __file__, "nuisance", str(port), str(rate), *kinds]
        self.process = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=lambda: os.nice(10))
        assert self.process.stdout.readline() == b"begun\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.sent = int(self.process.stdout.readline() or 0)
        self.process.wait()


GARBAGE = [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)), b"GET / HTTP/9.9\r\n\r\n",
           b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n", b"A" * 70000,
           b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 400\r\n\r\n" + b"[" * 400,
           b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
           request_bytes({"model": "m", "prompt": "x", "max_tokens": -1}), request_bytes({"model": "m", "prompt": [1 << 40]}),
           request_bytes({"model": "nobody", "prompt": "x"}), b"\0" * 300, b"POST /v1/completions HTTP/1.1\r\nHo"]


def nuisance(port, rate, *kinds):
    """What Nuisance runs: as many requests a second that are refused, half of them no HTTP; 50 connections are left open."""
    port, rate, sent, kept = int(port), float(rate), 0, []
    chance = random.Random(1)
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    print("begun", flush=True)
    began = time.monotonic()
    while not over.is_set():
        try:
            s = socket.create_connection(("127.0.0.1", port), HURRY)
            s.sendall(chance.choice(GARBAGE) if "garbage" in kinds and chance.random() < 0.5 else
                      request_bytes({"model": "m", "prompt": "a" * 1000, "max_tokens": 1, "kv": {"nonsense": 1}}))
            kept.append(s)
            if len(kept) > 50:  # whatever was said to it, nobody listens
                kept.pop(0).close()
        except OSError:
            pass
        sent += 1
        time.sleep(max(0, began + sent / rate - time.monotonic()))
    print(sent, flush=True)


def stalled(server, count):
    """Streams that are asked for and never read."""
    body = {"model": "m", "prompt": "Once upon a time", "max_tokens": 2000, "stream": True, "ignore_eos": True}
    wires = []
    for _ in range(count):
        wire = Wire(server)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(request_bytes(body))
        wires.append(wire)
    return wires


def read_on(wires, over):
    """The same streams, read as they should be, begun anew when they end."""
    for wire in wires:
        wire.socket.settimeout(0.5)
    while not over.is_set():
        for wire in wires:
            try:
                wire.socket.recv(1 << 20)
            except (TimeoutError, OSError):
                pass


def behave(server, quire, seed, requests):
    """TPOT of clients who behave, in ms, at the 99th percentile."""
    call = [quire, "bench", "serve", "--url", server.url, "-c", 2, "-n", requests, "--input", 64, "--output", 48, "--seed", seed,
            "--json"]
    done = subprocess.run([*map(str, call)], capture_output=True, text=True, timeout=HURRY)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(done.stdout)
    assert measured["failed"] == 0, measured
    return measured["tpot_ms"]["p99"]


def neighbours(quire, model, rounds, limit, requests=16, rate=200):
    """Alternately: four streams that are read and nothing else, and the same streams never read, with a flood and garbage."""
    good, bad = [], []
    ask = {"model": "m", "prompt": "The capital of France is", "max_tokens": 24, "temperature": 1, "seed": 5}
    with Server(quire, model, "--kv-cache-memory", "512MiB") as server:
        alone = server.post("/v1/completions", ask)["choices"]
        behave(server, quire, 1, 4)  # warm
        for i in range(rounds):
            wires, over = stalled(server, 4), threading.Event()
            reader = threading.Thread(target=read_on, args=(wires, over))
            reader.start()
            good.append(behave(server, quire, 10 + i, requests))
            over.set()
            reader.join()
            for wire in wires:
                wire.close()
            idle(server)
            wires = stalled(server, 4)
            with Nuisance(server.port, ["garbage"], rate) as trouble:
                bad.append(behave(server, quire, 100 + i, requests))
                assert server.post("/v1/completions", ask)["choices"] == alone
            assert trouble.sent > 0
            for wire in wires:
                wire.close()
            idle(server)
        wait_for(lambda: Usage(server.process).descriptors < 64)
    ratio = statistics.median(bad) / statistics.median(good)
    print(f"TPOT p99 of two clients who behave: {statistics.median(good):.2f} ms, with bad neighbours "
          f"{statistics.median(bad):.2f} ms ({rate} bad requests a second): {ratio:.2f} times", flush=True)
    assert ratio <= limit, f"{ratio:.2f} > {limit}"


def soak(quire, tiny, minutes, clients=16, seed=1):
    chance = random.Random(seed)
    prefixes = [[chance.randrange(40, 256) for _ in range(chance.choice([40, 100, 400, 900]))] for _ in range(12)]
    requests = [make_request(chance, prefixes, 256, 16, 0.1) for _ in range(400)]
    with Server(quire, tiny, "--kv-cache-memory", "2MiB", "--max-num-seqs", 16, "--threads", 2) as server:
        answers, problems, over, count = {}, [], threading.Event(), [0] * clients

        def client(number):
            mine = random.Random(seed * 1000 + number)
            while not over.is_set() and not problems:
                index = mine.randrange(len(requests))
                try:
                    got = send(server, requests[index], mine.random() * 0.05 if mine.random() < 0.1 else None)
                    if got is not None and answers.setdefault(index, got) != got:
                        problems.append((index, got, answers[index]))
                    if mine.random() < 0.02:
                        s = socket.create_connection(("127.0.0.1", server.port), HURRY)
                        s.sendall(mine.choice(GARBAGE))
                        s.close()
                    count[number] += 1
                except Exception as e:  # noqa: BLE001 - reported below
                    problems.append((index, repr(e)))

        threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
        for t in threads:
            t.start()
        samples, end = [], time.monotonic() + 60 * minutes
        while time.monotonic() < end and not problems:
            time.sleep(min(5, 60 * minutes / 60))
            samples.append(Usage(server.process))
        over.set()
        for t in threads:
            t.join()
        assert not problems, problems[:2]
        idle(server)
        wait_for(lambda: Usage(server.process).descriptors < 40)
        last, early = samples[-1], samples[len(samples) // 3]
        tenths = [samples[i * (len(samples) - 1) // 10].memory >> 10 for i in range(11)]
        print(f"{sum(count)} requests in {minutes:g} minutes: memory in KiB {tenths}; {early.descriptors} and {last.descriptors} "
              f"descriptors, {last.threads} threads", flush=True)
        assert last.memory < 1.03 * early.memory + (2 << 20), "memory grows"
        assert last.threads == early.threads


def main():
    if sys.argv[1] == "nuisance":
        return nuisance(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("quire")
    parser.add_argument("write_tiny")
    parser.add_argument("model")
    parser.add_argument("what", choices=["streams", "neighbours", "soak"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=2)
    parser.add_argument("--minutes", type=float, default=0.25)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([o.write_tiny, folder], check=True)
        tiny = f"{folder}/llama-F32.gguf"
        if o.what == "streams":
            streams(o.quire, tiny)
        if o.what == "soak":
            soak(o.quire, tiny, o.minutes)
    if o.what == "neighbours":
        model = find_model(o.model)
        if model is None:
            sys.exit("there is no model that can talk: neighbours did not run")
        neighbours(o.quire, model, o.rounds, o.limit)


if __name__ == "__main__":
    main()
