"""The program as people and scripts meet it: exit codes, JSON, help, errors, signals, and a chat in a terminal.

    python3 tests/cli/check_cli.py QUIRE WRITE_TINY [MODEL]

Most of it runs on a tiny random model that WRITE_TINY makes; what needs a model that can talk uses MODEL (SmolLM2) and is
the reason to skip (77) without it.
"""
import json
import math
import os
import pathlib
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from hf_folder import write_hf_folder

QUIRE, WRITE_TINY = map(os.path.abspath, sys.argv[1:3])
MODEL = os.environ.get("QUIRE_TEST_MODEL") or (sys.argv[3] if len(sys.argv) > 3 else "")
GREEDY = ("--temperature", 0)
COMMANDS = "serve run chat bench show plan selftest eval probe tokenize detokenize template completion version".split()
HURRY = 60  # seconds; a busy machine must not fail a test

folder = tempfile.TemporaryDirectory()
subprocess.run([WRITE_TINY, folder.name], check=True)
TINY = f"{folder.name}/llama-F32.gguf"
GEMMA = f"{folder.name}/gemma3-F32.gguf"
LOSSY = GEMMA  # its heads are wide enough for every format
ENVIRONMENT = {**os.environ, "XDG_CACHE_HOME": folder.name, "NO_COLOR": "1"}  # no model, no history of anybody's


def write_folder(name, without=(), **generation):
    return write_hf_folder(pathlib.Path(folder.name) / name, without, **generation)


def quire(*arguments, stdin="", code=0, timeout=4 * HURRY):
    done = subprocess.run([QUIRE, *map(str, arguments)], input=stdin, capture_output=True, text=True,
                          env=ENVIRONMENT, timeout=timeout)
    assert done.returncode == code, f"quire {arguments}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
    return done


def answer(*arguments, **more):
    """The one JSON object on stdout."""
    out = quire(*arguments, "--json", **more).stdout
    assert out.endswith("\n") and out.count("\n") == 1, out
    return json.loads(out)


class Errors(unittest.TestCase):
    def fails(self, code, *arguments, says=(), hint=True, stdin=""):
        done = quire(*arguments, code=code, stdin=stdin)
        self.assertTrue(done.stderr.startswith("error: "), done.stderr)
        self.assertEqual(done.stdout, "")
        if hint:
            self.assertIn("\n  hint: ", done.stderr)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, done.stderr)

    def test_usage_is_2(self):
        self.fails(2, "frobnicate", says="no command 'frobnicate'")
        for word, meant in ("benhc", "bench"), ("serv", "serve"), ("tokenise", "tokenize"), ("kv formts", "kv formats"):
            self.fails(2, *word.split(), says=f"did you mean `quire {meant}`?")
        self.fails(2, "run", "--nope", says="no option '--nope'")
        self.fails(2, "run", "--temprature", 1, says="did you mean --temperature?")
        self.fails(2, "run", TINY, "several", "words", says=["'words'", "quotes"])
        self.fails(2, "run", TINY, "x", "--temperature", says="--temperature needs a value")
        self.fails(2, "leaderboard", "add", says="which results")
        self.fails(2, "eval", TINY, says="--text-file")
        self.fails(2, "bench", says="WHAT")
        self.fails(2, "bench", "kitchen", says="kitchen")
        self.fails(2, "run", TINY, "-n", "many", says="many")
        self.fails(2, "completion", "tcsh", says="tcsh")
        self.fails(2, "show", TINY, "--block-size", 17, says="17")
        self.fails(2, "detokenize", TINY, says="--tokens")
        for arguments, says in [
            (("run", TINY, "x", "--temperature", -1), "temperature"),
            (("run", TINY, "x", "--temperature", "nan"), "temperature"),
            (("run", TINY, "x", "--top-p", 2), "top_p"),
            (("run", TINY, "x", "--logit-bias", "5"), "TOKEN=BIAS"),
            (("run", TINY, "x", "--logit-bias", "999=1"), "999"),
            (("run", TINY, "--tokens", "1,x"), "1,x"),
            (("run", TINY, "--tokens", "1,260"), "260"),
            (("run", TINY, "x", "-n", 5000), ["5000", "4096"]),
            (("run", TINY, "x", "--beams", 2, "--stop", "a"), "stop"),
            (("run", TINY, "x", "--kv-cache-memory", "lots"), "lots"),
            (("run", TINY, "x", "--kv-format", "float"), "float"),
            (("run", TINY, "x", "--isa", "mmx"), "mmx"),
            (("run", TINY, "x", "--weights", "small"), "small"),
            (("bench", "decode", TINY, "--depth", 5000), "4096"),
            (("eval", TINY, "--tokens", "1"), "two tokens"),
            (("detokenize", TINY, "--tokens", "1,,2"), "1,,2"),
            (("template", TINY, "--messages", "5"), "messages"),
            (("template", TINY, "--messages", "[{"), "not JSON at line 1, column 3: unexpected end of input"),
            (("run", TINY, "", "--raw"), "the prompt is empty"),
            (("run", "-m", TINY, ""), "the prompt is empty"),
            (("run", "-m", TINY, TINY, "x"), "two models"),
            (("run", TINY, "x", "-p", "y"), "two prompts"),
            (("plan", "--model", "llama-2-7b", "--format", "float"), "float"),
            (("plan", "--model", "llama-2-7b", "--memory", "much"), "much"),
        ]:
            with self.subTest(arguments=arguments):
                self.fails(2, *arguments, says=says, hint=False)

    def test_bench_kv(self):
        out = json.loads(quire("bench", "kv", "--filter", "^take_release$|key_chain/32", "--json").stdout)
        self.assertEqual(out["cached_blocks"], 1_000_000)
        self.assertEqual([row["name"] for row in out["benchmarks"]], ["key_chain/32", "take_release"])
        self.assertTrue(1 < out["take_release_ns"] < 10_000 and out["keys_mb_per_s"] > 1, out)
        self.fails(2, "bench", "kv", "--filter", "nothing_like_it", says="nothing_like_it")

    def test_bench_serve(self):
        text = quire("bench", "serve", "--help").stdout
        self.assertLessEqual(len(text.splitlines()), 40)
        self.assertIn("quire bench serve", quire("bench", "--help").stdout)
        self.fails(6, "bench", "serve", "--url", "http://127.0.0.1:9", says="127.0.0.1:9")
        for arguments, says in [
            (("--url", "127.0.0.1:8080"), "http://"),
            (("--slo", "fast"), "fast"),
            (("--workload", "trace"), "--trace"),
            (("--workload", "chaos"), "chaos"),
            (("--input", 0), "input"),
        ]:
            with self.subTest(arguments=arguments):
                self.fails(2, "bench", "serve", *arguments, says=says, hint=False)

    def test_messages_are_ours(self):
        """No exception of a library, and no empty name, in what people read."""
        for code, arguments in [(2, ("run", TINY, "x", "-n", "many")), (2, ("template", TINY, "--messages", "{\"a\": tru}")),
                                (3, ("detokenize", TINY, "--tokens", "@")), (3, ("show", "/no/such")),
                                (2, ("calibrate", TINY, "--text-file", ""))]:
            with self.subTest(arguments=arguments):
                said = quire(*arguments, code=code).stderr
                for word in "exception", "Could not", "error: :", ": :", "parse error":
                    self.assertNotIn(word, said)

    def test_missing_model_is_3(self):
        for command in ("run", "bench decode", "show", "selftest", "eval --tokens 1,2", "tokenize", "detokenize --tokens 1",
                        "plan", "chat"):
            with self.subTest(command=command):
                self.fails(3, *command.split(), "/nowhere/model.gguf", says="/nowhere/model.gguf", hint=False)
                # The default model is not in this cache folder.
                self.fails(3, *command.split(), says=folder.name, hint=False)
        for words in "words without a model", "hello":
            self.fails(3, "run", words, says="the default one is not in", hint=False)
            self.fails(3, "tokenize", words, says="the default one is not in", hint=False)
        (pathlib.Path(folder.name) / "quire" / "models").mkdir(parents=True, exist_ok=True)
        named = pathlib.Path(folder.name) / "quire" / "models" / "small.gguf"
        named.symlink_to(TINY)
        self.addCleanup(named.unlink)
        self.fails(3, "run", "llama3", "hi", says=["no model at llama3", "small", "fetch-model"], hint=False)
        self.assertEqual(quire("tokenize", "small", "abc").stdout, "97,98,99\n")
        for path in "/no such/model", "./no such model", "no such model.gguf":
            self.fails(3, "run", path, says=f"no model at {path}", hint=False, stdin="a prompt")
        self.fails(3, "run", "no such model", "--tokens", "1,2", says="no model at no such model", hint=False)
        self.fails(3, "plan", "--model", "llama-9", says=["llama-9", "llama-3-70b"], hint=False)

    def test_bad_model_is_3_and_named(self):
        whole = pathlib.Path(TINY).read_bytes()
        for name, content, says in [
            ("empty.gguf", b"", "empty.gguf"),
            ("text.gguf", b"not a model at all, but a text", "text.gguf"),
            ("header.gguf", whole[:100], "header.gguf"),
            ("cut.gguf", whole[: len(whole) // 2], "cut.gguf"),
            ("one_short.gguf", whole[:-4], "one_short.gguf"),
        ]:
            path = f"{folder.name}/{name}"
            pathlib.Path(path).write_bytes(content)
            for command in (("run", path, "hi"), ("show", path)):
                with self.subTest(arguments=command):
                    self.fails(3, *command, says=says, hint=False)
        self.fails(3, "run", folder.name, "hi", says="config.json", hint=False)
        bare = write_folder("bare", without="tokenizer.json")
        self.fails(3, "run", bare, "hi", says=["bare", "without tokenizer.json"], hint=False)

    def test_no_room_is_4(self):
        self.fails(4, "run", TINY, "hello " * 300, "--raw", "--kv-cache-memory", "256K", "-n", 8, hint=False)


class Help(unittest.TestCase):
    def test_overview_names_every_command(self):
        for arguments in ((), ("help",), ("--help",), ("-h",)):
            text = quire(*arguments).stdout
            for command in COMMANDS:
                self.assertRegex(text, rf"\n  {command} ")

    def test_help_of_one_command(self):
        for command in "serve", "kv formats", "bench serve":
            self.assertEqual(quire("help", *command.split()).stdout, quire(*command.split(), "--help").stdout)
        for arguments in ("kv",), ("help", "kv"), ("kv", "--help"):
            text = quire(*arguments).stdout
            self.assertIn("kv formats", text)
            self.assertIn("kv methods", text)
            self.assertNotIn("serve", text)
        for command in "run", "chat":  # how answers are drawn where nobody says
            text = quire(command, "--help").stdout
            self.assertRegex(text, r"--temperature.*the model's, or 0.7")
            self.assertRegex(text, r"--top-p.*the model's, or 0.9")
            self.assertRegex(text, r"--max-tokens.*until the end")
        self.assertRegex(quire("serve", "--help").stdout, r"a KEY has 8 characters")

    def test_help_fits_a_screen(self):
        for command in COMMANDS:
            with self.subTest(command=command):
                text = quire(command, "--help").stdout
                self.assertEqual(text, quire(command, "-h").stdout)
                self.assertTrue(text.endswith("\n"))
                self.assertLessEqual(len(text.splitlines()), 40)
                self.assertLessEqual(max(map(len, text.splitlines())), 100)
                if command != "version":
                    self.assertRegex(text, rf"example(.|\n)*quire {command}")
                if "--help-all" in text:
                    everything = quire(command, "--help-all").stdout
                    self.assertGreater(len(everything), len(text))
                    rare = "--costs" if command == "plan" else "--isa"
                    self.assertIn(rare, everything)
                    self.assertNotIn(rare, text)

    def test_completion_scripts(self):
        for shell in ("bash", "zsh", "fish"):
            script = quire("completion", shell).stdout
            for command in COMMANDS:
                self.assertIn(command, script)
            self.assertIn("temperature", script)
        for line in quire("completion", "fish").stdout.splitlines():
            self.assertEqual(shlex.split(line)[:3], ["complete", "-c", "quire"])
        script = quire("completion", "bash").stdout
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        words = subprocess.run(["bash", "-c", script + "\nCOMP_WORDS=(quire plan --con); COMP_CWORD=2; _quire; echo ${COMPREPLY[@]}"],
                               capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual(words, ["--context", "--concurrency"])
        words = subprocess.run(["bash", "-c", script + "\nCOMP_WORDS=(quire bench serve --sl); COMP_CWORD=3; _quire; echo ${COMPREPLY[@]}"],
                               capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual(words, ["--slo"])
        for line, wanted in ("quire k", ["kv"]), ("quire kv ", ["formats", "methods"]), ("quire help tok", ["tokenize"]):
            words = shlex.split(line) + ([""] if line.endswith(" ") else [])
            run = f"cd {folder.name}; {script}\nCOMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}; _quire; " \
                  "echo ${COMPREPLY[@]}"
            found = subprocess.run(["bash", "-c", run], capture_output=True, text=True, check=True).stdout.split()
            self.assertEqual([w for w in found if "." not in w and "/" not in w][: len(wanted)], wanted, line)
        self.assertRegex(quire("completion", "fish").stdout, r"__fish_use_subcommand -a kv ")

    def test_version(self):
        v = answer("version")
        self.assertRegex(v["version"], r"^\d+\.\d+\.\d+")
        self.assertIn(v["isa"], v["cpu"])
        self.assertIn("f16", v["kv_formats"])
        self.assertIn(v["version"], quire("--version").stdout)


class Installed(unittest.TestCase):
    """Beside the program lie the scripts that fetch things."""

    def test_the_leaderboard_fetches_its_text(self):
        with tempfile.TemporaryDirectory(dir=os.path.dirname(QUIRE)) as prefix:
            program, script = f"{prefix}/bin/quire", pathlib.Path(prefix) / "share" / "quire" / "fetch-text"
            os.makedirs(os.path.dirname(program))
            script.parent.mkdir(parents=True)
            os.link(QUIRE, program)
            text = pathlib.Path(prefix) / "text"
            script.write_text(f"#!/bin/sh\necho fetching >&2\nyes 'What is kept is found again.' | head -n 3000 >{text}\necho {text}\n")
            script.chmod(0o755)
            run = [program, "leaderboard", "run", TINY, "--tier", "smoke", "--methods", "streaming", "--shares", "0.5", "--out", f"{prefix}/board"]
            done = subprocess.run(run, capture_output=True, text=True, env=ENVIRONMENT, timeout=4 * HURRY)
            self.assertIn("fetching\n", done.stderr)
            self.assertTrue(text.exists())
            self.assertNotIn("--text-file", done.stderr)  # it was read; what a tiny model makes of it does not matter
            script.write_text("#!/bin/sh\necho 'error: no network' >&2\nexit 1\n")
            done = subprocess.run(run, capture_output=True, text=True, env=ENVIRONMENT, timeout=4 * HURRY)
            self.assertEqual(done.returncode, 1)
            self.assertIn("error: no network", done.stderr)
            self.assertIn("hint: give a natural text with --text-file", done.stderr)


class Shapes(unittest.TestCase):
    def test_run(self):
        r = answer("run", TINY, "--tokens", "1,2,3", "-n", 5, "--temperature", 0, "--ignore-eos")
        self.assertEqual(len(r["token_ids"]), 5)
        self.assertEqual(r["prompt_token_ids"], [1, 2, 3])
        self.assertEqual(r["finish_reason"], "length")
        self.assertIsInstance(r["text"], str)
        self.assertNotIn("logprobs", r)
        for key in ("load_ms", "prefill_ms", "decode_ms", "prompt_tokens", "cached_tokens", "generated_tokens",
                    "prefill_tokens_per_second", "decode_tokens_per_second"):
            self.assertGreaterEqual(r["timings"][key], 0, key)
        self.assertEqual(r["timings"]["prompt_tokens"], 3)
        again = answer("run", TINY, "--tokens", "1,2,3", "-n", 5, "--ignore-eos", "--logprobs", 2, "--threads", 3, "--chunk", 1,
                       *GREEDY)
        self.assertEqual(again["token_ids"], r["token_ids"])
        self.assertEqual(len(again["logprobs"]), 5)
        for entry, token in zip(again["logprobs"], r["token_ids"]):
            self.assertEqual(entry["id"], token)
            self.assertEqual(entry["top"][0]["id"], token)
            self.assertEqual(len(entry["top"]), 2)
            self.assertAlmostEqual(entry["top"][0]["logprob"], entry["logprob"], places=5)
        self.assertAlmostEqual(sum(e["logprob"] for e in again["logprobs"]), again["score"], places=4)

    def test_run_choices_beams_and_seeds(self):
        drawn = ("run", TINY, "hello", "--raw", "-n", 8, "--temperature", 1, "--ignore-eos", "--choices", 3)
        r = answer(*drawn, "--seed", 5)
        self.assertEqual(len(r["choices"]), 3)
        self.assertEqual(r["choices"][0]["token_ids"], r["token_ids"])
        self.assertNotEqual(r["choices"][0]["token_ids"], r["choices"][1]["token_ids"])
        self.assertEqual(r["choices"], answer(*drawn, "--seed", 5)["choices"])
        self.assertNotEqual(r["choices"], answer(*drawn, "--seed", 6)["choices"])
        beams = answer("run", TINY, "hello", "--raw", "-n", 4, "--beams", 3, "--choices", 2)
        self.assertGreaterEqual(beams["choices"][0]["score"], beams["choices"][1]["score"])

    def test_run_prompt_from_stdin(self):
        given = answer("run", TINY, "over the pipe", "--raw", "-n", 3, *GREEDY)
        piped = answer("run", TINY, "--raw", "-n", 3, *GREEDY, stdin="over the pipe")
        self.assertEqual(piped["prompt_token_ids"], list(b"over the pipe"))
        self.assertEqual(piped["token_ids"], given["token_ids"])
        # Through the template when there is one, and not raw.
        chat = answer("run", TINY, "hi", "-n", 1)
        self.assertEqual(chat["prompt_token_ids"], [258, *b"hi", 257, 259])

    def test_what_is_prompt_and_what_is_model(self):
        told = lambda *arguments, **more: answer("run", *arguments, "--raw", "-n", 1, **more)["prompt_token_ids"]
        self.assertEqual(told("-m", TINY, "hi"), list(b"hi"))
        self.assertEqual(told("hi", "-m", TINY), list(b"hi"))
        self.assertEqual(told(TINY, "-p", "hi"), list(b"hi"))
        self.assertEqual(told("-m", TINY, "--prompt", "hi"), list(b"hi"))
        # What is piped in stands below what was written.
        self.assertEqual(told(TINY, "Sum up:", stdin="a letter\n"), list(b"Sum up:\n\na letter\n"))
        self.assertEqual(told("-m", TINY, "Sum up:", stdin="  \n"), list(b"Sum up:"))
        self.assertEqual(answer("tokenize", "-m", TINY, "hi")["tokens"], list(b"hi"))
        self.assertEqual(answer("show", "-m", TINY)["architecture"], "llama")

    def test_an_answer_that_is_cut_says_so(self):
        done = quire("run", TINY, "x", "--raw", "-n", 3, "--ignore-eos")
        self.assertIn("stopped after 3 tokens; -n for more", done.stderr)
        half = quire("run", TINY, "x", "--raw", "-n", 1, *GREEDY, "--logit-bias", "195=100")  # the first byte of \u00e9
        self.assertEqual((half.stdout, half.stderr), ("\n", "stopped after 1 token; -n for more\n"))
        whole = quire("run", TINY, "x", "--raw", "-c", 64, "--ignore-eos")
        self.assertIn("stopped after 63 tokens: the context is full", whole.stderr)
        self.assertEqual(quire("run", TINY, "x", "--raw", "-n", 3, "--ignore-eos", "--json").stderr, "")

    def test_one_rule_says_how_answers_are_drawn(self):
        settings = answer("show", TINY)["sampling"]
        self.assertEqual((round(settings["temperature"], 3), round(settings["top_p"], 3), settings["from_model"]),
                         (0.7, 0.9, False))
        own = write_folder("own", temperature=0.25, top_k=7, do_sample=True)
        settings = answer("show", own)["sampling"]
        self.assertEqual((settings["temperature"], settings["top_k"], settings["top_p"], settings["from_model"]), (0.25, 7, 1, True))
        self.assertIn("temperature 0.25, top_k 7 (the model's)", quire("show", own).stdout)
        # In a GGUF file it is a key: one, and another so that both are 64 bytes and tensors stay where they were.
        gguf = bytearray(pathlib.Path(TINY).read_bytes())
        text = lambda s: struct.pack("<Q", len(s)) + s.encode()
        keys = text("general.sampling.temp") + struct.pack("<If", 6, 0.5) + text("filler.four") + struct.pack("<II", 4, 0)
        self.assertEqual(len(keys), 64)
        gguf[16:24] = struct.pack("<Q", struct.unpack("<Q", gguf[16:24])[0] + 2)
        gguf[24:24] = keys
        named = pathlib.Path(folder.name) / "named.gguf"
        named.write_bytes(gguf)
        self.assertIn("sampling: temperature 0.5 (the model's)", quire("show", named).stdout)
        # Drawn so where nothing is said, and as it is said otherwise.
        run = lambda *more: answer("run", own, "hello", "--raw", "-n", 12, "--ignore-eos", "--seed", 5, *more)["token_ids"]
        self.assertEqual(run(), run("--temperature", 0.25, "--top-k", 7))
        self.assertNotEqual(run(), run("--temperature", 1, "--top-k", 0))

    def test_beyond_the_models_context(self):
        self.assertIn("trained for 4096 tokens", quire("run", TINY, "x", "-n", 1, "-c", 100000).stderr)
        self.assertNotIn("trained", quire("run", TINY, "x", "-n", 1, "-c", 4096).stderr)

    def test_tokens_from_a_file(self):
        path = pathlib.Path(folder.name) / "ids.json"
        path.write_text("[104, 105]")
        self.assertEqual(answer("run", TINY, "--tokens", f"@{path}", "-n", 1)["prompt_token_ids"], [104, 105])
        self.assertEqual(answer("detokenize", TINY, "--tokens", f"@{path}"), {"content": "hi"})

    def test_bench(self):
        for what in ("prefill", "decode", "batch"):
            b = answer("bench", what, TINY, "--prompt", 16, "--depth", 40, "-n", 4, "--batch", 2, "--repeat", 2,
                       "--kv-format", "f16")
            self.assertEqual((b["bench"], b["repeat"], b["kv_format"]), (what, 2, "f16"))
            self.assertGreater(b["tokens_per_second"], 0)
            self.assertTrue(b["min"] <= b["tokens_per_second"] <= b["max"])
            for key in ("threads", "isa", "activations") + (("prompt",) if what == "prefill" else ("depth", "batch", "n")):
                self.assertIn(key, b)

    def test_bench_retain(self):
        # Two layers of SmolLM2's shape: shares of bytes are the model's, and reading 8,000 tokens takes a moment.
        config = pathlib.Path(folder.name) / "config.json"
        config.write_text(json.dumps({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 512,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000, "tie_word_embeddings": True}))
        b = answer("bench", "retain", "--random-weights", config, "-n", 2, "--repeat", 1, "--batch", 2)
        self.assertEqual((b["prompt"], b["policy"], b["kv_format"], b["whole_format"]),
                         (8000, "snapkv:20%", "hadamard-int4", "f16"))
        self.assertEqual(b["bytes_whole"], 8000 * 2 * 2 * 3 * 64 * 2)
        self.assertLess(b["bytes"], 0.065 * b["bytes_whole"])
        self.assertGreater(b["bytes"], 0.05 * b["bytes_whole"])
        self.assertGreater(b["evictable_bytes"], 0.25 * b["bytes_whole"])  # the prompt, for who begins like it
        self.assertEqual([d["sequences"] for d in b["decode"]], [1, 2])
        self.assertTrue(all(d["ratio"] > 0 for d in b["decode"]))
        self.assertTrue(0 < b["compress_share"] < 1)
        self.assertIn("tokens/s", quire("bench", "retain", TINY, "--prompt", 100, "-n", 1, "--repeat", 1, "--kv-format", "f16",
                                        "--kv-budget", "streaming:40").stdout)
        self.assertIn("nobody", quire("bench", "retain", TINY, "--kv-budget", "nobody:5", code=2).stderr)

    def test_show(self):
        s = answer("show", TINY)
        self.assertEqual((s["architecture"], s["layers"], s["kv_heads"], s["head_dim"]), ("llama", 3, 2, 16))
        self.assertEqual(s["tokenizer"], {"tokens": 260, "chat_template": True})
        self.assertEqual(s["kv"]["f16"]["bytes_per_token"], 2 * 3 * 2 * 16 * 2)
        self.assertEqual(s["kv"]["f32"]["bytes_per_token"], 2 * 3 * 2 * 16 * 4)
        groups = answer("show", GEMMA)["kv"]["f16"]["groups"]
        self.assertEqual({g["kind"]: len(g["layers"]) for g in groups}, {"full": 1, "window": 6})
        text = quire("show", TINY).stdout
        self.assertIn("llama", text)
        table = text[text.index("KV cache"):].splitlines()
        column = table[0].index("by layer group")
        for line in table[1:]:  # columns stand below their names
            self.assertRegex(line, rf"^.{{{column + 2}}}\d+ full layers")

    def test_plan(self):
        for model, per_token in [("llama-3.1-405b", 516096), ("llama-2-7b", 524288), ("llama-3-70b", 327680),
                                 ("mistral-7b", 131072), ("gpt-3-175b", 4718592), ("deepseek-v3", 70272)]:
            p = answer("plan", "--model", model, "--context", 8192, "--format", "f16")
            self.assertEqual(p["bytes_per_token"], per_token)
            self.assertEqual(p["bytes_per_sequence"], per_token * 8192)
            for key in ("model", "format", "context", "kv_pool_bytes", "blocks", "block_size", "max_concurrency", "max_tokens",
                        "with_sharing", "by_format", "groups", "formula", "assumptions", "warnings"):
                self.assertIn(key, p)
        p = answer("plan", "--model", TINY, "--context", 100)
        self.assertEqual(p["bytes_per_token"], 2 * 3 * 2 * 16 * 2)
        p = answer("plan", "--model", "llama-3.1-8b", "--memory", "80GiB", "--weights", "16GiB", "--context", 8192)
        self.assertEqual(p["max_concurrency"], 64)
        plain, packed = (answer("plan", "--model", "llama-3.1-8b", "--memory", "20GiB", "--weights", w, "--context", 8192)
                         for w in ("bf16", "packed"))
        self.assertLess(2 * plain["max_concurrency"], packed["max_concurrency"])
        self.assertEqual(len(quire("plan", "--list").stdout.splitlines()), 53)
        self.assertIn("4718592", quire("plan", "--list").stdout)
        for arguments in ("plan", "--list"), ("plan", "--model", "gpt-3-175b"), ("show", TINY), ("kv", "formats", LOSSY):
            self.assertNotRegex(quire(*arguments).stdout, r"\de[+-]\d")  # 4.71859e+06
        # More sequences than fit are not said to fit.
        small = ("plan", "-m", "qwen3-8b", "--memory", "24GiB", "--concurrency", 100, "-c", 32768, "-f", "hadamard-int4")
        p = answer(*small)
        self.assertEqual((p["concurrency"], p["max_concurrency"]), (100, 6))
        self.assertIn("100 sequences do not fit: 6 do", p["warnings"][0])
        said = quire(*small)
        self.assertIn("and 6 such sequences\n", said.stdout)
        self.assertIn("100 sequences do not fit", said.stderr)
        self.assertIn("where the first 6000 tokens are shared", quire("plan", "--model", "llama-3.1-8b", "--memory", "80GiB",
                                                                      "--context", 8192, "--shared-prefix", 6000).stdout)
        self.assertIn("2 x 80 layers x 8 KV heads", quire("plan", "--model", "llama-3-70b").stdout)

    def test_text(self):
        t = answer("tokenize", TINY, "h\u00e9<|eos|>", "--pieces")
        self.assertEqual(t["tokens"], list("h\u00e9<|eos|>".encode()))
        self.assertEqual(t["count"], len(t["tokens"]))
        self.assertEqual(len(t["pieces"]), len(t["tokens"]))
        self.assertEqual(answer("tokenize", TINY, "a<|eos|>", "--special")["tokens"], [97, 257])
        self.assertEqual(answer("tokenize", TINY, stdin="from stdin")["tokens"], list(b"from stdin"))
        self.assertEqual(quire("tokenize", TINY, "abc").stdout, "97,98,99\n")
        self.assertEqual(answer("detokenize", TINY, "--tokens", "104,195,169,257"), {"content": "h\u00e9"})
        self.assertEqual(answer("detokenize", TINY, "--tokens", "104,257", "--special"), {"content": "h<|eos|>"})
        conversation = json.dumps([{"role": "user", "content": "Hi"}])
        for p in (answer("template", TINY, "--messages", conversation), answer("template", TINY, stdin=conversation)):
            self.assertEqual(p, {"prompt": "<|user|>Hi<|eos|><|assistant|>"})
        self.assertEqual(quire("template", TINY, "--messages", conversation, "--no-generation-prompt").stdout,
                         "<|user|>Hi<|eos|>")

    def test_eval(self):
        e = answer("eval", TINY, "--tokens", "1,2,3,4,5,6", "--top", 4, "--per-token")
        self.assertEqual((e["tokens"], e["scored"]), (6, 5))
        self.assertAlmostEqual(e["perplexity"], math.exp(e["nll_per_token"]), places=6)
        self.assertAlmostEqual(sum(e["nll"][:5]) / 5, e["nll_per_token"], places=6)
        self.assertEqual(len(e["positions"]), 6)
        for position in e["positions"]:
            self.assertEqual(len(position["ids"]), 4)
            self.assertEqual(position["logprobs"], sorted(position["logprobs"], reverse=True))
        self.assertEqual(e["best"], [p["ids"][0] for p in e["positions"]])

    def test_eval_formats(self):
        text = pathlib.Path(folder.name) / "text.txt"
        text.write_text("Every block is encoded once, when it is full. " * 20)
        e = answer("eval", "formats", LOSSY, "--text-file", text, "--window", 200, "--windows", 2,
                   "--formats", "f16,int8,hadamard-int4+recent=64+sinks=4,int8/q4_0+layer=0")
        self.assertEqual([f["format"] for f in e["formats"]],
                         ["f16", "int8", "hadamard-int4 recent=64 sinks=4", "int8/q4_0 skip=0"])
        exact, eight, *_ = e["formats"]
        self.assertEqual(exact["kl_mean"], 0)
        self.assertGreater(eight["kl_mean"], 0)
        self.assertLess(eight["bytes_per_token"], exact["bytes_per_token"])

    def test_kv_formats(self):
        rows = {f["format"]: f for f in answer("kv", "formats", LOSSY)["formats"]}
        self.assertTrue(rows["f16"]["exact"])
        self.assertLess(rows["kivi-2"]["effective_bits"], 4)
        self.assertTrue(rows["q4_0"]["needs_allow_lossy"])
        self.assertFalse(rows["int8"]["needs_allow_lossy"])
        self.assertIn("hadamard-int4", quire("kv", "formats", LOSSY).stdout)

    def test_lossy_run_and_plan(self):
        s = answer("selftest", LOSSY, "--kv-format", "int8/hadamard-int4", "--kv-recent-exact", 40)
        self.assertTrue(s["ok"])
        p = answer("plan", LOSSY, "--format", "int8", "--context", 100, "--memory", "64MiB")
        formats = {f["format"]: f for f in p["by_format"]}
        self.assertLess(formats["hadamard-int2"]["bytes_per_token"], formats["int8"]["bytes_per_token"])
        refused = quire("run", LOSSY, "x", "--kv-format", "planned", code=2)
        self.assertIn("--allow-lossy", refused.stderr)

    def test_selftest(self):
        for model in (TINY, GEMMA):
            s = answer("selftest", model)
            self.assertTrue(s["ok"])
            self.assertGreater(len(s["checks"]), 10)
            said = "\n".join(c["check"] for c in s["checks"])
            for part in ("snapkv keeps the same", "from a snapshot", "quest reads the same", "beam search among"):
                self.assertIn(part, said)
            self.assertEqual("approximate reuse" in said, model == TINY)  # windows do not keep every row
            for check in s["checks"]:
                self.assertTrue(check["ok"] and check["tried"], check)
                self.assertGreater(check["compared"], 0)
        self.assertIn("bit for bit the same", quire("selftest", TINY).stdout)


@unittest.skipUnless(os.path.exists(MODEL), "no model")
class RealModel(unittest.TestCase):
    def test_answers(self):
        run = ("run", MODEL, "-n", 24, *GREEDY, "--activations", "int16")  # rounded to int8 it answers in French
        r = answer(*run, "What is the capital of France?")
        self.assertIn("Paris", r["text"])
        self.assertEqual(r["finish_reason"], "stop")
        self.assertIn("Paris", quire(*run, stdin="What is the capital of France?").stdout)

    def test_stop_string_spans_tokens(self):
        whole = answer("run", MODEL, "The quick brown fox", "--raw", "-n", 24, *GREEDY, "--ignore-eos")["text"]
        stop = whole[10:19]
        r = answer("run", MODEL, "The quick brown fox", "--raw", "-n", 24, *GREEDY, "--ignore-eos", "--stop", stop)
        self.assertEqual(r["text"], whole[: whole.index(stop)])
        self.assertEqual((r["finish_reason"], r["stop"]), ("stop", stop))

    def test_interrupt_ends_a_run_with_130(self):
        program = subprocess.Popen([QUIRE, "run", MODEL, "Count from one to ten thousand.", "-n", "4000", "--ignore-eos"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
        try:
            self.assertTrue(program.stdout.read(1))  # it speaks
            sent = time.monotonic()
            program.send_signal(signal.SIGINT)
            program.communicate(timeout=HURRY)
            self.assertEqual(program.returncode, 130)
            self.assertLess(time.monotonic() - sent, HURRY / 4)
        finally:
            program.kill()

    def test_interrupt_while_the_prompt_is_read(self):
        program = subprocess.Popen([QUIRE, "run", MODEL, "--raw", "-n", "1", "--chunk", "4", "word " * 7000],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
        try:
            status, catches = pathlib.Path(f"/proc/{program.pid}/status"), 0
            while program.poll() is None and not catches >> (signal.SIGINT - 1) & 1:  # it handles Ctrl-C now
                time.sleep(0.05)
                catches = int(status.read_text().split("SigCgt:")[1].split()[0], 16)
            time.sleep(1)
            program.send_signal(signal.SIGINT)
            _, stderr = program.communicate(timeout=HURRY)
            self.assertEqual(program.returncode, 130)
            self.assertIn(b"error: stopped", stderr)
        finally:
            program.kill()


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *arguments, home=None):
        self.seen = ""
        try:
            self.pid, self.master = pty.fork()
        except OSError as e:
            raise unittest.SkipTest(f"this system lends no terminal: {e}")
        if self.pid == 0:
            os.chdir(home or ".")
            os.execve(QUIRE, [QUIRE, *arguments], {**ENVIRONMENT, "TERM": "dumb", **({"HOME": home} if home else {})})

    def send(self, text):
        os.write(self.master, text.encode())

    def wait_for(self, pattern, seconds=2 * HURRY):
        """Reads until the pattern comes, and returns all up to its end."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.master], [], [], left)[0], f"no {pattern!r} in {self.seen!r}"
            try:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
            except OSError:  # it ended
                assert re.search(pattern, self.seen), f"ended without {pattern!r}: {self.seen!r}"
        text, self.seen = self.seen[: found.end()], self.seen[found.end():]
        return text

    def exit_code(self, seconds=HURRY):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        raise AssertionError("still running")

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.master)


class ChatCommands(unittest.TestCase):
    """What is typed besides messages; the tiny model has a template and nothing to say."""

    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.terminal = Terminal("chat", TINY, "-n", "4", "--ignore-eos", home=self.home.name)
        self.addCleanup(self.terminal.close)
        banner = self.terminal.wait_for(r"/help\r?\n")
        self.assertIn("temperature 0.7, top_p 0.9", banner)
        self.terminal.wait_for(r"> ")

    def ask(self, text, until):
        self.terminal.send(text + "\n")
        return self.terminal.wait_for(until)

    def test_an_answer_that_is_cut_says_so(self):
        self.assertIn("4 tokens at", self.ask("hello", r"stopped after 4 tokens; -n for more"))
        self.ask("/set max_tokens 2", r"> ")
        self.ask("again", r"stopped after 2 tokens; -n for more")

    def test_ctrl_c_leaves_a_message_of_several_lines(self):
        for beginning in '"""\nhalf a thought\n', "a line that goes on\\\n":
            self.terminal.send(beginning)
            self.terminal.wait_for(r"\. $")
            self.terminal.send("more of")
            self.terminal.wait_for("more of")
            self.terminal.send("\x03")
            self.terminal.wait_for(r"> $")
            self.ask("/kv", r"served from the cache")  # a command again, not a line of the message
            self.terminal.wait_for(r"> $")
        self.ask(f"/save {self.home.name}/none.json", "0 messages in")

    def test_files(self):
        for command in "/save", "/load":
            self.ask(command, f"error: {command} needs the name of a file")
        self.assertEqual(os.listdir(self.home.name), [])
        self.ask("hello", "stopped after 4 tokens")
        self.ask("/save ~/talk.json", r"2 messages in [^~]*talk\.json")
        self.assertEqual(os.listdir(self.home.name), ["talk.json"])
        self.ask("/new\n/load ~/talk.json", "2 messages")
        self.ask(f"/save {self.home.name}", "error: ")  # a folder: nothing is left beside it
        self.assertEqual(os.listdir(self.home.name), ["talk.json"])
        self.assertEqual([n for n in os.listdir(os.path.dirname(self.home.name)) if n.startswith(os.path.basename(self.home.name) + ".tmp")], [])

    def test_settings_are_numbers(self):
        self.ask("/set temperature hot", "error: /set temperature: 'hot' is not a number")
        self.ask("/set temperature", "error: /set temperature: '' is not a number")
        self.ask("/set temperature 0.5x", "'0.5x' is not a number")
        self.ask("/set top_k 1.5", "'1.5' is not a whole number")
        self.ask("/set colour 3", "there is no setting 'colour'")
        self.ask("/set temperature 0", r"> ")
        self.ask("hello", "stopped after 4 tokens")


class ChatSessions(unittest.TestCase):
    def test_a_conversation_goes_on_the_next_day(self):
        with tempfile.TemporaryDirectory() as home:
            def talk(name, *said):
                terminal = Terminal("chat", TINY, "--session", name, "--kv-dir", home + "/kv", "-n", "4", "--ignore-eos",
                                    "--temperature", "0", home=home)
                self.addCleanup(terminal.close)
                for text, until in said:
                    if text:
                        terminal.send(text + "\n")
                    terminal.wait_for(until)
                terminal.send("/quit\n")
                self.assertEqual(terminal.exit_code(), 0)
            talk("work", (None, r"> $"), ("/sessions", "no session has been saved"), ("hello", "stopped after 4"),
                 ("/fork other", "this is session other now"), ("again", "stopped after 4"),
                 ("/sessions", r"\* other\r?\n  work"), ("/fork work", "error: there is a session work"))
            talk("other", (None, "session other: 4 messages"), ("/undo", r"> $"))
            talk("other", (None, "session other: 2 messages"))
            talk("work", (None, "session work: 2 messages"), ("more", r"cached \d+/\d+"))
            quire("chat", TINY, "--session", "../x", "--kv-dir", home + "/kv", code=2)


@unittest.skipUnless(os.path.exists(MODEL), "no model")
class Chat(unittest.TestCase):
    def setUp(self):
        self.terminal = Terminal("chat", MODEL, "--temperature", "0", "-n", "400")
        self.addCleanup(self.terminal.close)
        self.terminal.wait_for(r"/help\r?\n")
        self.terminal.wait_for(r"> ")

    def ask(self, text, until=r"\d+ tokens at \d+/s[^\n]*\n"):
        self.terminal.send(text + "\n")
        return self.terminal.wait_for(until)

    def test_turns_share_their_beginning(self):
        first = self.ask("What is the capital of France? Answer briefly.")
        self.assertIn("Paris", first)
        self.assertRegex(first, r"cached 0/\d+")
        second = self.ask("And of Italy?")
        cached, prompt = map(int, re.search(r"cached (\d+)/(\d+)", second).groups())
        self.assertGreater(cached, prompt / 2)
        self.assertRegex(self.ask("/kv", r"served from the cache\r?\n"), r"\d+ blocks cached, [\d.]+ MB; \d+ of \d+")
        self.assertIn("Ctrl-C", self.ask("/help", r"/quit\r?\n"))
        self.terminal.send("/quit\n")
        self.assertEqual(self.terminal.exit_code(), 0)

    def test_interrupt_stops_the_answer_and_nothing_else(self):
        self.terminal.send("Count from one to five hundred, one number per line.\n")
        self.terminal.wait_for(r"\d[^\d]+\d")  # it answers
        self.terminal.send("\x03")
        stopped = self.terminal.wait_for(r"tokens at \d+/s[^\n]*\n")
        self.assertIn("stopped", stopped)
        self.assertLess(int(re.search(r"(\d+) tokens at", stopped).group(1)), 400)
        # At the prompt it ends nothing either, however often; it clears the line.
        self.terminal.wait_for(r"> ")
        for _ in range(3):
            self.terminal.send("\x03")
            self.terminal.wait_for(r"> ")
        self.terminal.send("/kv")
        self.terminal.wait_for("/kv")
        self.terminal.send("\x03")
        self.terminal.wait_for(r"> ")
        self.assertIn("Paris", self.ask("What is the capital of France? Answer briefly."))
        self.terminal.wait_for(r"> ")
        self.terminal.send("\x03")
        self.terminal.wait_for(r"> ")
        self.terminal.send("\x04")
        self.assertEqual(self.terminal.exit_code(), 0)

    def test_several_lines_are_one_message(self):
        self.terminal.send('"""\nWhat is the capital\nof France?\n"""\n')
        self.assertIn("Paris", self.terminal.wait_for(r"tokens at \d+/s[^\n]*\n"))
        path = f"{folder.name}/saved.json"
        self.ask("/set temperature -5", "error: temperature")
        self.ask(f"/save {path}\n/kv", r"served from the cache")
        saved = json.loads(pathlib.Path(path).read_text())
        self.assertEqual(saved["messages"][0], {"role": "user", "content": "What is the capital\nof France?"})
        self.assertEqual([m["role"] for m in saved["messages"]], ["user", "assistant"])
        self.ask(f"/new\n/load {path}", "2 messages")
        self.ask("Thank you.")  # what was refused has not been set
        self.terminal.send("/quit\n")
        self.assertEqual(self.terminal.exit_code(), 0)


if __name__ == "__main__":
    result = unittest.main(argv=[sys.argv[0], "-v"], exit=False).result
    sys.exit(0 if result.wasSuccessful() and not result.skipped else 77 if result.wasSuccessful() else 1)
