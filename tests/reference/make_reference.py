"""Makes the reference data of one model: transformers in fp32 on the weights dequantized from the GGUF file.

    scripts/python --long tests/reference/make_reference.py smollm2 MODEL.gguf [--logits FOLDER]
    scripts/python --long tests/reference/make_reference.py gemma MODEL.gguf

Writes tests/reference/NAME.npz and NAME.json; README.md beside this file says what is in them. --logits also keeps the
whole f32 logits of the evaluation contexts (one .npy each, 0.4 to 2.1 GB), for peer_llama_cpp.py and check.py --whole;
with --logits-only nothing else is made.
"""
import argparse
import hashlib
import json
import os
import pathlib

import numpy as np
import torch
import transformers

import measure
import prompts

HERE = pathlib.Path(__file__).parent
LICENCES = pathlib.Path("/usr/share/common-licenses")
# Debian's licence texts, joined in this order, are the evaluation text; GPL-3 alone is the long one.
TEXTS = ["Apache-2.0", "Artistic", "CC0-1.0", "GFDL-1.3", "GPL-2", "LGPL-2.1", "MPL-1.1", "MPL-2.0"]
SHA256 = {
    "evaluation": "285800a77ac18d57ca57caa615fe42461b9b30c9f7b025ae9301a6c14d258c23",
    "long": "3972dc9744f6499f0f9b2dbf76696f2ae7ad8af9b23dde66d6af86c9dfb36986",
}
CONTEXT = 2048  # tokens of one evaluation context, with its start token
CONTEXTS = {"smollm2": 8, "gemma": 2}
EVERY = 16  # of positions 0, 16, 32, ... of a context the log-probabilities are kept
TOP = 128
GREEDY = 64
EXACT_PROMPTS = [0, 2, 15, 24, 28]  # whose last logits are kept as they are, for F32 weights
EXACT_TOP = 64
EXACT_STRIDE = 509  # besides the top ones, every so many-th token's logit, so that low ones are compared too


def load(path):
    folder, file = os.path.split(os.path.abspath(path))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    quantized = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    weights = quantized.state_dict()
    odd = {name for name, value in weights.items() if value.dtype != torch.float32}
    if odd:
        raise SystemExit(f"error: not fp32 after loading: {sorted(odd)[:3]}")
    config = quantized.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    model.load_state_dict(weights)
    return tokenizer, model.eval()


def text_of(kind, names):
    text = "".join((LICENCES / name).read_text() for name in names)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest != SHA256[kind]:
        raise SystemExit(f"error: the {kind} text has SHA-256 {digest}, not {SHA256[kind]}\n"
                         "  hint: these are the texts of Debian 12's base-files")
    return text


def forward(model, ids, chunk=256):
    """Yields (first position, logits) chunk by chunk, so that a long context and a large vocabulary fit in memory."""
    past = None
    for start in range(0, len(ids), chunk):
        out = model(torch.tensor([ids[start:start + chunk]]), past_key_values=past, use_cache=True)
        past = out.past_key_values
        yield start, out.logits[0].float()


def evaluate(model, ids, every=None, keep=None):
    """Arrays over the positions of one context: nll of the token that follows, the best token, and for each every-th
    position the TOP log-probabilities with the logarithm of what remains. keep: file for the whole logits."""
    parts = {"nll": [], "best": [], "top_ids": [], "top_logprobs": [], "rest_logprob": []}
    whole = None
    for start, logits in forward(model, ids):
        if keep:
            if whole is None:
                whole = np.lib.format.open_memmap(keep, "w+", np.float32, (len(ids), logits.shape[1]))
            whole[start:start + len(logits)] = logits.numpy()
        logprobs = torch.log_softmax(logits.double(), -1)
        following = torch.tensor(ids[start + 1:start + 1 + len(logits)])
        parts["nll"].append(-logprobs[:len(following)].gather(1, following[:, None])[:, 0].numpy().astype(np.float32))
        parts["best"].append(logits.argmax(-1).numpy().astype(np.uint32))
        if every:
            kept = torch.topk(logprobs[-start % every::every], TOP)
            parts["top_ids"].append(kept.indices.numpy().astype(np.uint32))
            parts["top_logprobs"].append(kept.values.numpy().astype(np.float16))
            parts["rest_logprob"].append(torch.log1p(-kept.values.exp().sum(-1)).numpy().astype(np.float32))
    return {name: np.concatenate(part) for name, part in parts.items() if part}


def greedy(model, prompts, pad):
    """Free-running output of prompts side by side, with the runner-up and its distance at each step."""
    longest = max(map(len, prompts))
    feed = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    past, out = None, [{"token_ids": [], "second": [], "margin": []} for _ in prompts]
    for _ in range(GREEDY):
        step = model(feed, attention_mask=mask, position_ids=positions, past_key_values=past, use_cache=True, logits_to_keep=1)
        past = step.past_key_values
        top = torch.topk(step.logits[:, -1].float(), 2)
        for answer, ids, values in zip(out, top.indices.tolist(), top.values.tolist()):
            answer["token_ids"].append(ids[0])
            answer["second"].append(ids[1])
            answer["margin"].append(round(values[0] - values[1], 4))
        feed, positions = top.indices[:, :1], positions[:, -1:] + 1
        mask = torch.cat([mask, torch.ones_like(feed)], -1)
    return out


def exact(model, ids):
    row = model(torch.tensor([ids])).logits[0, -1].float()
    top = torch.topk(row, EXACT_TOP).indices
    picked = torch.cat([top, torch.arange(0, len(row), EXACT_STRIDE)])
    return {"ids": picked.tolist(), "logits": [round(float(v), 6) for v in row[picked]]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CONTEXTS)
    parser.add_argument("model", nargs="?", help="the one in the cache folder when left out")
    parser.add_argument("--logits")
    parser.add_argument("--logits-only", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    args.model = args.model or measure.find_model(args.name)
    tokenizer, model = load(args.model)
    start = [tokenizer.bos_token_id] if args.name == "gemma" else []

    def encode(text):
        return tokenizer(text, add_special_tokens=False).input_ids

    evaluation = encode(text_of("evaluation", TEXTS))
    fresh = CONTEXT - len(start)
    contexts = [start + evaluation[i * fresh:(i + 1) * fresh] for i in range(CONTEXTS[args.name])]
    arrays = {"contexts": np.array(contexts, np.uint32), "long": np.array(start + encode(text_of("long", ["GPL-3"])), np.uint32)}
    parts = []
    for number, context in enumerate(contexts):
        if args.logits:
            os.makedirs(args.logits, exist_ok=True)
        keep = args.logits and f"{args.logits}/{args.name}-{number}.npy"
        parts.append(evaluate(model, context, EVERY, keep))
        print(f"context {number}: perplexity {np.exp(parts[-1]['nll'].mean()):.4f}", flush=True)
    if args.logits_only:
        return
    arrays |= {name: np.array([part[name] for part in parts]) for name in parts[0]}
    arrays["long_nll"] = evaluate(model, arrays["long"].tolist())["nll"]
    print(f"long text, {len(arrays['long_nll'])} tokens: perplexity {np.exp(arrays['long_nll'].mean()):.4f}", flush=True)

    items = [(text, start + encode(text)) for text in prompts.CONTINUE]
    for text in prompts.CHAT:
        if tokenizer.chat_template:
            text = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
            text = text.removeprefix(tokenizer.bos_token or "") if start else text
        items.append((text, start + encode(text)))
    short = len(items)
    for first, count in prompts.EXCERPTS:
        items.append((f"evaluation text [{first}:{first + count}]", start + evaluation[first:first + count]))
    ids = [prompt_ids for _, prompt_ids in items]
    outputs = greedy(model, ids[:short], tokenizer.eos_token_id) + greedy(model, ids[short:], tokenizer.eos_token_id)
    answers = [{"prompt": text, "prompt_ids": prompt_ids, **output} for (text, prompt_ids), output in zip(items, outputs)]
    for number in EXACT_PROMPTS:
        answers[number]["exact"] = exact(model, ids[number])
    for number, answer in enumerate(answers):
        print(f"prompt {number}: {tokenizer.decode(answer['token_ids'])[:60]!r}", flush=True)

    np.savez_compressed(HERE / f"{args.name}.npz", **arrays)
    with open(args.model, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    described = {
        "model_sha256": digest,
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, fp32",
        "every": EVERY,
        "perplexity": {"contexts": float(np.exp(arrays["nll"].mean(dtype=np.float64))), "long": float(np.exp(arrays["long_nll"].mean(dtype=np.float64)))},
        "answers": answers,
    }
    (HERE / f"{args.name}.json").write_text(compact(described))


def compact(value):
    """JSON with one line per answer, so that a change shows as one."""
    answers = value.pop("answers")
    head = json.dumps(value, indent=1, ensure_ascii=False)[:-2]
    return head + ',\n "answers": [\n' + ",\n".join("  " + json.dumps(a, ensure_ascii=False) for a in answers) + "\n ]\n}\n"


if __name__ == "__main__":
    main()
