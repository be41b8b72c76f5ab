"""Makes what src/kv/retain/kvpress_test.cc compares with: the slots that NVIDIA's kvpress keeps of real keys and values.

    scripts/python --kvpress tests/reference/make_kvpress.py MODEL.gguf [--tokens 96] [--layers 0 10 20 29 | --every-layer]
        [--out tests/reference/kvpress]

transformers runs the model once over the beginning of Debian's Apache-2.0 licence; queries before rotation, keys after it and values are
rounded to 8 bits with a power of two per row, so that a few layers fit into a small file, and the presses are given the
rounded numbers. Writes OUT.bin (each row: exponent, then codes) and OUT.json (shape, and per press, ratio and lane the kept
slots as a bit mask in hexadecimal, slot 0 first).
"""
import argparse
import json
import pathlib
import types

import kvpress
import numpy as np
import torch

import make_reference

RATIOS = [0.25, 0.5, 0.75]  # of slots removed
WINDOW = 16
LAG = 16


def rounded(x):
    """8-bit codes and exponents per row, and the numbers they stand for."""
    x = x.detach().numpy().astype(np.float64)
    exponent = np.ceil(np.log2(np.abs(x).max(-1) / 127)).astype(np.int8)
    codes = np.round(x / np.exp2(exponent.astype(np.float64))[..., None]).astype(np.int8)
    numbers = (codes * np.exp2(exponent.astype(np.float64))[..., None]).astype(np.float32)
    return np.concatenate([exponent[..., None], codes], -1), torch.from_numpy(numbers)


def capture(model, ids, layers):
    """Per layer queries before rotation [head, token, dim], keys after it, values."""
    queries = {}
    hooks = [model.model.layers[i].self_attn.q_proj.register_forward_hook(
        lambda module, inputs, output, i=i: queries.__setitem__(i, output[0])) for i in layers]
    with torch.no_grad():
        cache = model(torch.tensor([ids]), use_cache=True).past_key_values
    for hook in hooks:
        hook.remove()
    dim = model.config.head_dim
    return [(queries[i].view(len(ids), -1, dim).transpose(0, 1), cache.layers[i].keys[0], cache.layers[i].values[0])
            for i in layers]


def presses(ratio):
    snap = kvpress.SnapKVPress(ratio, window_size=WINDOW, kernel_size=5)
    return {
        "snapkv": snap,
        "ada-snapkv": kvpress.AdaKVPress(snap),
        "expected": kvpress.ExpectedAttentionPress(ratio, epsilon=0.02),
        "knorm": kvpress.KnormPress(ratio),
        "streaming": kvpress.StreamingLLMPress(ratio),
        "keydiff": kvpress.KeyDiffPress(ratio),
        "tova": kvpress.TOVAPress(ratio),
        "lagkv": kvpress.LagKVPress(ratio, n_sink=4, lag_size=LAG),
        "cur": kvpress.CURPress(ratio, num_sinks=4),
        "observed": kvpress.ObservedAttentionPress(ratio),
    }


def attention_of(module, queries, keys, cos, sin):
    """The whole map, for the one press that wants it."""
    half = queries.shape[-1] // 2
    turned = queries * cos + torch.cat([-queries[..., half:], queries[..., :half]], -1) * sin
    keys = keys.repeat_interleave(len(queries) // len(keys), 0)
    scores = turned @ keys.transpose(1, 2) / module.head_dim ** 0.5
    hidden = torch.triu(torch.ones_like(scores[0], dtype=torch.bool), 1)
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)


def kept_by(press, name, module, queries, keys, values, position_embeddings):
    """Sets of slots per KV head, from what the press leaves of the keys (or masks)."""
    count = keys.shape[1]
    hidden = queries.transpose(0, 1).reshape(1, count, -1)
    attention = None
    if name == "observed":
        attention = attention_of(module, queries, keys, *(x[0] for x in position_embeddings))[None]
    left, _ = press.compress(module, hidden, keys[None], values[None], attention,
                             {"position_embeddings": position_embeddings})
    if left.shape[2] == count:
        sets = [set(range(count)) for _ in keys]
        for head, slot in zip(*(x.tolist() for x in module.masked_key_indices[1:])):
            sets[head].discard(slot)
        return sets
    return [{int(torch.where((keys[h] == row).all(-1))[0][0]) for row in left[0, h]} for h in range(len(keys))]


def mask(slots, count):
    bits = np.zeros(-(-count // 8) * 8, np.uint8)
    bits[sorted(slots)] = 1
    return np.packbits(bits, bitorder="little").tobytes().hex()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--layers", type=int, nargs="*", default=[0, 10, 20, 29])
    parser.add_argument("--every-layer", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=make_reference.HERE / "kvpress")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer, model = make_reference.load(args.model)
    text = (make_reference.LICENCES / "Apache-2.0").read_text()
    ids = tokenizer(text)["input_ids"][:args.tokens]
    config = model.config
    if args.every_layer:
        args.layers = list(range(config.num_hidden_layers))
    rotary = model.model.rotary_emb
    positions = rotary(torch.zeros(1, 1, config.head_dim), torch.arange(len(ids))[None])

    keep = {str(ratio): {} for ratio in RATIOS}
    with open(args.out.with_suffix(".bin"), "wb") as file:
        for queries, keys, values in capture(model, ids, args.layers):
            numbers = []
            for x in (queries, keys, values):
                codes, x = rounded(x)
                file.write(codes.tobytes())
                numbers.append(x)
            settings = types.SimpleNamespace(num_attention_heads=len(queries), num_key_value_heads=len(keys),
                                             _attn_implementation="sdpa")
            module = types.SimpleNamespace(config=settings, head_dim=config.head_dim, q_proj=torch.nn.Identity(),
                                           rotary_emb=rotary)
            for ratio in RATIOS:
                for name, press in presses(ratio).items():
                    sets = kept_by(press, name, module, *numbers, positions)
                    keep[str(ratio)].setdefault(name, []).extend(mask(s, len(ids)) for s in sets)
    shape = {"tokens": len(ids), "layers": len(args.layers), "query_heads": config.num_attention_heads,
             "kv_heads": config.num_key_value_heads, "dim": config.head_dim,
             "rope_theta": float(getattr(config, "rope_theta", None) or config.rope_parameters["rope_theta"]),
             "window": WINDOW, "lag": LAG, "kvpress": "0.5.5"}
    args.out.with_suffix(".json").write_text(json.dumps({"shape": shape, "keep": keep}, indent=1) + "\n")


if __name__ == "__main__":
    main()
