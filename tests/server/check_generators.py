"""Other people's load generators run against the server unchanged, and every request of theirs succeeds.

    scripts/python --generators tests/server/check_generators.py QUIRE MODEL

aiperf comes with the environment. guidellm and `vllm bench serve` are used where QUIRE_GUIDELLM and QUIRE_VLLM name their
programs, or the PATH has them; what is not there is named.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import gguf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from serving import Server, find_model

REQUESTS, CLIENTS, TOKENS_IN, TOKENS_OUT = 12, 4, 64, 12
MODEL = find_model(sys.argv[2])
if MODEL is None:
    print("skipped: there is no model")
    sys.exit(77)


def write_tokenizer(folder):
    """The model's tokenizer as a Hugging Face folder: generators count and cut prompts with it."""
    fields = gguf.GGUFReader(MODEL).fields
    strings = lambda name: [bytes(fields[name].parts[i]).decode() for i in fields[name].data]
    tokens = strings("tokenizer.ggml.tokens")
    bpe = models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in strings("tokenizer.ggml.merges")])
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[1], "eos_token": tokens[2]}))


def run(program, *arguments, folder):
    done = subprocess.run([program, *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, f"{program} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"


def aiperf(program, server, tokenizer, folder):
    run(program, "profile", "--model", "m", "--url", server.url, "--endpoint-type", "chat", "--streaming", "--tokenizer", tokenizer,
        "--request-count", REQUESTS, "--concurrency", CLIENTS, "--prompt-input-tokens-mean", TOKENS_IN,
        "--prompt-output-tokens-mean", TOKENS_OUT, "--extra-inputs", "ignore_eos:true", "--ui", "none",
        "--output-artifact-dir", folder, folder=folder)
    told = json.loads((folder / "profile_export_aiperf.json").read_text())
    assert told["request_count"]["avg"] == REQUESTS and not told["error_summary"], told
    assert "kv_blocks" in json.loads((folder / "server_metrics_export.json").read_text())["metrics"], "it reads /metrics, too"


def guidellm(program, server, tokenizer, folder):
    run(program, "benchmark", "--target", server.url, "--model", "m", "--processor", tokenizer, "--rate-type", "concurrent",
        "--rate", CLIENTS, "--max-requests", REQUESTS, "--data", f"prompt_tokens={TOKENS_IN},output_tokens={TOKENS_OUT}",
        "--output-path", folder / "told.json", folder=folder)
    totals = json.loads((folder / "told.json").read_text())["benchmarks"][0]["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (REQUESTS, 0), totals


def vllm(program, server, tokenizer, folder):
    run(program, "bench", "serve", "--backend", "openai-chat", "--base-url", server.url, "--endpoint", "/v1/chat/completions",
        "--model", "m", "--tokenizer", tokenizer, "--dataset-name", "random", "--random-input-len", TOKENS_IN, "--random-output-len",
        TOKENS_OUT, "--num-prompts", REQUESTS, "--max-concurrency", CLIENTS, "--ignore-eos", "--save-result", "--result-dir", folder,
        "--result-filename", "told.json", folder=folder)
    told = json.loads((folder / "told.json").read_text())
    assert told["completed"] == REQUESTS and told["total_output_tokens"] == REQUESTS * TOKENS_OUT, told


with tempfile.TemporaryDirectory() as root, Server(sys.argv[1], MODEL) as server:
    root = pathlib.Path(root)
    tokenizer = root / "tokenizer"
    tokenizer.mkdir()
    write_tokenizer(tokenizer)
    for generator in (aiperf, guidellm, vllm):
        name = generator.__name__
        own = pathlib.Path(sys.executable).parent / name
        program = os.environ.get(f"QUIRE_{name.upper()}") or (str(own) if own.exists() else shutil.which(name))
        if program is None:
            print(f"{name}: not here (QUIRE_{name.upper()} would name it)", flush=True)
            continue
        folder = root / name
        folder.mkdir()
        generator(program, server, tokenizer, folder)
        print(f"{name}: {REQUESTS} requests, all answered", flush=True)
