"""What attacks share: a tiny model, a neighbour who measures, and raw requests.

While any attack runs, a one-token answer of the neighbour takes at most a second, and at most three times as long as beside
as many ordinary requests of that size (median of five). The server's memory grows by at most 64 MiB, and is back five
seconds later. Each attack also says what it must be answered.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest

for beside in ("server", "cli"):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", beside))
from serving import Server, Wire  # noqa: E402

QUIRE, WRITE_TINY = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
MEBI = 1 << 20
SPARE = 0.15  # seconds: a busy machine's own noise is no attack
FOLDER = tempfile.TemporaryDirectory()
subprocess.run([WRITE_TINY, FOLDER.name], check=True)
TINY, WIDE = (os.path.join(FOLDER.name, name + ".gguf") for name in ("llama-F32", "wide"))


def memory(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS"))


def head(path, length=None, more=""):
    size = "" if length is None else f"Content-Length: {length}\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{size}{more}\r\n".encode()


def post(path, body, more=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, len(data), more) + data


def status(server, data, limit=30, address="127.0.0.1"):
    """Sends bytes and returns the status of the answer, or 0 where the connection just ended."""
    wire = Wire(server, address)
    wire.socket.settimeout(limit)
    try:
        wire.socket.sendall(data)
    except OSError:
        pass
    try:
        line = wire.until(b"\r\n")
        return int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else 0
    except OSError:
        return 0
    finally:
        wire.close()


def bearer(key):
    return {"Authorization": f"Bearer {key}"} if key else {}


def body_status(server, path, body, key=None):
    return status(server, post(path, body, "".join(f"{name}: {value}\r\n" for name, value in bearer(key).items())))


def one_token(server, number, key=None):
    began = time.monotonic()
    server.post("/v1/completions", {"model": "m", "prompt": [60 + number % 100, 70, 80], "max_tokens": 1, "ignore_eos": True},
                headers=bearer(key))
    return time.monotonic() - began


def ordinary(server, size, prompt=(61, 62, 63), key=None):
    """A request of about this size that anybody may send."""
    body_status(server, "/v1/completions", {"model": "m", "prompt": list(prompt), "max_tokens": 1, "user": "u" * size}, key)


class Beside:
    """Runs `what` again and again on so many threads, until the end of the block."""

    def __init__(self, what, count):
        self.over = threading.Event()
        self.problems, self.done = [], 0

        def run():
            while not self.over.is_set():
                try:
                    what()
                except Exception as e:  # noqa: BLE001 - told at the end
                    self.problems.append(e)
                self.done += 1
                time.sleep(0.005)

        self.threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]

    def __enter__(self):
        for t in self.threads:
            t.start()
        time.sleep(0.3)
        return self

    def __exit__(self, *_):
        self.over.set()
        for t in self.threads:
            t.join(60)


class Attacks(unittest.TestCase):
    model, cache, filling = TINY, "16MiB", 200
    arguments = ()
    key = None  # the neighbour's

    @classmethod
    def setUpClass(cls):
        cls.server = Server(QUIRE, cls.model, "--kv-cache-memory", cls.cache, *cls.arguments)
        for i in range(100):  # fills the cache, whose memory stays
            ordinary(cls.server, 1000, [61 + (i * j) % 150 for j in range(cls.filling)], cls.key)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.output()[-2000:])

    @staticmethod
    def ordinary_prompt():
        return [61, 62, 63]

    @classmethod
    def beside_ordinary(cls, bits, count):
        """The neighbour's time beside ordinary requests of about this size, measured once."""
        known = cls.__dict__.get("known") or {}
        cls.known = known
        if (bits, count) not in known:
            with Beside(lambda: ordinary(cls.server, 1 << bits, cls.ordinary_prompt(), key=cls.key), count):
                known[bits, count] = statistics.median(one_token(cls.server, i, cls.key) for i in range(5))
            time.sleep(0.2)
        return known[bits, count]

    def neighbour(self, attack, size, count=4, mebibytes=64, leave=lambda: None):
        """Measures beside the attack and beside ordinary requests of that size, then, after the attacker left, what stays."""
        server = self.server
        usual = self.beside_ordinary(size.bit_length(), count)
        before = memory(server)
        most = before
        with Beside(attack, count) as beside:
            times = []
            for i in range(5):
                times.append(one_token(server, 5 + i, self.key))
                most = max(most, memory(server))
            end = time.monotonic() + 1
            while time.monotonic() < end:
                most = max(most, memory(server))
                time.sleep(0.05)
        leave()
        self.assertEqual(beside.problems[:1], [])
        self.assertGreater(beside.done, 0)
        attacked = statistics.median(times)
        said = (f"{self.id().split('.')[-1][5:]}: {attacked * 1e3:.0f} ms beside it, {usual * 1e3:.0f} ms beside ordinary ones; "
                f"{(most - before) / MEBI:+.0f} MiB")
        print(said, flush=True)
        self.assertLessEqual(attacked, max(1, 1.5 * usual), said)  # others may keep the machine that busy
        self.assertLessEqual(attacked, 3 * usual + SPARE, said)
        self.assertLessEqual(most - before, mebibytes * MEBI, said)
        end = time.monotonic() + 5
        while memory(server) > before + 16 * MEBI and time.monotonic() < end:
            time.sleep(0.1)
        self.assertLessEqual(memory(server), before + 16 * MEBI, said)


def main():
    sys.argv = [sys.argv[0], "-v" if os.environ.get("VERBOSE") else "-q", *sys.argv[3:]]
    unittest.main(module="__main__")
