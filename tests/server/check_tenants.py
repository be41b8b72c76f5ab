"""Tenants over HTTP: leases are listed and released by their owner and by an administrator, quotas hold, and looking
leaves nothing behind.

    check_tenants.py QUIRE WRITE_TINY
"""
import os
import tempfile
import unittest

from kv_testing import QUIRE, tiny
from serving import Server

KEYS = {"a": "key-of-tenant-a", "b": "key-of-tenant-b", "admin": "key-of-the-admin"}


def text(seed, length=400):
    return "".join(chr(97 + (seed * 7 + i * i) % 26) for i in range(length))


class Tenants(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.keys = tempfile.NamedTemporaryFile("w", suffix=".keys")
        cls.keys.write(f"{KEYS['a']} tenant=a\n{KEYS['b']} tenant=b\n{KEYS['admin']} admin\n")
        cls.keys.flush()
        os.chmod(cls.keys.name, 0o600)
        cls.server = Server(QUIRE, tiny("llama-F32"), "--api-key-file", cls.keys.name, "--kv-cache-memory", "16MiB",
                            "--pin-budget", "0.1")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def setUp(self):
        for pin in self.call("admin", "GET", "/v1/kv/pins?limit=1000")["data"]:
            self.call("admin", "DELETE", f"/v1/kv/pins/{pin['id']}")
        self.call("admin", "POST", "/v1/kv/clear", {})

    def call(self, who, method, path, body=None, status=200):
        code, _, answer = self.server.call(method, path, body, {"Authorization": f"Bearer {KEYS[who]}"})
        self.assertEqual(code, status, answer)
        return answer

    def complete(self, who, prompt, kv=None, status=200, **more):
        return self.call(who, "POST", "/v1/completions",
                         {"model": "m", "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True,
                          "kv": kv or {}, **more}, status)

    def ids(self, who, path="/v1/kv/pins"):
        return [pin["id"] for pin in self.call(who, "GET", path)["data"]]

    def test_a_pin_of_a_request_is_listed_and_released(self):
        made = self.complete("a", text(1), {"retention": {"pin": True}})["kv"]["leases"]
        self.assertEqual(len(made), 1)
        for path in ("/v1/kv/pins", "/v1/kv/leases"):
            self.assertEqual(self.ids("a", path), made)
            self.assertEqual(self.ids("admin", path), made)
            self.assertEqual(self.ids("b", path), [])
        seen = self.call("a", "GET", f"/v1/kv/pins/{made[0]}")
        self.assertEqual((seen["tenant"], seen["pin"], seen["expires"]), ("a", True, None))
        self.assertGreater(seen["bytes"], 0)
        for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"ttl": "1s"})):
            self.call("b", method, f"/v1/kv/pins/{made[0]}", body, status=404)
        self.assertEqual(self.call("a", "DELETE", f"/v1/kv/pins/{made[0]}")["deleted"], True)
        self.assertEqual(self.ids("admin"), [])
        self.call("a", "DELETE", f"/v1/kv/pins/{made[0]}", status=404)

    def test_an_administrator_releases(self):
        made = self.complete("a", text(2), {"retention": {"ranges": [{"start": 0, "end": 64}]}})["kv"]["leases"]
        self.assertEqual(self.call("a", "GET", f"/v1/kv/pins/{made[0]}")["pin"], False)
        self.call("admin", "DELETE", f"/v1/kv/pins/{made[0]}")
        self.assertEqual(self.ids("a"), [])

    def test_pins_by_hand(self):
        self.complete("a", text(3))
        made = self.call("a", "POST", "/v1/kv/pins", {"prompt": text(3), "label": "rules", "ttl": "1h"})
        self.assertEqual((made["label"], made["tenant"]), ("rules", "a"))
        self.call("b", "POST", "/v1/kv/pins", {"prompt": text(3)}, status=404)
        self.call("b", "POST", "/v1/kv/pins", {"node": made["node"][:16]}, status=404)
        again = self.call("a", "POST", "/v1/kv/pins", {"node": made["node"][:16]})
        self.assertEqual(again["node"], made["node"])
        self.assertEqual(len(self.ids("a")), 2)

    def test_lists_page(self):
        for seed in range(5):
            self.complete("a", text(10 + seed, 100), {"retention": {"ttl": "1h", "pin": True}})
        first = self.call("a", "GET", "/v1/kv/pins?limit=3")
        self.assertEqual((len(first["data"]), first["has_more"]), (3, True))
        rest = self.call("a", "GET", f"/v1/kv/pins?limit=3&after={first['last_id']}")
        self.assertEqual((len(rest["data"]), rest["has_more"]), (2, False))

    def test_one_tenant_has_not_the_whole_pin_budget(self):
        for seed in range(60):
            self.complete("a", text(100 + seed), {"retention": {"pin": True}})
        state = self.call("a", "GET", "/v1/kv/tenants/a")
        self.assertLessEqual(state["used"]["pin_bytes"], 16 * 2**20 // 20)
        self.assertEqual(len(self.complete("b", text(1), {"retention": {"pin": True}})["kv"]["leases"]), 1)

    def test_quotas(self):
        self.call("a", "PUT", "/v1/kv/tenants/a", {"quota_bytes": {"cpu": 1 << 20}}, status=403)
        self.call("b", "GET", "/v1/kv/tenants/a", status=403)
        self.call("admin", "PUT", "/v1/kv/tenants/a", {"quota_bytes": {"cpu": -1}}, status=400)
        self.complete("a", text(1))
        self.complete("b", text(1))
        used = self.call("admin", "GET", "/v1/kv/tenants/b")["used"]["bytes"]
        one = self.call("a", "GET", "/v1/kv/tenants/a")["used"]["bytes"]
        quota = 2 * one
        made = self.call("admin", "PUT", "/v1/kv/tenants/a", {"quota_bytes": {"cpu": quota}, "leases": 1})
        self.assertEqual(made["quota_bytes"], {"cpu": quota})
        for seed in range(20):
            self.complete("a", text(200 + seed))
            self.assertLessEqual(self.call("a", "GET", "/v1/kv/tenants/a")["used"]["bytes"], quota)
        self.assertEqual(self.call("admin", "GET", "/v1/kv/tenants/b")["used"]["bytes"], used)
        error = self.complete("a", text(5, 1600), status=429)["error"]
        self.assertEqual(error["code"], "kv_quota_exceeded")
        self.assertEqual(len(self.complete("a", text(1), {"retention": {"pin": True}})["kv"]["leases"]), 1)
        self.assertNotIn("leases", self.complete("a", text(1), {"retention": {"pin": True}})["kv"])
        gone = self.call("admin", "DELETE", "/v1/kv/tenants/a")
        self.assertEqual(gone["quota_bytes"], {"cpu": None})
        self.complete("a", text(5, 1600))

    def test_ways_of_storing_without_end(self):
        """Each request has a window of its own: a tenant's old ones make way, and the other one's stay."""
        self.complete("b", text(1))
        for window in range(16, 116):
            self.complete("a", text(1, 120), {"window": {"size": window}, "allow_lossy": True})
            self.call("a", "POST", "/v1/kv/lookup", {"prompt": text(1, 120), "kv": {
                "window": {"size": 1000 + window}, "allow_lossy": True}})
        hit = self.complete("b", text(1))["kv"]
        self.assertGreater(hit["cached_tokens"], hit["prompt_tokens"] // 2)


if __name__ == "__main__":
    unittest.main(argv=["check_tenants"])
