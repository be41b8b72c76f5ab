"""Servers that share a bucket of S3, which moto plays: what one computed the others load. Every request is signed as botocore
signs it. With other keys, damaged objects, or a server that hangs or is gone, answers stay the same and come in time.

    scripts/python --stores check_s3.py QUIRE WRITE_TINY
"""
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from check_stores import Sharing, ask, first_token_ms, metric, tier, words
from fault_proxy import Proxy
from kv_testing import QUIRE, tiny
from s3_testing import REGION, S3Server
from serving import Server, wait_for

KEY = "AKIATEST", "a/secret+key=that/has/signs", "a/token//of+some==length"


def environment(key=KEY, **more):
    return {"AWS_ACCESS_KEY_ID": key[0], "AWS_SECRET_ACCESS_KEY": key[1], "AWS_SESSION_TOKEN": key[2], "AWS_REGION": REGION,
            "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "no_proxy": "127.0.0.1", **more}


if "no libcurl" in subprocess.run([QUIRE, "serve", tiny("llama-F32"), "--port", "0", "--kv-store", "s3://quire-test"],
                                  capture_output=True, text=True, env=environment()).stderr:
    print("skipped: this build has no libcurl (scripts/setup --s3)")
    sys.exit(77)


class Bucket(Sharing, unittest.TestCase):
    @classmethod
    def open_store(cls):
        cls.s3 = S3Server({KEY[0]: KEY[1]})
        cls.s3.make_bucket("quire-test")
        cls.url = f"s3://quire-test/some/prefix?patience=5000&endpoint={cls.s3.url}"
        cls.environment = environment()

    @classmethod
    def close_store(cls):
        cls.s3.__exit__()
        assert cls.s3.refused == 0 < cls.s3.accepted, (cls.s3.refused, cls.s3.accepted)

    def objects(self):
        return self.s3.client.list_objects_v2(Bucket="quire-test").get("Contents", [])

    def clear(self):
        for one in self.objects():
            self.s3.client.delete_object(Bucket="quire-test", Key=one["Key"])

    def damage(self):
        for one in self.objects():
            self.assertTrue(one["Key"].startswith("some/prefix/"), one["Key"])
            body = bytearray(self.s3.client.get_object(Bucket="quire-test", Key=one["Key"])["Body"].read())
            body[len(body) // 2] ^= 4
            self.s3.client.put_object(Bucket="quire-test", Key=one["Key"], Body=bytes(body))
        return len(self.objects())


class Trouble(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.TemporaryDirectory()
        self.secret = Sharing.make_secret.__func__(self, "secret")
        self.s3 = S3Server({KEY[0]: KEY[1]})
        self.s3.make_bucket("quire-test")

    def tearDown(self):
        self.s3.__exit__()
        self.top.cleanup()

    def serve(self, endpoint, variables):
        return Server(QUIRE, tiny("llama-F32"), "--kv-store", f"s3://quire-test/p?endpoint={endpoint}", "--kv-secret-file",
                      self.secret, environment=variables)

    def test_other_keys_are_refused_and_cost_no_answer(self):
        for key in ((KEY[0], "wrong", KEY[2]), ("NOBODY", KEY[1], KEY[2])):
            before = self.s3.refused
            with self.serve(self.s3.url, environment(key)) as server, Server(QUIRE, tiny("llama-F32")) as alone:
                for seed in range(80, 85):
                    self.assertEqual(ask(server, words(seed, 60))[0], ask(alone, words(seed, 60))[0])
                wait_for(lambda: not tier(server)["open"], 30)
                self.assertIn("S3 answers 403", server.output())
                self.assertNotIn(key[1], server.output())
            self.assertGreater(self.s3.refused, before)

    def test_keys_from_files(self):
        keys, config = (pathlib.Path(self.top.name, n) for n in ("credentials", "config"))
        keys.write_text(f"[default]\naws_access_key_id = x\naws_secret_access_key = y\n\n[kv]\naws_access_key_id = {KEY[0]}\n"
                        f"aws_secret_access_key = {KEY[1]}\n")
        config.write_text(f"[profile kv]\nregion = {REGION}\nendpoint_url = {self.s3.url}\n")
        files = {"AWS_SHARED_CREDENTIALS_FILE": str(keys), "AWS_CONFIG_FILE": str(config), "no_proxy": "127.0.0.1",
                 **{n: "" for n in environment() if n.startswith("AWS_") and not n.endswith("FILE")}}
        for url, variables in (("s3://quire-test/p?profile=kv", files), ("s3://quire-test/p", {**files, "AWS_PROFILE": "kv"})):
            before = self.s3.accepted
            with Server(QUIRE, tiny("llama-F32"), "--kv-store", url, "--kv-secret-file", self.secret,
                        environment=variables) as server:
                ask(server, words(90, 60))
                wait_for(lambda: self.s3.accepted > before + 6, 30)
        self.assertEqual(self.s3.refused, 0)

    def test_a_server_that_hangs_or_is_gone_costs_no_more_than_the_deadline(self):
        for trouble in ("freeze", "cut"):
            with Proxy(self.s3.port) as proxy, self.serve(f"http://127.0.0.1:{proxy.port}", environment()) as server, \
                    Server(QUIRE, tiny("llama-F32")) as alone:
                ask(server, words(100, 60))
                ask(alone, words(100, 60))
                proxy.trouble = trouble
                for seed in range(101, 140):
                    self.assertLess(first_token_ms(server, words(seed, 60)), 1000 + 500)
                    if not tier(server)["open"]:
                        break
                    time.sleep(0.3)
                wait_for(lambda: not tier(server)["open"], 30)
                began, asked = time.time(), 0
                while time.time() < began + 3:  # it is tried again meanwhile
                    self.assertEqual(ask(server, words(200 + asked, 60))[0], ask(alone, words(200 + asked, 60))[0])
                    self.assertLess(first_token_ms(server, words(400 + asked, 60)), 500)
                    asked += 1
                self.assertEqual(metric(server, "kv_tier_open", "remote"), 0)
                proxy.trouble = None
                seeds = iter(range(600, 2000))

                def works_again():
                    ask(server, words(next(seeds), 60))
                    time.sleep(0.2)
                    return tier(server)["open"]
                wait_for(works_again, 60)


class Mistakes(unittest.TestCase):
    def test_addresses_and_keys(self):
        with tempfile.TemporaryDirectory() as top:
            secret = pathlib.Path(top, "secret")
            secret.write_text("0123456789abcdef" * 8)
            secret.chmod(0o600)
            none = {n: "" for n in environment() if n.startswith("AWS_") and not n.endswith("FILE")}
            for url, variables, said in [
                    ("s3://quire-test", {**environment(), **none}, "no AWS credentials for profile 'default'"),
                    ("s3://quire-test?profile=me", environment(), "no AWS credentials for profile 'me'"),
                    ("s3://Q", environment(), "a bucket's name"),
                    ("s3://quire-test/a b", environment(), "a prefix has"),
                    ("s3://quire-test/../x", environment(), "a prefix has"),
                    ("s3://quire-test?endpoint=ftp://x", environment(), "is no option")]:
                done = subprocess.run([QUIRE, "serve", tiny("llama-F32"), "--port", "0", "--kv-store", url, "--kv-secret-file",
                                       str(secret)], capture_output=True, text=True, timeout=60, env={**variables, "HOME": top})
                self.assertNotEqual(done.returncode, 0, url)
                self.assertIn(said, done.stderr, url)
                self.assertNotIn(KEY[1], done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
