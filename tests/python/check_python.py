"""The Python package: its native module is built in the folder of the other programs, then the package is used,
type-checked, and its examples run. (`pip install .` itself, which builds everything anew: check_install.py, --long.)

    check_python.py ROOT BUILD WRITE_TINY MODEL
"""
import asyncio
import gc
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request

ROOT, BUILD, WRITE_TINY, MODEL = sys.argv[1:5]
SITE = os.path.join(BUILD, "python", "site")


def build():
    """The package as `pip install .` lays it out."""
    for command in (["cmake", "-S", ROOT, "-B", BUILD, "-DQUIRE_PYTHON=ON", f"-DPython_EXECUTABLE={sys.executable}"],
                    ["cmake", "--build", BUILD, "--target", "quire_python"]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
    package = pathlib.Path(SITE, "quire")
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(pathlib.Path(ROOT, "python", "quire"), package, ignore=shutil.ignore_patterns("__pycache__"))
    native, = pathlib.Path(BUILD, "python").glob("_native*.so")
    (package / native.name).symlink_to(native)
    (package / "bin").mkdir()
    (package / "bin" / "quire").symlink_to(pathlib.Path(BUILD, "quire"))
    sys.path.insert(0, SITE)


def tiny(name, folder):
    subprocess.run([WRITE_TINY, folder], check=True, stdout=subprocess.DEVNULL)
    return os.path.join(folder, f"{name}.gguf")


class Small(unittest.TestCase):
    """On a tiny random model."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = tiny("llama-F32", cls.folder.name)
        cls.engine = quire.Engine(cls.model, kv_cache_memory="64MiB", kv_dir=cls.folder.name + "/kv", kv_disk="64MiB")

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()
        cls.folder.cleanup()

    def ids(self, count, seed=0):
        return [(seed * 7 + i * 11) % 200 + 5 for i in range(count)]

    def test_an_answer_is_a_text_that_knows_its_tokens(self):
        answer = self.engine.generate(self.ids(40), 6, temperature=0, ignore_eos=True)
        self.assertIsInstance(answer, str)
        self.assertEqual(len(answer.token_ids), 6)
        self.assertEqual(answer.finish_reason, "length")
        self.assertEqual(answer.usage["prompt_tokens"], 40)
        self.assertEqual(answer.kv["prompt_tokens"], 40)

    def test_a_batch_says_what_each_prompt_says_alone(self):
        prompts = [self.ids(10 + i, i) for i in range(32)]
        options = {"temperature": 0, "ignore_eos": True}
        together = self.engine.generate(prompts, 8, **options)
        self.assertEqual([a.token_ids for a in together],
                         [self.engine.generate(p, 8, **options).token_ids for p in prompts])
        self.assertEqual(len(self.engine.generate(prompts[0], 4, n=3, seed=5, temperature=1)), 3)

    def test_a_stream_is_the_whole_answer(self):
        options = {"temperature": 0.8, "seed": 11, "ignore_eos": True}
        whole = self.engine.generate(self.ids(20), 12, **options)
        stream = self.engine.stream(self.ids(20), 12, **options)
        pieces = list(stream)
        self.assertEqual("".join(pieces), whole)
        self.assertEqual([t for p in pieces for t in p.token_ids], whole.token_ids)
        self.assertEqual(stream.usage["completion_tokens"], 12)
        self.assertEqual(pieces[-1].finish_reason, "length")

        async def read():
            return [p async for p in self.engine.stream(self.ids(20), 12, **options)]

        self.assertEqual("".join(asyncio.run(read())), whole)

    def test_a_streamed_conversation_has_the_tokens_of_the_whole_one(self):
        options = {"temperature": 0, "ignore_eos": True}
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        with quire.Engine(self.model, kv_cache_memory="8MiB", trust_request_templates=True) as engine:
            whole = engine.chat("abc", 12, chat_template=template, **options)
            pieces = list(engine.chat_stream("abc", 12, chat_template=template, **options))
        self.assertEqual(len(whole.token_ids), 12)
        self.assertEqual([t for p in pieces for t in p.token_ids], whole.token_ids)
        self.assertEqual("".join(pieces), whole)

    def test_tasks_and_threads_ask_at_once(self):
        options = {"temperature": 0, "ignore_eos": True}
        alone = [self.engine.generate(self.ids(30, i), 5, **options).token_ids for i in range(16)]

        async def all_of_them():
            return await asyncio.gather(*(self.engine.agenerate(self.ids(30, i), 5, **options) for i in range(16)))

        self.assertEqual([a.token_ids for a in asyncio.run(all_of_them())], alone)
        got = [None] * 16
        threads = [threading.Thread(target=lambda i=i: got.__setitem__(
            i, self.engine.generate(self.ids(30, i), 5, **options).token_ids)) for i in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(got, alone)

    def test_python_runs_while_the_engine_computes(self):
        ticks, done = [0], threading.Event()

        def count():
            while not done.wait(0.001):
                ticks[0] += 1

        counter = threading.Thread(target=count)
        counter.start()
        self.engine.generate(self.ids(500), 1000, temperature=0, ignore_eos=True)
        done.set()
        counter.join()
        self.assertGreater(ticks[0], 1)

    def test_leaving_a_stream_ends_its_request(self):
        for piece in self.engine.stream(self.ids(8), 1500, temperature=0, ignore_eos=True):
            break
        for _ in range(400):
            if self.engine.request("GET", "/v1/kv/stats")["tiers"][0]["blocks"]["active"] == 0:
                return
            threading.Event().wait(0.01)
        self.fail("the request still holds blocks")

    def test_logits_choose_the_greedy_token(self):
        prompt = self.ids(50, 3)
        row = self.engine.logits(prompt)
        rows = self.engine.logits(prompt, all=True)
        self.assertEqual(rows.shape[0], 50)
        self.assertEqual(rows.dtype.name, "float32")
        self.assertTrue((rows[-1] == row).all())
        answer = self.engine.generate(prompt, 1, temperature=0, ignore_eos=True)
        self.assertEqual(int(row.argmax()), answer.token_ids[0])
        for wrong in ([], [10**6], [1] * 10**6):
            with self.assertRaises(ValueError):
                self.engine.logits(wrong)

    def test_policies_are_obeyed(self):
        kv = quire.Kv(format="int8", budget=quire.Budget("streaming", tokens=64), report=["usage"])
        answer = self.engine.generate(self.ids(200), 20, kv=kv, temperature=0, ignore_eos=True)
        self.assertEqual(answer.kv["format"], {"k": "int8", "v": "int8"})
        self.assertLess(answer.kv["bytes"], answer.kv["budget"]["bytes_whole"])
        with self.assertRaises(quire.QuireError) as refused:
            self.engine.generate(self.ids(8), 1, kv={"format": "int99"})
        self.assertEqual((refused.exception.status, refused.exception.param), (400, "kv.format"))

    def test_sessions_are_continued_forked_saved_and_loaded(self):
        talk = self.engine.session("talk")
        options = {"temperature": 0, "ignore_eos": True}
        prompt = self.engine.detokenize(self.ids(40))
        first = talk.generate(prompt, 8, **options)
        other = talk.fork("other")
        more = other.generate("a", 8, **options)
        self.assertGreater(more.cached_tokens, 0)
        self.assertEqual(len(other.tokens()), len(talk.tokens()) + len(self.engine.tokenize("a", special=False)) + 8)
        self.assertIn("other", self.engine.sessions())
        talk.save()
        before = talk.tokens()
        talk.delete()
        self.assertFalse(talk.exists())
        talk.load()
        self.assertEqual(talk.tokens(), before)
        again = talk.generate("a", 8, **options)
        self.assertEqual(again.token_ids, more.token_ids)
        length = len(first.token_ids)
        self.assertEqual(talk.truncate(length), length)
        other.delete()

    def test_the_cache_is_reused_and_cleared(self):
        prompt = self.ids(128, 9)
        self.engine.generate(prompt, 1, temperature=0)
        self.assertGreaterEqual(self.engine.generate(prompt, 1, temperature=0).cached_tokens, 96)
        self.assertGreater(self.engine.stats()["tokens"]["hit"], 0)
        self.engine.clear()
        self.assertEqual(self.engine.generate(prompt, 1, temperature=0, kv={"tiers": ["cpu"]}).cached_tokens, 0)

    def test_wrong_arguments_are_exceptions(self):
        with self.assertRaises(FileNotFoundError):
            quire.Engine("there/is/no.gguf")
        for options in ({"kv_format": "int99"}, {"no_such_option": 1}, {"threads": "many"}):
            with self.assertRaises(ValueError):
                quire.Engine(self.model, **options)
        with self.assertRaises(quire.QuireError):
            self.engine.generate(self.ids(4), 1, temperature=-1)

    def test_a_closed_engine_says_so(self):
        with quire.Engine(self.model, kv_cache_memory="8MiB") as engine:
            stream = engine.stream(self.ids(8), 100, ignore_eos=True)
        with self.assertRaises(ValueError):
            engine.generate("a", 1)
        try:
            list(stream)
        except quire.QuireError:
            pass

    def test_a_server_listens(self):
        with quire.Server(self.model, kv_cache_memory="8MiB") as server:
            with urllib.request.urlopen(server.url + "/health") as answer:
                self.assertEqual(answer.status, 200)
            self.assertEqual(len(server.generate(self.ids(4), 2, ignore_eos=True).token_ids), 2)

    def test_many_requests_leave_nothing_behind(self):
        """10^5 requests with QUIRE_LONG=1, a thousand otherwise."""
        rounds = 100 if os.environ.get("QUIRE_LONG") else 1
        prompts = [self.ids(3, i) for i in range(1000)]

        def resident():
            gc.collect()
            return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        for _ in range(3):
            self.engine.generate(prompts, 1)
        before, descriptors = resident(), len(os.listdir("/proc/self/fd"))
        for _ in range(rounds):
            self.engine.generate(prompts, 1)
            for piece in self.engine.stream(prompts[0], 3):
                pass
        gc.collect()
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), descriptors + 2)
        self.assertLess(resident() - before, 32 << 20)


@unittest.skipUnless(os.path.exists(MODEL), "no model")
class Real(unittest.TestCase):
    def test_the_default_model_continues_a_text(self):
        code = "import quire; print(quire.Engine().generate('The capital of France is', max_tokens=8, temperature=0))"
        done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", code], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": SITE})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("Paris", done.stdout)

    def test_examples_run(self):
        examples = sorted(pathlib.Path(ROOT, "examples", "python").glob("*.py"))
        self.assertGreaterEqual(len(examples), 10)
        for example in examples:
            with self.subTest(example.name):
                done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=300,
                                      env={**os.environ, "PYTHONPATH": SITE})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue(done.stdout.strip(), "prints nothing")


class Types(unittest.TestCase):
    def test_mypy_finds_nothing(self):
        done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "-p", "quire", "--cache-dir", BUILD + "/python/mypy"],
                              capture_output=True, text=True, env={**os.environ, "MYPYPATH": SITE})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_everything_public_has_a_docstring(self):
        for name in quire.__all__:
            thing = getattr(quire, name)
            self.assertTrue(thing.__doc__, name)
            for member, value in vars(thing).items() if isinstance(thing, type) else ():
                if callable(value) and not member.startswith("_"):
                    self.assertTrue(value.__doc__ or member in ("of",), f"{name}.{member}")


build()
import quire  # noqa: E402

if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
