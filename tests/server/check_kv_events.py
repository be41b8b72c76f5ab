"""KV events over ZeroMQ: a subscriber rebuilds the set of cached blocks, and agrees with /v1/kv/tree.

    scripts/python tests/server/check_kv_events.py QUIRE WRITE_TINY

Conformance item 62. Runs on a tiny random model; skipped where the build has no ZeroMQ.
"""
import os
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import msgpack
import zmq
from serving import HURRY, Server, wait_for

QUIRE, WRITE_TINY = sys.argv[1:3]
folder = tempfile.TemporaryDirectory()
subprocess.run([WRITE_TINY, folder.name], check=True)
MODEL = f"{folder.name}/llama-F32.gguf"
BLOCK = 32
CONTEXT = zmq.Context()


class Subscriber:
    """What vLLM's example subscriber does: it listens, and asks for a replay when a number is missing."""

    def __init__(self, sources):
        self.topic = sources["topic"]
        self.sub = CONTEXT.socket(zmq.SUB)
        self.sub.connect(sources["endpoint"])
        self.sub.setsockopt_string(zmq.SUBSCRIBE, "kv@")
        self.replay_at = sources["replay_endpoint"]
        self.blocks, self.last, self.gaps, self.replayed = {}, -1, 0, 0

    def apply(self, number, payload):
        assert number == self.last + 1, (number, self.last)
        self.last = number
        seconds, events = msgpack.unpackb(payload)
        assert abs(seconds - time.time()) < 3600
        for event in events:
            if event["type"] == "AllBlocksCleared":
                self.blocks.clear()
            elif event["type"] == "BlockRemoved":
                for one in event["block_hashes"]:
                    del self.blocks[one]
            else:
                assert event["type"] == "BlockStored"
                assert len(event["token_ids"]) == event["block_size"] * len(event["block_hashes"])
                assert {"lora_id", "medium", "lora_name"} <= set(event)
                parent = event["parent_block_hash"]
                for i, one in enumerate(event["block_hashes"]):
                    assert parent is None or parent in self.blocks
                    self.blocks[one] = (parent, tuple(event["token_ids"][i * BLOCK:(i + 1) * BLOCK]), event.get("cache_salt"))
                    parent = one

    def replay(self, start):
        with CONTEXT.socket(zmq.REQ) as request:
            request.connect(self.replay_at)
            request.setsockopt(zmq.RCVTIMEO, HURRY * 1000)
            request.send(struct.pack(">Q", start))
            topic, number, payload = request.recv_multipart()
            yield topic, number, payload

    def heal(self, start):
        """A DEALER takes all replies to one question."""
        self.gaps += 1
        self.last = start - 1
        with CONTEXT.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.RCVTIMEO, HURRY * 1000)
            dealer.setsockopt(zmq.RCVHWM, 10)  # a slow reader: nothing may be dropped
            dealer.connect(self.replay_at)
            dealer.send_multipart([b"", struct.pack(">Q", start)])
            while True:
                empty, topic, number, payload = dealer.recv_multipart()
                assert empty == b""
                if number == b"\xff" * 8:
                    assert (topic, payload) == (b"", b"")
                    return
                assert topic.decode() == self.topic
                self.apply(struct.unpack(">Q", number)[0], payload)
                self.replayed += 1

    def listen(self, quiet=0.3):
        """Hears what is there, until nothing came for a while."""
        while self.sub.poll(quiet * 1000):
            topic, number, payload = self.sub.recv_multipart()
            assert topic.decode() == self.topic
            number = struct.unpack(">Q", number)[0]
            if number <= self.last:
                continue
            if number > self.last + 1:
                self.heal(self.last + 1)
            if number > self.last:
                self.apply(number, payload)
        return self


def tree(server):
    """Every block of the tree: its hash and its parent's."""
    nodes = server.get("/v1/kv/tree?depth=100000&limit=100000")["nodes"]
    return nodes


def agrees(test, server, subscriber):
    def same():
        subscriber.listen(0.15)
        nodes = tree(server)  # a full cache has as many blocks before as after
        return (sum(n["blocks"] for n in nodes) == len(subscriber.blocks) and
                all(int(n["hash"][:16], 16) in subscriber.blocks for n in nodes))
    wait_for(same)
    for node in tree(server):  # a run of blocks: up to where its parent ends
        at = int(node["hash"][:16], 16)
        above = None if set(node["parent"]) == {"0"} else int(node["parent"][:16], 16)
        for _ in range(node["blocks"]):
            test.assertIn(at, subscriber.blocks)
            at = subscriber.blocks[at][0]
        test.assertEqual(at, above)


def ask(server, first, count=100, **more):
    """Two numbers below 40000 are two prompts, which differ within two tokens: neither is a hit of the other."""
    prompt = [60 + (first + i * i * (1 + first // 200)) % 200 for i in range(count)]
    return server.post("/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **more})


class Events(unittest.TestCase):
    def serve(self, *more, memory="8MiB"):
        return Server(QUIRE, MODEL, "--kv-events", "tcp://*:0", "--kv-events-replay", "tcp://127.0.0.1:*", "--kv-cache-memory", memory,
                      "--kv-events-state", f"{folder.name}/events.state", *more)

    def test_62_a_subscriber_knows_what_is_cached(self):
        with self.serve(memory="2MiB") as server:
            sources = server.get("/kv_event_sources")["sources"][0]
            self.assertEqual(sources["topic"].count("@"), 2)
            self.assertTrue(sources["endpoint"].startswith("tcp://127.0.0.1:"), sources)
            subscriber = Subscriber(sources)
            subscriber.heal(0)
            self.assertEqual(subscriber.blocks, {})
            for i in range(30):  # more than the cache holds
                ask(server, i * 31, 90 + i * 5)
                subscriber.listen(0.01)
            agrees(self, server, subscriber)
            self.assertGreater(len(subscriber.blocks), 5)
            late = Subscriber(sources)  # knows nothing yet
            late.heal(0)
            self.assertEqual(late.blocks, subscriber.listen().blocks)
            # A gap: it sleeps while things change, and its socket is another.
            late.sub.close()
            for i in range(5):
                ask(server, 5000 + i * 17)
            time.sleep(0.3)  # they are published, and nobody listens
            again = Subscriber(sources)
            again.blocks, again.last = dict(late.blocks), late.last
            time.sleep(0.3)  # it is connected
            ask(server, 7000)
            agrees(self, server, again)
            self.assertGreaterEqual(again.gaps, 1)
            server.post("/v1/kv/clear", {"select": {"all": True}})
            agrees(self, server, again)
            self.assertEqual(again.blocks, {})

    def test_numbers_go_on_after_a_restart(self):
        with self.serve() as server:
            subscriber = Subscriber(server.get("/kv_event_sources")["sources"][0])
            subscriber.heal(0)
            ask(server, 1)
            agrees(self, server, subscriber)
            self.assertGreater(len(subscriber.blocks), 0)
        server.stop()
        with self.serve() as server:
            again = Subscriber(server.get("/kv_event_sources")["sources"][0])
            again.blocks, again.last = subscriber.blocks, subscriber.last
            ask(server, 2)  # the first number that it hears is far ahead
            agrees(self, server, again)

    def test_salts_are_told(self):
        with self.serve() as server:
            subscriber = Subscriber(server.get("/kv_event_sources")["sources"][0])
            subscriber.heal(0)
            ask(server, 1, cache_salt="s")
            agrees(self, server, subscriber)
            self.assertEqual({salt for _, _, salt in subscriber.blocks.values()}, {"s"})

    def test_nobody_elsewhere_hears_them_unless_allowed(self):
        for where in (["--kv-events", "tcp://0.0.0.0:0"], ["--kv-events", "nonsense"], ["--kv-events", "tcp://127.0.0.1:0", "--kv-events-replay", "tcp://10.0.0.1:0"]):
            done = subprocess.run([QUIRE, "serve", MODEL, "--port", "0", *where], capture_output=True, text=True, timeout=HURRY)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, "--kv-events-public|no address")


if __name__ == "__main__":
    probe = subprocess.run([QUIRE, "serve", MODEL, "--port", "0", "--kv-events", "tcp://127.0.0.1:0", "--dry-run"], capture_output=True, text=True)
    if "has no ZeroMQ" in probe.stderr:
        print("skipped: " + probe.stderr)
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=1)
