"""A cache folder over restarts: what one server computed the next one finds, after SIGTERM, after kill -9, and after
somebody damaged the folder. Answers stay the same, whatever was found.

    check_tiers.py QUIRE WRITE_TINY [MODEL]
"""
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from kv_testing import QUIRE, tiny
from serving import Server

MODEL = sys.argv[3] if len(sys.argv) > 3 and pathlib.Path(sys.argv[3]).exists() else None


def words(seed, count):
    chance = random.Random(seed)
    return " ".join(chance.choice("red green blue old new small large quiet house river stone bird tree road".split())
                    for _ in range(count))


def ask(server, prompt, kv=None, **more):
    answer = server.post("/v1/completions", {
        "model": "m", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 3,
        "kv": {"report": ["usage", "timing", "explain"], **(kv or {})}, **more})
    return (answer["choices"][0]["text"], answer["choices"][0]["logprobs"]), answer["usage"], answer["kv"]


def fsck(folder):
    return subprocess.run([QUIRE, "kv", "fsck", folder], capture_output=True, text=True)


def stored(server):
    return next(t for t in server.get("/v1/kv/stats")["tiers"] if t["name"] == "disk")


def wait_until_written(server, blocks):
    end = time.time() + 30
    while time.time() < end:
        if stored(server)["blocks"]["total"] >= blocks:
            return
        time.sleep(0.05)
    raise AssertionError(f"{blocks} blocks were not written: {stored(server)}")


class Restarts(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.TemporaryDirectory()
        self.folder = self.top.name + "/kv"

    def tearDown(self):
        self.top.cleanup()

    def serve(self, *more, model=None):
        return Server(QUIRE, model or tiny("llama-F32"), "--kv-dir", self.folder, "--kv-disk", "1GiB", *more)

    def check_restart(self, how, model, prompt, least):
        with self.serve(model=model) as server:
            first, usage, kv = ask(server, prompt)
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 0)
            wait_until_written(server, usage["prompt_tokens"] // 32)
            server.stop(how)
        with self.serve(model=model) as server:
            again, usage, kv = ask(server, prompt)
            self.assertEqual(again, first)
            self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], least, (usage, kv))
            self.assertGreaterEqual(kv["cached_by_tier"]["disk"], least, kv)
            self.assertEqual(kv["cached_by_tier"]["cpu"] + kv["cached_by_tier"]["disk"], kv["cached_tokens"])
            self.assertIn(kv["explain"]["reason"], ("none", "block_partial"))
            once_more, usage, kv = ask(server, prompt)  # now it is in memory
            self.assertEqual(once_more, first)
            self.assertEqual(kv["cached_by_tier"]["disk"], 0)
            self.assertGreaterEqual(kv["cached_by_tier"]["cpu"], least)

    def test_after_a_signal(self):
        for how in (signal.SIGTERM, signal.SIGKILL):
            self.check_restart(how, None, words(1, 60), 224)
            self.folder += "-again"

    @unittest.skipUnless(MODEL, "the test model is not there")
    def test_a_thousand_tokens_of_a_real_model(self):
        for how in (signal.SIGTERM, signal.SIGKILL):
            self.check_restart(how, MODEL, words(2, 1000), 900)
            self.folder += "-again"

    def test_models_with_windows_and_lossy_formats(self):
        prompt = words(3, 60)
        self.check_restart(signal.SIGKILL, tiny("gemma3-F32"), prompt, 224)
        for kv in ({"format": "int8"}, {"format": {"k": "int8", "v": "int8", "recent_exact": 64}}):
            with self.serve() as server:
                first, usage, _ = ask(server, prompt, kv)
                wait_until_written(server, usage["prompt_tokens"] // 32)
            with self.serve() as server:
                again, usage, seen = ask(server, prompt, kv)
                self.assertEqual(again, first)
                self.assertGreaterEqual(seen["cached_by_tier"]["disk"], 128, seen)
                plain, _, seen = ask(server, prompt)  # another layout: another chain
            self.folder += "-again"

    def test_what_is_private_stays_so(self):
        prompt = words(4, 60)
        with self.serve() as server:
            first, usage, _ = ask(server, prompt, {"salt": "mine"})
            wait_until_written(server, usage["prompt_tokens"] // 32)
            ask(server, words(5, 60), {"tiers": ["cpu"]})
            ask(server, words(6, 60), {"write": "none"})
        with self.serve() as server:
            for kv in ({}, {"salt": "yours"}, {"salt": "mine", "tiers": ["cpu"]}, {"salt": "mine", "reuse": "none"}):
                again, usage, seen = ask(server, prompt, kv)
                self.assertEqual(again, first)
                self.assertEqual(seen["cached_by_tier"]["disk"], 0, kv)
            for seed in (5, 6):
                self.assertEqual(ask(server, words(seed, 60))[2]["cached_tokens"], 0)
        with self.serve() as server:
            self.assertGreater(ask(server, prompt, {"salt": "mine"})[2]["cached_by_tier"]["disk"], 200)

    def test_damage_is_a_miss(self):
        prompt = words(7, 60)
        with self.serve() as server:
            first, usage, _ = ask(server, prompt)
            wait_until_written(server, usage["prompt_tokens"] // 32)
        self.assertEqual(fsck(self.folder).returncode, 0)
        volume = sorted(pathlib.Path(self.folder, "segments").iterdir())[0]
        data = bytearray(volume.read_bytes())
        data[len(data) // 2] ^= 16
        volume.write_bytes(data)
        with self.serve() as server:
            again, usage, kv = ask(server, prompt)
            self.assertEqual(again, first)
            self.assertLess(kv["cached_by_tier"]["disk"], (usage["prompt_tokens"] - 1) // 32 * 32)
            self.assertEqual(kv["explain"]["reason"], "load_failed")
            self.assertEqual(stored(server)["corrupt"], 1)
            server.stop(signal.SIGKILL)
        volume = sorted(pathlib.Path(self.folder, "segments").iterdir())[0]
        data = bytearray(volume.read_bytes())
        data[len(data) // 3] ^= 16
        volume.write_bytes(data)
        said = fsck(self.folder)
        self.assertEqual(said.returncode, 1, said.stdout + said.stderr)
        self.assertEqual(fsck(self.folder).returncode, 0)
        with self.serve() as server:
            again, _, kv = ask(server, prompt)
            self.assertEqual(again, first)

    def test_other_weights_find_nothing(self):
        prompt = words(8, 60)
        with self.serve() as server:
            _, usage, _ = ask(server, prompt)
            wait_until_written(server, usage["prompt_tokens"] // 32)
        with self.serve(model=tiny("qwen2-F32")) as server:
            self.assertEqual(ask(server, prompt)[2]["cached_tokens"], 0)

    def test_one_server_at_a_time(self):
        with self.serve():
            with self.assertRaisesRegex(RuntimeError, "another process is using this cache folder"):
                self.serve()

    def test_clear_reaches_the_folder(self):
        prompt = words(9, 60)
        with self.serve() as server:
            _, usage, _ = ask(server, prompt)
            wait_until_written(server, usage["prompt_tokens"] // 32)
            server.post("/v1/kv/clear", {})
            self.assertEqual(ask(server, prompt)[2]["cached_tokens"], 0)

    def test_the_bound_holds(self):
        with Server(QUIRE, tiny("llama-F32"), "--kv-dir", self.folder, "--kv-disk", "2MiB") as server:
            for seed in range(40):
                ask(server, words(100 + seed, 60))
            self.assertLessEqual(stored(server)["used_bytes"], 2 << 20)
        used = sum(p.stat().st_size for p in pathlib.Path(self.folder).rglob("*") if p.is_file())
        self.assertLessEqual(used, 2 << 20)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
