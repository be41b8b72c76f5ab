"""One tenant against the others, on a live server, beside a neighbour who measures (attacking.py).

    tests/attacks/check_shares.py QUIRE WRITE_TINY [NAME...]
"""
import itertools
import json
import os
import signal
import unittest

from attacking import FOLDER, MEBI, QUIRE, TINY, Attacks, bearer, head, main, memory, post, status
from serving import Server, in_threads, wait_for


class Keys(unittest.TestCase):
    """Several tenants: nobody sees another's prompts, and a stranger's body is not read."""

    @classmethod
    def setUpClass(cls):
        cls.file = os.path.join(FOLDER.name, "keys")
        with open(cls.file, "w") as f:
            f.write("alice-key-1\nbob-key-22\nroot-key-3 admin\n")
        os.chmod(cls.file, 0o600)
        cls.log = os.path.join(FOLDER.name, "log", "access.log")
        os.mkdir(os.path.dirname(cls.log))
        cls.server = Server(QUIRE, TINY, "--api-key-file", cls.file, "--access-log", cls.log)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.output()[-2000:])

    def call(self, key, method, path, body=None):
        return self.server.call(method, path, body, headers={"Authorization": f"Bearer {key}"})

    def test_keys_are_tenants_of_their_own(self):
        prompt = list(range(60, 150))
        ask = {"model": "m", "prompt": prompt, "max_tokens": 1}
        self.call("alice-key-1", "POST", "/v1/completions", ask)
        again = self.call("alice-key-1", "POST", "/v1/completions", ask)[2]
        self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        other = self.call("bob-key-22", "POST", "/v1/completions", ask)[2]
        self.assertEqual(other["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        secret = list(range(100, 170))
        self.call("alice-key-1", "POST", "/v1/completions", {**ask, "prompt": secret})
        seen = self.call("bob-key-22", "POST", "/v1/kv/lookup", {"tokens": secret})[2]
        self.assertNotIn("token_ids", json.dumps(seen))
        nodes = self.call("alice-key-1", "GET", "/v1/kv/tree")[2]["nodes"]
        self.assertGreater(len(nodes), 0)
        for node in nodes:
            self.assertEqual(self.call("bob-key-22", "GET", f"/v1/kv/blocks/{node['hash'][:16]}")[0], 404)
            self.assertEqual(self.call("root-key-3", "GET", f"/v1/kv/blocks/{node['hash'][:16]}")[0], 200)

    def test_a_strangers_body_is_not_read(self):
        for _ in range(3):
            self.call("alice-key-1", "POST", "/v1/completions", {"model": "m", "prompt": [61] * 100, "max_tokens": 1})
        before = memory(self.server)
        self.assertEqual(status(self.server, head("/v1/completions", 30 * MEBI)), 401)
        self.assertEqual(status(self.server, head("/v1/nothing", 30 * MEBI, "Authorization: Bearer alice-key-1\r\n")), 404)
        self.assertLess(memory(self.server) - before, 4 * MEBI)

    def test_a_key_that_was_taken_back_is_gone_although_the_log_cannot_be_opened(self):
        with open(self.file) as f:
            keys = f.read()
        with open(self.file, "w") as f:
            f.write(keys.replace("bob-key-22\n", ""))
        os.rename(os.path.dirname(self.log), os.path.dirname(self.log) + ".away")
        try:
            self.server.process.send_signal(signal.SIGHUP)
            wait_for(lambda: self.call("bob-key-22", "GET", "/v1/models")[0] == 401, 20)
            self.assertEqual(self.call("alice-key-1", "GET", "/v1/models")[0], 200)
        finally:
            os.rename(os.path.dirname(self.log) + ".away", os.path.dirname(self.log))
            with open(self.file, "w") as f:
                f.write(keys)
            self.server.process.send_signal(signal.SIGHUP)
            wait_for(lambda: self.call("bob-key-22", "GET", "/v1/models")[0] == 200, 20)


class Shares(Attacks):
    """A tenant who takes whatever it gets, and a neighbour who keeps what is its own."""
    key, greedy, admin = "bob-key-22", "alice-key-1", "root-key-3"
    file = os.path.join(FOLDER.name, "shares")
    arguments = ("--api-key-file", file)

    @classmethod
    def setUpClass(cls):
        with open(cls.file, "w") as f:
            f.write(f"{cls.greedy} tenant=alice\n{cls.key} tenant=bob\n{cls.admin} admin\n")
        os.chmod(cls.file, 0o600)
        super().setUpClass()

    def setUp(self):
        self.numbers = itertools.count(1)
        for pin in self.leases(self.admin):
            self.call(self.admin, "DELETE", f"/v1/kv/pins/{pin}")
        self.call(self.admin, "DELETE", "/v1/kv/tenants/alice")
        self.call(self.admin, "POST", "/v1/kv/clear", {"select": {"all": True}})

    def call(self, key, method, path, body=None, expected=200):
        got, _, answer = self.server.call(method, path, body, headers=bearer(key))
        self.assertEqual(got, expected, answer)
        return answer

    def complete(self, key, prompt, **kv):
        return self.call(key, "POST", "/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 1, "kv": kv})["kv"]

    def fresh(self, length=200):
        """A prompt that nobody had before."""
        number = next(self.numbers)
        return [61 + number // 10_000 % 100, 61 + number // 100 % 100, 61 + number % 100] + [
            61 + number * i % 97 for i in range(length - 3)]

    def leases(self, key):
        found, after = [], ""
        while True:
            page = self.call(key, "GET", f"/v1/kv/leases?limit=1000&after={after}")
            found += [lease["id"] for lease in page["data"]]
            if not page["has_more"]:
                return found
            after = page["last_id"]

    def tenant(self, name):
        return self.call(self.admin, "GET", f"/v1/kv/tenants/{name}")

    def settle(self):
        """Gives the neighbour something of its own, less than its share."""
        prompts = [[161 - i] * 2 + [61 + i * j % 89 for j in range(150)] for i in range(10)]
        for prompt in prompts:
            self.complete(self.key, prompt)
        self.assertLess(self.tenant("bob")["used"]["bytes"], self.tenant("bob")["share_bytes"])
        return prompts

    def still_has(self, prompts):
        for prompt in prompts:
            hit = self.complete(self.key, prompt)
            self.assertGreaterEqual(hit["cached_tokens"], len(prompt) // 32 * 32, hit)

    def test_a_flood(self):
        prompts = self.settle()

        def attack():
            self.complete(self.greedy, self.fresh())
        self.neighbour(attack, 1000)
        while self.call(self.admin, "GET", "/v1/kv/stats")["evictions"]["total"] == 0:
            attack()
        for _ in range(20):
            attack()
        self.still_has(prompts)

    def test_choices_without_end(self):
        """Answers of sixteen choices that would take every place in a step."""
        request = post("/v1/completions", {"model": "m", "prompt": [61, 62], "max_tokens": 600, "n": 16, "ignore_eos": True},
                       f"Authorization: Bearer {self.greedy}\r\n")

        def attack():
            got = status(self.server, request)
            assert got in (200, 429, 0), got
        self.neighbour(attack, 1000, count=6)

    def test_pins_without_end(self):
        prompts = self.settle()
        made = set()

        def attack():
            made.update(self.complete(self.greedy, self.fresh(), retention={"pin": True}).get("leases", []))
        self.neighbour(attack, 1000)
        count = -1
        while len(made) > count:  # until no more are given
            count = len(made)
            for _ in range(3):
                attack()
        self.assertEqual(set(self.leases(self.greedy)), made)
        self.assertEqual(self.leases(self.key), [])
        self.assertLessEqual(self.tenant("alice")["used"]["pin_bytes"], 4 * MEBI)  # half of half
        self.still_has(prompts)
        own = self.complete(self.key, prompts[0], retention={"pin": True})["leases"]
        self.assertEqual(self.leases(self.key), own)
        self.call(self.greedy, "DELETE", f"/v1/kv/pins/{own[0]}", expected=404)
        first, *others = sorted(made)
        self.call(self.greedy, "DELETE", f"/v1/kv/pins/{first}")
        for lease in others:
            self.call(self.admin, "DELETE", f"/v1/kv/pins/{lease}")
        self.assertEqual(self.leases(self.admin), own)
        self.assertEqual(self.tenant("alice")["used"]["pin_bytes"], 0)

    def test_leases_without_end(self):
        prompts = self.settle()
        self.call(self.admin, "PUT", "/v1/kv/tenants/alice", {"leases": 20})
        prompt = self.fresh()

        def attack():
            self.complete(self.greedy, prompt, retention={"ranges": [{"start": 0, "end": 64} for _ in range(8)]})
        self.neighbour(attack, 1000)
        self.assertEqual(len(self.leases(self.greedy)), 20)
        self.assertEqual(len(self.complete(self.key, prompts[0], retention={"ranges": [{"start": 0, "end": 64}]})["leases"]), 1)
        self.still_has(prompts)

    def test_ways_of_storing_without_end(self):
        """Each request has a window, exact tokens or sinks of its own; lookups leave nothing at all."""
        prompts = self.settle()
        prompt = self.fresh(100)
        self.complete(self.greedy, prompt)
        roots = self.tenant("alice")["used"]["roots"]

        def way(number):
            return {"allow_lossy": True, **(
                {"window": {"size": 64 + number % 3000}} if number % 3 == 0 else
                {"window": {"size": 64 + number % 3000, "sink": 1 + number // 3000}} if number % 3 == 1 else
                {"format": {"k": "int8", "v": "int8", "recent_exact": 32 * number}})}

        def look():
            self.call(self.greedy, "POST", "/v1/kv/lookup", {"tokens": prompt, "kv": way(next(self.numbers))})

        def attack():
            self.complete(self.greedy, prompt, **way(next(self.numbers)))
        self.neighbour(look, 1000)
        before = memory(self.server)
        in_threads([lambda: [look() for _ in range(1000)]] * 5)
        self.assertEqual(self.tenant("alice")["used"]["roots"], roots)
        self.neighbour(attack, 1000)
        in_threads([lambda: [attack() for _ in range(250)]] * 4)
        self.assertLessEqual(self.tenant("alice")["used"]["roots"], 64)
        self.assertLessEqual(memory(self.server) - before, 64 * MEBI)
        self.still_has(prompts)


if __name__ == "__main__":
    main()
