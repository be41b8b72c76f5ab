"""What transformers computes with the tiny models of src/model/tiny_cases.h, kept in logits.json for tiny_reference_test.

    build/release/tests/write_tiny FOLDER && python tests/tiny/make_logits.py FOLDER

Needs torch, transformers, gguf and numpy. Weights are read and dequantized by the gguf package, so that both readers and
both forward passes are somebody else's. A model's bytes depend on nothing but its options; run this again when a case or
the writer changes.
"""
import json
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "models"))
from make_tiny import deinterleave, gguf_name  # noqa: E402

POSITIONS = [0, 33, 64, 95]
PROMPT = np.random.default_rng(11).integers(0, 256, 96).tolist()
GREEDY_TOKENS = 24
CONFIGS = {"llama": transformers.LlamaConfig, "gemma3": transformers.Gemma3TextConfig,
           "qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}


def metadata(reader):
    arch = reader.fields["general.architecture"].contents()
    return arch, {k.removeprefix(arch + "."): f.contents() for k, f in reader.fields.items() if k.startswith(arch + ".")}


def make_config(arch, meta, tied):
    linear = meta.get("rope.scaling.factor", 1.0)
    rope = {"rope_type": "default", "rope_theta": meta["rope.freq_base"]}
    if linear != 1:
        rope |= {"rope_type": "linear", "factor": linear}
    window = meta.get("attention.sliding_window")
    kind, own = CONFIGS[arch], {}
    if arch == "gemma3":
        own = dict(sliding_window=window, query_pre_attn_scalar=meta["attention.key_length"])
        rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    elif window:
        kind, own = transformers.MistralConfig, dict(sliding_window=window)
    return kind(vocab_size=260, hidden_size=meta["embedding_length"], intermediate_size=meta["feed_forward_length"],
                num_hidden_layers=meta["block_count"], num_attention_heads=meta["attention.head_count"],
                num_key_value_heads=meta["attention.head_count_kv"], head_dim=meta["attention.key_length"],
                max_position_embeddings=meta["context_length"], rms_norm_eps=meta["attention.layer_norm_rms_epsilon"],
                tie_word_embeddings=tied, rope_parameters=rope, attn_implementation="eager", dtype="float32", **own)


def load(path):
    reader = gguf.GGUFReader(path)
    arch, meta = metadata(reader)
    tensors = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    config = make_config(arch, meta, "output.weight" not in tensors)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    used = {"rope_freqs.weight"}
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            name = gguf_name(key, arch == "gemma3")
            used.add(name)
            values = tensors[name].reshape(parameter.shape)
            part = next((p for p in heads if p in key), None)
            if arch == "llama" and part:
                values = deinterleave(values, heads[part])
            if arch == "gemma3" and "norm" in key:
                values = values - np.float32(1)
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))
        if "rope_freqs.weight" in tensors:
            model.model.rotary_emb.inv_freq /= torch.from_numpy(tensors["rope_freqs.weight"])
    assert set(tensors) <= used, set(tensors) - used
    return model


def main():
    torch.set_num_threads(1)
    folder, cases = pathlib.Path(sys.argv[1]), {}
    for path in sorted(set(folder.glob("*.gguf")) - {folder / "broken.gguf"}):
        model, tokens, margins = load(path), list(PROMPT), []
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0].numpy()
            for _ in range(GREEDY_TOKENS):  # without a cache: each token from the whole text
                last = model(torch.tensor([tokens])).logits[0, -1]
                best = torch.topk(last, 2).values
                margins.append(float(best[0] - best[1]))
                tokens.append(int(last.argmax()))
        cases[path.stem] = {"logits": [[float(f"{x:.6g}") for x in logits[p]] for p in POSITIONS],
                            "greedy": tokens[len(PROMPT):], "least_margin": float(f"{min(margins):.3g}")}
        print(path.stem, "margin", min(margins), "scale", np.abs(logits).max(), flush=True)
    rows = ",\n".join(f'"{name}": {json.dumps(case, separators=(",", ":"))}' for name, case in cases.items())
    (pathlib.Path(__file__).parent / "logits.json").write_text(
        f'{{"prompt": {json.dumps(PROMPT)},\n"positions": {POSITIONS},\n"cases": {{\n{rows}\n}}}}\n')


if __name__ == "__main__":
    main()
