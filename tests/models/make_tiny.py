"""Writes tiny random models of every architecture, and what transformers computes with them, for tests of the forward pass.

    python tests/models/make_tiny.py FOLDER

Needs torch, transformers, tokenizers, gguf, safetensors and numpy. For each model M of the list below the folder gets
    M/                     a Hugging Face folder (config.json, model.safetensors in F32, tokenizer.json ...)
    M-shards/              the same weights rounded to BF16, in two shards with an index
    M-TYPE.gguf            GGUF in F32, F16 and the quantized types that the gguf package can write
    M.json and so on       {"prompt": [96 ids], "logits": [[...]]: f32 logits after each position of the list "positions"}
The logits of a quantized file are those of transformers with that file's dequantized weights, so every file has its own oracle.
Everything is seeded: the same versions of the packages give the same bytes.
"""
import json
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Quant
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PROMPT_TOKENS = 96  # three windows long
POSITIONS = [0, 1, 31, 32, 33, 63, 64, 95]
SPECIALS = ["<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>"]
QUANTS = [Quant.F32, Quant.F16, Quant.BF16, Quant.Q8_0, Quant.Q4_0, Quant.Q4_1, Quant.Q5_0, Quant.Q5_1]

COMMON = dict(vocab_size=288, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=512, bos_token_id=256, eos_token_id=257, pad_token_id=257,
              attn_implementation="eager", dtype="float32")
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

# name -> (configuration class, what differs from COMMON)
MODELS = {
    "llama": (transformers.LlamaConfig, dict(tie_word_embeddings=True)),
    "llama-rope3": (transformers.LlamaConfig, dict(head_dim=32, rope_parameters=LLAMA3_ROPE)),
    "llama-linear": (transformers.LlamaConfig, dict(
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0})),
    "mistral": (transformers.MistralConfig, dict(sliding_window=32, head_dim=16)),
    "gemma3": (transformers.Gemma3TextConfig, dict(
        num_hidden_layers=7, head_dim=32, sliding_window=32, query_pre_attn_scalar=32, tie_word_embeddings=True,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})),
    "qwen2": (transformers.Qwen2Config, dict()),
    "qwen3": (transformers.Qwen3Config, dict(head_dim=32, tie_word_embeddings=True)),
}


def byte_alphabet():
    """The printable stand-ins of byte-level BPE, by byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_ins = {b: chr(b) for b in kept}
    for n, b in enumerate(b for b in range(256) if b not in stand_ins):
        stand_ins[b] = chr(256 + n)
    return [stand_ins[b] for b in range(256)]


def tokens_and_merges():
    """256 bytes, 4 specials, 28 merges: 288 tokens, as every model here has."""
    alphabet = byte_alphabet()
    space = alphabet[32]
    pairs = ["t h", "th e", "i n", "a n", "e r", "o n", "r e", "an d", f"{space} the", f"{space} a", "o u", "e n",
             "o r", "in g", "i s", "a t", "e s", "a l", f"{space} w", f"{space} o", "i t", "l l", "o f", "t o",
             f"{space} in", "l e", "e d", f"{space} and"]
    tokens = alphabet + SPECIALS + ["".join(p.split(" ")) for p in pairs]
    assert len(tokens) == len(set(tokens)) == COMMON["vocab_size"]
    return tokens, pairs


def save_tokenizer(folder):
    tokens, merges = tokens_and_merges()
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)},
                                     merges=[tuple(m.split(" ")) for m in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": SPECIALS[0], "eos_token": SPECIALS[1], "add_bos_token": False,
         "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2))


def make_model(name):
    kind, own = MODELS[name]
    config = kind(**{**COMMON, **own})
    torch.manual_seed(sum(name.encode()))
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "norm" in key:  # spread around what means "no change" in this architecture
                p.copy_(torch.randn_like(p) * 0.2 + (0.0 if name == "gemma3" else 1.0))
            else:  # large enough that positions and windows show in the logits
                p.copy_(torch.randn_like(p) * (1.5 / p.shape[-1] ** 0.5 if p.dim() == 2 else 0.3))
    return config, model


def write_logits(model, path):
    prompt = np.random.default_rng(7).integers(0, 256, PROMPT_TOKENS).tolist()
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0].float().numpy()
    rows = [[float(f"{x:.7g}") for x in logits[p]] for p in POSITIONS]
    path.write_text(json.dumps({"prompt": prompt, "positions": POSITIONS, "logits": rows}))


def save_folder(model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    save_tokenizer(folder)


def save_bf16_shards(model, folder, tied):
    """Two shards and an index, written by hand: save_pretrained makes shards of a megabyte and more."""
    state = {k: v.to(torch.bfloat16) for k, v in model.state_dict().items() if not (tied and k == "lm_head.weight")}
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    save_tokenizer(folder)
    names = sorted(state)
    weight_map = {}
    for i, part in enumerate((names[: len(names) // 2], names[len(names) // 2:]), 1):
        file = f"model-{i:05}-of-00002.safetensors"
        save_file({k: state[k].contiguous() for k in part}, folder / file, metadata={"format": "pt"})
        weight_map.update({k: file for k in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": sum(v.numel() * 2 for v in state.values())}, "weight_map": weight_map}, indent=2))
    with torch.no_grad():
        for k, v in model.state_dict().items():
            v.copy_(v.to(torch.bfloat16).float())


RENAMES = [  # Hugging Face's parts of a name and GGUF's; the first that fits ends the search
    ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output"),
    ("input_layernorm", "attn_norm"), ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"), ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"), ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"), ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
]


def gguf_name(name, gemma):
    renames = RENAMES + [("post_attention_layernorm", "post_attention_norm" if gemma else "ffn_norm")]
    for hf, ours in renames:
        if hf in name:
            return name.replace(hf, ours).replace("model.layers.", "blk.")
    raise KeyError(name)


def interleave(rows, heads):
    """GGUF stores q and k of llama for pairs (2i, 2i + 1)."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def deinterleave(rows, heads):
    shape = rows.shape
    return rows.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def llama3_factors(rope, head_dim):
    factors = []
    for i in range(head_dim // 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (2 * i / head_dim)
        trained, low, high = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
        keep = min(1.0, max(0.0, (trained / wavelength - low) / (high - low)))
        factors.append(1 / ((1 - keep) / rope["factor"] + keep))
    return np.array(factors, dtype=np.float32)


def add_metadata(writer, name, arch, config, head_dim):
    writer.add_name(f"tiny {name}")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config.vocab_size)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if name in ("mistral", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, head_dim))
    tokens, merges = tokens_and_merges()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t in SPECIALS else 1 for t in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)


def save_gguf(name, config, model, quant, path):
    """Writes the file and puts the weights as it stores them back into the model."""
    arch = {"mistral": "llama"}.get(config.model_type, config.model_type.removesuffix("_text"))
    gemma = arch == "gemma3"
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(path, arch)
    add_metadata(writer, name, arch, config, head_dim)
    for key, parameter in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = parameter.detach().numpy().astype(np.float32)
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        permuted = next((h for part, h in heads.items() if part in key), 0) if arch == "llama" else 0
        is_norm = "norm" in key
        if permuted:
            values = interleave(values, permuted)
        if gemma and is_norm:
            values = values + np.float32(1)
        stored = values
        if values.ndim == 2 and quant != Quant.F32:
            raw = gguf.quantize(values, quant)
            stored = gguf.dequantize(raw, quant).reshape(values.shape).astype(np.float32)
            writer.add_tensor(gguf_name(key, gemma), raw, raw_dtype=quant)
        else:
            writer.add_tensor(gguf_name(key, gemma), np.ascontiguousarray(values))
        if permuted:
            stored = deinterleave(stored, permuted)
        if gemma and is_norm:
            stored = stored - np.float32(1)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(stored)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        config, model = make_model(name)
        original = {k: v.clone() for k, v in model.state_dict().items()}
        save_folder(model, folder / name)
        write_logits(model, folder / f"{name}.json")
        save_bf16_shards(model, folder / f"{name}-shards", config.tie_word_embeddings)
        write_logits(model, folder / f"{name}-shards.json")
        for quant in QUANTS:
            model.load_state_dict(original)
            stem = f"{name}-{quant.name.lower()}"
            save_gguf(name, config, model, quant, folder / f"{stem}.gguf")
            write_logits(model, folder / f"{stem}.json")
        print(name, "written", flush=True)


if __name__ == "__main__":
    main()
