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
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

from fault_proxy import Proxy
from kv_testing import QUIRE, tiny
from serving import Server, Wire, wait_for

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


def first_token_ms(server, prompt):
    return server.post("/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 1,
                                           "kv": {"report": ["timing"]}})["kv"]["timing"]["ttft_ms"]


def tier(server, name="remote"):
    return next(t for t in server.get("/v1/kv/stats")["tiers"] if t["name"] == name)


def metric(server, name, tier_name):
    page = server.call("GET", "/metrics", raw=True)[2].decode()
    return next(float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
                if line.startswith(name + "{") and f'tier="{tier_name}"' in line)


class Redis:
    """One server process on loopback, and commands to it. `tls`: the file of its certificate's authority."""

    def __init__(self, folder, port, *options, tls=None, password=None):
        self.port = port
        self.password = password
        options = [*options, *(["--requirepass", password] if password else [])]
        self.tls = ssl.create_default_context(cafile=tls) if tls else None
        self.process = subprocess.Popen(
            ["redis-server", "--tls-port" if tls else "--port", str(port), *(["--port", "0"] if tls else []), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no",
             *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: self.answers(), 20)

    def answers(self):
        try:
            return self.call("PING") == b"PONG"
        except OSError:
            return False

    def call(self, *command):
        wire = socket.create_connection(("127.0.0.1", self.port), 10)
        if self.tls:
            wire = self.tls.wrap_socket(wire, server_hostname="127.0.0.1")
        with wire, wire.makefile("rb") as reply:
            for words_ in ([("AUTH", self.password)] if self.password else []) + [command]:
                parts = [p if isinstance(p, bytes) else str(p).encode() for p in words_]
                wire.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
                answer = self.read(reply)
            return answer

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
    environment = None

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
        return Server(QUIRE, tiny(model), "--kv-store", self.url, "--kv-secret-file", secret or self.secret, *more,
                      environment=self.environment)

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

    def test_moves_are_told(self):
        prompt = words(10, 60)
        answer = self.compute(prompt)
        for _ in range(TRIES):
            with self.serve() as server:
                again, said = ask(server, prompt)
                self.assertEqual(again, answer)
                if said["cached_by_tier"]["remote"] < 224:
                    continue
                wire = Wire(server)
                wire.send("GET /v1/kv/events?since=0&types=moved HTTP/1.1\r\nHost: localhost\r\n\r\n")
                told = wire.until(b'"to"').decode()
                wire.close()
                self.assertIn("event: moved", told)
                self.assertRegex(told, r'"from": ?"remote"')
                self.assertRegex(told, r'"bytes": ?[1-9]')
                page = server.call("GET", "/metrics", raw=True)[2].decode()
                for name in ("kv_transfers_total", "kv_transfer_bytes_total", "kv_transfer_seconds_count", "kv_transfer_queue_bytes"):
                    self.assertRegex(page, rf'(?m)^{name}{{[^}}]*remote')
                return
        self.fail(f"nothing was loaded: {said}")

    def test_a_model_with_windows(self):
        prompt = words(2, 60)
        with self.serve(model="gemma3-F32") as server:
            answer, kv = ask(server, prompt)
            wait_for(lambda: tier(server)["written"]["blocks"] >= kv["prompt_tokens"] // 32, 30)
        with self.serve(model="gemma3-F32") as server:
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
            answer, _ = ask(server, longer)  # written when the server ends, at the latest
        for _ in range(4):  # on a busy machine the store may answer before the folder does
            said = self.load(longer, answer, 200, *own)
            if said["cached_by_tier"]["disk"]:
                break
        self.assertGreaterEqual(said["cached_by_tier"]["disk"], 224, said)


    def test_what_came_from_the_store_is_copied_to_the_folder(self):
        prompt = words(7, 60)
        answer = self.compute(prompt)
        own = ("--kv-dir", self.top.name + "/copy-" + type(self).__name__)
        for _ in range(TRIES):
            with self.serve(*own) as server:
                again, said = ask(server, prompt)
                self.assertEqual(again, answer)
                if said["cached_by_tier"]["remote"] >= 224:
                    wait_for(lambda: tier(server, "disk")["blocks"]["total"] >= 7, 30)
                    break
        else:
            self.fail(f"nothing came from the store: {said}")
        with Server(QUIRE, tiny("llama-F32"), *own, "--kv-secret-file", self.secret) as server:  # without the store
            again, said = ask(server, prompt)
            self.assertEqual(again, answer)
            self.assertGreaterEqual(said["cached_by_tier"]["disk"], 224, said)

    def test_what_may_not_be_stored_everywhere_is_not_copied(self):
        prompt = words(8, 60)
        answer = self.compute(prompt)
        with self.serve("--kv-dir", self.top.name + "/closed-" + type(self).__name__) as server:
            self.assertEqual(ask(server, prompt, tiers=["cpu", "remote"])[0], answer)
            ask(server, words(9, 60))
            wait_for(lambda: tier(server, "disk")["blocks"]["total"] >= 7, 30)
            time.sleep(0.5)
            self.assertLessEqual(tier(server, "disk")["blocks"]["total"], 9)


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

    @unittest.skipUnless(shutil.which("strace") and subprocess.run(["strace", "-o", "/dev/null", "true"]).returncode == 0,
                         "strace is not installed, or may not trace")
    def test_a_mount_that_hangs(self):
        """Calls on the folder that do not come back: strace holds each for 15 s."""
        held = pathlib.Path(self.top.name, "held")
        held.write_text(f"#!/bin/sh\nexec strace -D -f -qq -o /dev/null -e trace=access -e inject=access:delay_enter=15000000:when=6+ "
                        f"-P {self.folder} {QUIRE} \"$@\"\n")
        held.chmod(0o700)
        with Server(QUIRE, tiny("llama-F32")) as alone, \
                Server(held, tiny("llama-F32"), "--kv-store", self.url, "--kv-secret-file", self.secret) as server:
            for seed in range(400, 1000):
                self.assertEqual(ask(server, words(seed, 60))[0], ask(alone, words(seed, 60))[0])
                if not tier(server)["open"]:
                    break
            self.assertIn("does not come back", server.output())
            began = time.time()  # nobody waits for it any more
            times = [first_token_ms(server, words(seed, 60)) for seed in range(1000, 1030)]
            self.assertLess(statistics.median(times), 100, times)
            self.assertLess(time.time() - began, 20)
            # It ends without the threads that hang; strace holds what is left of them.
            server.process.send_signal(signal.SIGTERM)
            status = pathlib.Path(f"/proc/{server.process.pid}/status")
            wait_for(lambda: "State:\tZ" in status.read_text(), 10)

    def test_a_bound(self):
        self.clear()
        with Server(QUIRE, tiny("llama-F32"), "--kv-store", self.url + "?max=1MiB", "--kv-secret-file", self.secret) as server:
            for seed in range(300, 330):
                ask(server, words(seed, 60))
            wait_for(lambda: not tier(server)["queue_bytes"]["write"], 30)
            self.assertEqual(tier(server)["capacity_bytes"], 1 << 20)
            self.assertGreater(tier(server)["written"]["bytes"], 1 << 20)
        self.assertLessEqual(sum(v.stat().st_size for v in self.values()), 1 << 20)

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


@unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")
class Tls(Sharing, unittest.TestCase):
    """A real Redis that speaks TLS alone, with a certificate of our own authority."""

    @classmethod
    def open_store(cls):
        home = pathlib.Path(cls.top.name)
        for words_ in (["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-days", "2", "-keyout", home / "ca.key",
                        "-out", home / "ca.pem", "-addext", "basicConstraints=critical,CA:TRUE"],
                       ["req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=redis", "-keyout", home / "key.pem", "-out", home / "csr"]):
            subprocess.run(["openssl", *map(str, words_)], check=True, capture_output=True)
        (home / "extra").write_text("subjectAltName=IP:127.0.0.1\n")
        subprocess.run(["openssl", "x509", "-req", "-in", home / "csr", "-CA", home / "ca.pem", "-CAkey", home / "ca.key",
                        "-CAcreateserial", "-days", "2", "-extfile", home / "extra", "-out", home / "cert.pem"], check=True,
                       capture_output=True)
        cls.node = Redis(str(home), free_port(), "--tls-cert-file", str(home / "cert.pem"), "--tls-key-file", str(home / "key.pem"),
                         "--tls-ca-cert-file", str(home / "ca.pem"), "--tls-auth-clients", "no", tls=str(home / "ca.pem"),
                         password="hush")
        cls.url = f"rediss://:hush@127.0.0.1:{cls.node.port}?patience=5000&ca={home}/ca.pem"

    @classmethod
    def close_store(cls):
        cls.node.stop()

    def clear(self):
        self.node.call("FLUSHALL")

    def damage(self):
        keys = self.node.call("KEYS", "*")
        for key in keys:
            value = bytearray(self.node.call("GET", key))
            value[len(value) // 2] ^= 4
            self.node.call("SET", key, bytes(value))
        return len(keys)

    def test_a_certificate_that_nobody_vouches_for_is_not_trusted(self):
        for url in (self.url.split("&ca=")[0], self.url.replace("127.0.0.1", "localhost")):
            with Server(QUIRE, tiny("llama-F32"), "--kv-store", url, "--kv-secret-file", self.secret) as server:
                for seed in range(80, 86):
                    ask(server, words(seed, 60))
                wait_for(lambda: not tier(server)["open"], 30)
                self.assertIn("TLS", server.output())
                self.assertNotIn("hush", server.output())
                self.assertEqual(tier(server)["written"]["blocks"], 0)


@unittest.skipUnless(shutil.which("redis-server") and shutil.which("redis-cli"), "redis-server is not installed")
class Failover(unittest.TestCase):
    """Three masters, three replicas: one of them takes over when it is told to, and when its master dies."""

    def test_masters_change(self):
        with tempfile.TemporaryDirectory() as top:
            nodes = []
            try:
                self.check(top, nodes)
            finally:
                for node in nodes:
                    node.stop()

    def check(self, top, nodes):
        for i in range(6):
            home = pathlib.Path(top, str(i))
            home.mkdir()
            nodes.append(Redis(home, free_port(), "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
                               "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0"))
        addresses = [f"127.0.0.1:{n.port}" for n in nodes]
        subprocess.run(["redis-cli", "--cluster", "create", *addresses, "--cluster-replicas", "1", "--cluster-yes"], check=True,
                       capture_output=True)
        wait_for(lambda: all(b"cluster_state:ok" in n.call("CLUSTER", "INFO") for n in nodes), 30)

        def role(node):
            return node.call("ROLE")[0].decode()
        wait_for(lambda: sum(role(n) == "slave" and n.call("ROLE")[3] == b"connected" for n in nodes) == 3, 30)
        secret = pathlib.Path(top, "secret")
        secret.write_text(secrets.token_hex(64))
        secret.chmod(0o600)
        store = ("--kv-store", "redis://" + ",".join(addresses) + "?patience=1000", "--kv-secret-file", secret)
        with Server(QUIRE, tiny("llama-F32"), *store) as server, Server(QUIRE, tiny("llama-F32")) as alone:
            seeds = iter(range(500, 2000))

            def serves(count):
                for _ in range(count):
                    prompt = words(next(seeds), 60)
                    self.assertEqual(ask(server, prompt)[0], ask(alone, prompt)[0])
            serves(3)
            replica = next(n for n in nodes if role(n) == "slave")
            self.assertEqual(replica.call("CLUSTER", "FAILOVER"), b"OK")
            serves(5)
            wait_for(lambda: role(replica) == "master", 30)
            serves(3)
            replica.stop()  # the old master takes over by itself
            left = [n for n in nodes if n is not replica]
            serves(5)
            wait_for(lambda: sum(role(n) == "master" for n in left) == 3, 60)

            def stores_again():
                before = tier(server)["written"]["blocks"]
                serves(1)
                time.sleep(0.3)
                return tier(server)["open"] and tier(server)["written"]["blocks"] >= before + 7
            wait_for(stores_again, 60)
            prompt = words(next(seeds), 60)
            answer = ask(server, prompt)[0]
            wait_for(lambda: not tier(server)["queue_bytes"]["write"], 30)
            time.sleep(0.5)
        for _ in range(TRIES):
            with Server(QUIRE, tiny("llama-F32"), *store) as server:
                again, said = ask(server, prompt)
                self.assertEqual(again, answer)
                if said["cached_by_tier"]["remote"] >= 224:
                    return
        self.fail(f"nothing came from the cluster: {said}")


@unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")
class Lying(unittest.TestCase):
    """A Redis that forgets, runs out of memory, or has other values than were stored."""

    def setUp(self):
        self.top = tempfile.TemporaryDirectory()
        self.secret = pathlib.Path(self.top.name, "secret")
        self.secret.write_text(secrets.token_hex(64))
        self.secret.chmod(0o600)

    def tearDown(self):
        self.top.cleanup()

    def check(self, trouble, *options, prompts=12):
        """The same answers as without a store, whatever `trouble` does between requests."""
        node = Redis(self.top.name, free_port(), *options)
        try:
            with Server(QUIRE, tiny("llama-F32")) as alone:
                wanted = [ask(alone, words(700 + i, 60))[0] for i in range(prompts)]
            for round_ in range(2):
                with Server(QUIRE, tiny("llama-F32"), "--kv-store", f"redis://127.0.0.1:{node.port}?patience=5000", "--kv-secret-file",
                            self.secret) as server:
                    for i in range(prompts):
                        self.assertEqual(ask(server, words(700 + i, 60))[0], wanted[i], (round_, i))
                        trouble(node, i)
                    wait_for(lambda: not tier(server)["queue_bytes"]["write"], 30)
                    seen = tier(server)
            return node, seen
        finally:
            node.stop()

    def test_little_memory(self):
        for policy in ("allkeys-lru", "noeviction"):
            _, seen = self.check(lambda node, i: None, "--maxmemory", "1500kb", "--maxmemory-policy", policy)
            self.assertTrue(seen["open"], policy)
            if policy == "noeviction":
                self.assertGreater(seen["refused"], 0)

    def test_it_forgets(self):
        self.check(lambda node, i: node.call("FLUSHALL"))

    def test_garbage(self):
        chance = random.Random(3)

        def garbage(node, i):
            time.sleep(0.1)
            for key in node.call("KEYS", "*"):
                kind = chance.randrange(4)
                if kind == 0:
                    node.call("SET", key, chance.randbytes(chance.randrange(9000)))
                elif kind == 1:
                    node.call("DEL", key)
                    node.call("LPUSH", key, "a list")
                elif kind == 2:
                    node.call("SETRANGE", key, chance.randrange(100), "xx") if node.call("TYPE", key) == b"string" else None
        _, seen = self.check(garbage)
        self.assertGreater(seen["corrupt"] + seen["failed"], 0)

    def test_values_under_other_keys(self):
        def turn(node, i):
            time.sleep(0.1)
            keys = node.call("KEYS", "*")
            values = [node.call("GET", k) for k in keys]
            for key, value in zip(keys, values[1:] + values[:1]):
                node.call("SET", key, value)
        _, seen = self.check(turn)
        self.assertGreater(seen["corrupt"], 0)


@unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")
class Deadline(unittest.TestCase):
    """A store that does not answer costs a request no more than the deadline of 50 ms, and nothing once the breaker is open."""

    def check(self, trouble, undo):
        with tempfile.TemporaryDirectory() as top, Server(QUIRE, tiny("llama-F32")) as alone:
            secret = pathlib.Path(top, "secret")
            secret.write_text(secrets.token_hex(64))
            secret.chmod(0o600)
            node = Redis(top, free_port())
            with Proxy(node.port) as proxy:
                try:
                    with Server(QUIRE, tiny("llama-F32"), "--kv-store", f"redis://127.0.0.1:{proxy.port}", "--kv-secret-file",
                                secret) as server:
                        seeds = iter(range(5000, 9000))
                        for _ in range(3):  # what computing costs is known, and so is the store
                            ask(server, words(next(seeds), 200))
                            ask(alone, words(next(seeds), 200))
                        trouble(node, proxy)
                        plain, hanging, closed = [], [], []
                        while len(closed) < 20:
                            plain.append(first_token_ms(alone, words(next(seeds), 200)))
                            (hanging if tier(server)["open"] else closed).append(first_token_ms(server, words(next(seeds), 200)))
                        computed = statistics.median(plain)
                        noise = max(20, max(plain) - computed)
                        self.assertGreater(len(hanging), 0)
                        self.assertLess(max(hanging), 1.05 * computed + 50 + noise, (plain, hanging))
                        self.assertLess(statistics.median(closed), 1.05 * computed + 5, (plain, closed))
                        self.assertLess(max(closed), 1.05 * computed + noise + 20, (plain, closed))
                        undo(node, proxy)

                        def works_again():
                            ask(server, words(next(seeds), 60))
                            time.sleep(0.2)
                            return tier(server)["open"]
                        wait_for(works_again, 60)
                finally:
                    undo(node, proxy)
                    node.stop()

    def test_stopped(self):
        self.check(lambda node, proxy: node.process.send_signal(signal.SIGSTOP),
                   lambda node, proxy: node.process.send_signal(signal.SIGCONT))

    def test_frozen_on_the_way(self):
        def freeze(node, proxy):
            proxy.trouble = "freeze"

        def thaw(node, proxy):
            proxy.trouble = None
        self.check(freeze, thaw)

    def test_damaged_on_the_way(self):
        with tempfile.TemporaryDirectory() as top, Server(QUIRE, tiny("llama-F32")) as alone:
            secret = pathlib.Path(top, "secret")
            secret.write_text(secrets.token_hex(64))
            secret.chmod(0o600)
            node = Redis(top, free_port())
            try:
                with Proxy(node.port) as proxy:
                    for trouble in (None, "flip", "flip"):
                        proxy.trouble = trouble
                        with Server(QUIRE, tiny("llama-F32"), "--kv-store", f"redis://127.0.0.1:{proxy.port}?patience=1000",
                                    "--kv-secret-file", secret) as server:
                            for seed in range(900, 906):
                                self.assertEqual(ask(server, words(seed, 60))[0], ask(alone, words(seed, 60))[0])
            finally:
                node.stop()


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
                    ("ftp://bucket/x", secret, "write redis://HOST:PORT"),
                    (f"file://{top}?max=1", secret, "1MiB or more"),
                    (f"file://{top}?most=1GiB", secret, "is no option"),
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
