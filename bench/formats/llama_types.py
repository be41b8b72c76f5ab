"""llama.cpp's own KV types on the text that `quire eval formats` reads, and their decoding speed at a depth.

    quire tokenize MODEL.gguf --json < TEXT | PEERS/llama.cpp/bin/python bench/formats/llama_types.py MODEL.gguf --tokens - --types q8_0,q4_0

Prints one JSON object: per type KL(f16 || type) in nats per token, mean and 99th percentile, perplexity, and tokens per
second at the depth. Everything is llama.cpp's: its f16 cache is the reference, read in the same windows.
"""
import argparse
import json
import pathlib
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "peers"))
import llama_cpp_engine  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--tokens", required=True, help="a JSON array of token numbers, or - for standard input")
parser.add_argument("--types", default="q8_0,q4_0")
parser.add_argument("--window", type=int, default=2048)
parser.add_argument("--windows", type=int, default=4)
parser.add_argument("--depth", type=int, default=7000, help="0: no speed")
parser.add_argument("-n", type=int, default=24)
parser.add_argument("--repeat", type=int, default=3)
parser.add_argument("--threads", type=int, default=2)
args = parser.parse_args()

CHUNK = 256
text = json.load(sys.stdin if args.tokens == "-" else open(args.tokens))
tokens = text["tokens"] if isinstance(text, dict) else text
types = args.types.split(",")


def log_softmax(x):
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def engine(kv_type, context):
    return llama_cpp_engine.Engine(args.model, context, threads=args.threads, kv_type=kv_type)


def quality():
    engines = {t: engine(t, args.window) for t in ["f16", *types] if args.windows}
    kl, nll = {t: [] for t in types}, {t: 0.0 for t in engines}
    positions = 0
    for w in range(args.windows):
        part = tokens[w * args.window:(w + 1) * args.window]
        for e in engines.values():
            e.clear()
        for at in range(0, args.window, CHUNK):
            count = min(CHUNK, args.window - at)
            scored = min(count, args.window - 1 - at)
            following = np.array(part[at + 1:at + 1 + scored])
            rows = {}
            for t, e in engines.items():
                for _, logits in e.feed(part[at:at + count], 0, at, want="all"):
                    rows[t] = log_softmax(logits[:scored])
            for t in engines:
                nll[t] -= rows[t][np.arange(scored), following].sum()
            for t in types:
                kl[t] += list((np.exp(rows["f16"]) * (rows["f16"] - rows[t])).sum(axis=1))
            positions += scored
    result = {t: {"perplexity": float(np.exp(nll[t] / positions))} for t in engines}
    for t in types:
        result[t] |= {"kl_mean": float(np.mean(kl[t])), "kl_99": float(np.quantile(kl[t], 0.99)),
                      "perplexity_change": result[t]["perplexity"] / result["f16"]["perplexity"] - 1}
    return result


def speed(kv_type):
    e = engine(kv_type, args.depth + args.n + 8)
    e.prefill(tokens[:args.depth])
    rates = []
    for repeat in range(args.repeat + 1):
        steps = 4 if repeat == 0 else args.n  # the first warms up
        start = time.perf_counter()
        for i in range(steps):
            e.prefill([100 + i], 0, args.depth + i)
        if repeat:
            rates.append(steps / (time.perf_counter() - start))
        e.forget_from(args.depth)
    return sorted(rates)[len(rates) // 2]


result = quality() if args.windows else {t: {} for t in ["f16", *types]}
if args.depth:
    for t in result:
        result[t]["tokens_per_second"] = speed(t)
        print(t, result[t], file=sys.stderr, flush=True)  # a long way to go
print(json.dumps({"engine": llama_cpp_engine.VERSION, "model": args.model, "window": args.window, "windows": args.windows,
                  "depth": args.depth, "threads": args.threads, "types": result}, indent=1))
