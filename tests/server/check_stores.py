"""Servers that share a store: what one computed the others load, from a folder and from a real Redis Cluster of three
masters. With another secret, damaged values or a store that is gone, answers stay the same.

    check_stores.py QUIRE WRITE_TINY
"""
import pathlib
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from kv_testing import QUIRE, tiny
from serving import Server, wait_for

TRIES = 4  # on a busy machine a request may compute rather than wait for a store


def words(seed, count):
    chance = random.Random(seed)
    return " ".join(chance.choice("red green blue old new small large quiet house river stone bird tree road".split())
                    for _ in range(count))


def ask(server, prompt, **kv):
    answer = server.post("/v1/completions", {
        "model": "m", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 3,
        "kv": {"report": ["usage", "explain"], **kv}})
    return (answer["choices"][0]["text"], answer["choices"][0]["logprobs"]), answer["kv"]


def tier(server, name="remote"):
    return next(t for t in server.get("/v1/kv/stats")["tiers"] if t["name"] == name)


def metric(server, name, tier_name):
    page = server.call("GET", "/metrics", raw=True)[2].decode()
    return next(float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
                if line.startswith(name + "{") and f'tier="{tier_name}"' in line)


class Redis:
    """One server process on loopback, and commands to it."""

    def __init__(self, folder, port, *options):
        self.port = port
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no",
             *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: self.answers(), 20)

    def answers(self):
        try:
            return self.call("PING") == b"PONG"
        except OSError:
            return False

    def call(self, *command):
        with socket.create_connection(("127.0.0.1", self.port), 10) as wire, wire.makefile("rb") as reply:
            parts = [p if isinstance(p, bytes) else str(p).encode() for p in command]
            wire.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
            return self.read(reply)

    def read(self, reply):
        line = reply.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:]
        if kind == b"*":
            return [self.read(reply) for _ in range(int(rest))]
        if kind == b"$":
            return reply.read(int(rest) + 2)[:-2] if int(rest) >= 0 else None
        return rest

    def stop(self):
        self.process.kill()
        self.process.wait()


def free_port():
    """The port 10,000 above it is free, too: there nodes of a cluster talk to each other."""
    while True:
        with socket.socket() as one, socket.socket() as bus:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                if port < 55000:
                    bus.bind(("127.0.0.1", port + 10000))
                    return port
            except OSError:
                pass


class Sharing:
    """What holds for every kind of store. A class that inherits this has `url` and damage()."""

    @classmethod
    def setUpClass(cls):
        cls.top = tempfile.TemporaryDirectory()
        cls.secret = cls.make_secret("secret")
        cls.open_store()

    @classmethod
    def tearDownClass(cls):
        cls.close_store()
        cls.top.cleanup()

    @classmethod
    def make_secret(cls, name):
        path = pathlib.Path(cls.top.name, name)
        path.write_text(secrets.token_hex(64) + "\n")
        path.chmod(0o600)
        return path

    def serve(self, *more, secret=None, model="llama-F32"):
        return Server(QUIRE, tiny(model), "--kv-store", self.url, "--kv-secret-file", secret or self.secret, *more)

    def compute(self, prompt, *more):
        """The answer as it was computed, by a server that then left the blocks in the store."""
        with self.serve(*more) as server:
            answer, kv = ask(server, prompt)
            self.assertEqual(kv["cached_tokens"], 0)
            wait_for(lambda: tier(server)["written"]["blocks"] >= kv["prompt_tokens"] // 32, 30)
        return answer

    def load(self, prompt, answer, least, *more, **kv):
        """By another server: the same answer. What it said of it."""
        for _ in range(TRIES):
            with self.serve(*more) as server:
                again, said = ask(server, prompt, **kv)
                self.assertEqual(again, answer)
                self.assertEqual(sum(said["cached_by_tier"].values()), said["cached_tokens"])
                if said["cached_by_tier"]["remote"] < least:
                    continue
                self.assertGreater(tier(server)["read"]["blocks"], 0)
                self.assertEqual(metric(server, "kv_tier_open", "remote"), 1)
                once_more, now = ask(server, prompt)
                self.assertEqual(once_more, answer)
                self.assertEqual(now["cached_by_tier"]["remote"], 0, "it is in memory by now")
                return said
        self.fail(f"nothing was loaded: {said}")

    def test_what_one_computed_another_loads(self):
        prompt = words(1, 60)
        said = self.load(prompt, self.compute(prompt), 224)
        self.assertEqual(said["cached_by_tier"]["disk"], 0)
        self.assertEqual(said["cached_by_tier"]["cpu"], 0)
        self.assertIn(said["explain"]["reason"], ("none", "block_partial"))

    def test_a_model_with_windows(self):
        prompt = words(2, 60)
        with Server(QUIRE, tiny("gemma3-F32"), "--kv-store", self.url, "--kv-secret-file", self.secret) as server:
            answer, kv = ask(server, prompt)
            wait_for(lambda: tier(server)["written"]["blocks"] >= kv["prompt_tokens"] // 32, 30)
        with Server(QUIRE, tiny("gemma3-F32"), "--kv-store", self.url, "--kv-secret-file", self.secret) as server:
            self.assertEqual(ask(server, prompt)[0], answer)

    def test_other_secrets_and_tenants_find_nothing(self):
        prompt = words(3, 60)
        answer = self.compute(prompt)
        with self.serve(secret=self.make_secret("other")) as server:
            again, said = ask(server, prompt)
            self.assertEqual(again, answer)
            self.assertEqual(said["cached_tokens"], 0)
        with self.serve() as server:
            for kv in ({"salt": "mine"}, {"tenant": "b"}, {"tiers": ["cpu", "disk"]}):
                again, said = ask(server, prompt, **kv)
                self.assertEqual(again, answer)
                self.assertEqual(said["cached_by_tier"]["remote"], 0, kv)
        self.load(prompt, answer, 224)

    def test_damage_is_a_miss(self):
        prompt = words(4, 60)
        self.clear()
        answer = self.compute(prompt)
        self.assertGreater(self.damage(), 6)
        for _ in range(TRIES):
            with self.serve() as server:
                again, said = ask(server, prompt)
                self.assertEqual(again, answer)
                self.assertEqual(said["cached_by_tier"]["remote"], 0)
                if tier(server)["corrupt"] > 0:
                    self.assertEqual(said["explain"]["reason"], "load_failed")
                    break
        else:
            self.fail("damage was not noticed")

    def test_a_folder_of_ones_own_comes_first(self):
        prompt, longer = words(5, 60), words(5, 60) + words(6, 60)
        own = ("--kv-dir", self.top.name + "/own-" + type(self).__name__)
        first = self.compute(prompt, *own)
        with self.serve(*own) as server:
            self.assertEqual([t["name"] for t in server.get("/v1/kv/stats")["tiers"]], ["cpu", "disk", "remote"])
            again, said = ask(server, prompt)
            self.assertEqual(again, first)
            self.assertGreaterEqual(said["cached_by_tier"]["disk"], 224, said)
            self.assertEqual(said["cached_by_tier"]["remote"], 0)
        with self.serve() as server:  # its prompt begins with what is in the store
            answer, kv = ask(server, longer)
            wait_for(lambda: not tier(server)["queue_bytes"]["write"], 30)
            wait_for(lambda: tier(server)["written"]["blocks"] >= kv["written_tokens"] // 32, 30)
        for _ in range(4):  # on a busy machine the store may answer before the folder does
            said = self.load(longer, answer, 200, *own)
            if said["cached_by_tier"]["disk"]:
                break
        self.assertGreaterEqual(said["cached_by_tier"]["disk"], 224, said)


class Folder(Sharing, unittest.TestCase):
    @classmethod
    def open_store(cls):
        cls.folder = pathlib.Path(cls.top.name, "store")
        cls.folder.mkdir()
        cls.url = f"file://{cls.folder}"

    @classmethod
    def close_store(cls):
        pass

    def values(self):
        return list(self.folder.rglob("*.qkv"))

    def clear(self):
        for value in self.values():
            value.unlink()

    def damage(self):
        for value in self.values():
            data = bytearray(value.read_bytes())
            data[len(data) // 2] ^= 4
            value.write_bytes(data)
        return len(self.values())

    def test_a_folder_that_goes_away(self):
        with self.serve() as server, Server(QUIRE, tiny("llama-F32")) as alone:
            ask(server, words(20, 60))
            away = self.folder.rename(str(self.folder) + "-away")
            for seed in range(21, 27):
                self.assertEqual(ask(server, words(seed, 60))[0], ask(alone, words(seed, 60))[0])
            wait_for(lambda: not tier(server)["open"], 30)
            away.rename(self.folder)
            seeds = iter(range(30, 1000))

            def works_again():
                ask(server, words(next(seeds), 60))
                time.sleep(0.3)
                return tier(server)["open"]
            wait_for(works_again, 30)


@unittest.skipUnless(shutil.which("redis-server") and shutil.which("redis-cli"), "redis-server is not installed")
class Cluster(Sharing, unittest.TestCase):
    @classmethod
    def open_store(cls):
        cls.nodes = []
        for i in range(3):
            home = pathlib.Path(cls.top.name, f"redis-{i}")
            home.mkdir()
            cls.nodes.append(Redis(home, free_port(), "--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
                                   "--cluster-require-full-coverage", "no"))
        addresses = [f"127.0.0.1:{n.port}" for n in cls.nodes]
        subprocess.run(["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"], check=True, capture_output=True)
        wait_for(lambda: all(b"cluster_state:ok" in n.call("CLUSTER", "INFO") for n in cls.nodes), 30)
        # Waits longer than a server would: the machine of a test is busy.
        cls.url = "redis://" + ",".join(addresses[:2]) + "?patience=5000"

    @classmethod
    def close_store(cls):
        for node in cls.nodes:
            node.stop()

    def clear(self):
        for node in self.nodes:
            node.call("FLUSHALL")

    def damage(self):
        count = 0
        for node in self.nodes:
            for key in node.call("KEYS", "*"):
                value = bytearray(node.call("GET", key))
                value[len(value) // 2] ^= 4
                self.assertEqual(node.call("SET", key, bytes(value)), b"OK")
                count += 1
        return count


@unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")
class Gone(unittest.TestCase):
    """Redis that is killed, hangs, or was never there."""

    def check(self, trouble):
        with tempfile.TemporaryDirectory() as top, Server(QUIRE, tiny("llama-F32")) as alone:
            secret = pathlib.Path(top, "secret")
            secret.write_text(secrets.token_hex(64))
            secret.chmod(0o600)
            node = Redis(top, free_port())
            try:
                with Server(QUIRE, tiny("llama-F32"), "--kv-store", f"redis://127.0.0.1:{node.port}",
                            "--kv-secret-file", secret) as server:
                    ask(server, words(40, 60))
                    trouble(node)
                    for seed in range(41, 47):
                        self.assertEqual(ask(server, words(seed, 60))[0], ask(alone, words(seed, 60))[0])
                    wait_for(lambda: not tier(server)["open"], 30)
                    self.assertIn("going on without it", server.output())
                    began = time.time()  # nothing is asked any more
                    for seed in range(50, 60):
                        ask(server, words(seed, 60))
                    self.assertLess(time.time() - began, 10)
                    self.assertEqual(metric(server, "kv_tier_open", "remote"), 0)
                    self.assertEqual(server.stop(), 0)
            finally:
                node.stop()

    def test_killed(self):
        self.check(lambda node: node.stop())

    def test_hanging(self):
        self.check(lambda node: node.process.send_signal(signal.SIGSTOP))


class Mistakes(unittest.TestCase):
    def test_addresses_and_secrets(self):
        with tempfile.TemporaryDirectory() as top:
            secret = pathlib.Path(top, "secret")
            secret.write_text(secrets.token_hex(64))
            secret.chmod(0o600)
            weak = pathlib.Path(top, "weak")
            weak.write_text("abc")
            weak.chmod(0o600)
            for url, file, said in [
                    ("s3://bucket/x", secret, "write redis://HOST:PORT"),
                    ("/mnt/kv", secret, "write redis://HOST:PORT"),
                    ("redis://", secret, "a host is missing"),
                    ("redis://me:hush@host:x", secret, "is no port"),
                    ("redis://host?tls=1", secret, "is no option"),
                    ("file://mnt/kv", secret, "three slashes"),
                    (f"file://{top}/none", secret, "make it, or mount it, first"),
                    (f"file://{top}", None, "openssl rand -hex 64"),
                    (f"file://{top}", weak, "openssl rand -hex 64"),
                    (f"file://{top}", pathlib.Path(top, "none"), "none")]:
                words_ = [QUIRE, "serve", tiny("llama-F32"), "--port", "0", "--kv-store", url]
                done = subprocess.run(words_ + (["--kv-secret-file", str(file)] if file else []), capture_output=True,
                                      text=True, timeout=60)
                self.assertNotEqual(done.returncode, 0, url)
                self.assertIn(said, done.stderr, url)
                self.assertNotIn("hush", done.stderr)

    def test_run_and_a_file_of_options(self):
        with tempfile.TemporaryDirectory() as top:
            secret = pathlib.Path(top, "secret")
            secret.write_text(secrets.token_hex(64))
            secret.chmod(0o600)
            store = pathlib.Path(top, "store")
            store.mkdir()
            config = pathlib.Path(top, "quire.toml")
            config.write_text(f'kv-store = "file://{store}"\nkv-secret-file = "{secret}"\n')
            command = [QUIRE, "run", tiny("llama-F32"), "-p", words(70, 60), "-n", "4", "--ignore-eos", "--temp", "0", "--config",
                       config]
            first = subprocess.run(command, capture_output=True, text=True, timeout=60)
            self.assertEqual(first.returncode, 0, first.stderr)
            self.assertGreaterEqual(len(list(store.rglob("*.qkv"))), 7)
            self.assertEqual(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout, first.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
