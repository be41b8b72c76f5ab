"""Writes tiny random models of every architecture, and what transformers computes with them, for tests of the forward pass.

    python tests/models/make_tiny.py FOLDER [MODEL ...]

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

from gguf_names import GEMMAS, added, architecture, from_gguf, head_size, kv_heads, to_gguf

PROMPT_TOKENS = 96  # three windows long
POSITIONS = [0, 1, 31, 32, 33, 63, 64, 95]
SPECIALS = ["<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>"]
QUANTS = [Quant.F32, Quant.F16, Quant.BF16, Quant.Q8_0, Quant.Q4_0, Quant.Q4_1, Quant.Q5_0, Quant.Q5_1]

COMMON = dict(vocab_size=288, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=512, bos_token_id=256, eos_token_id=257, pad_token_id=257,
              attn_implementation="eager", dtype="float32")
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

EXPERTS = dict(num_experts_per_tok=2, experts_implementation="eager")
LATENT = dict(num_experts_per_tok=3, experts_implementation="eager", num_key_value_heads=4, kv_lora_rank=128, q_lora_rank=96,
              qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=64, n_routed_experts=8, n_shared_experts=2, n_group=4,
              topk_group=2, moe_intermediate_size=64, first_k_dense_replace=1, routed_scaling_factor=1.5)
YARN_SCALES = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
               "mscale": 0.707, "mscale_all_dim": 0.707}

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
    "qwen3-yarn": (transformers.Qwen3Config, dict(head_dim=32, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64})),
    "smollm3": (transformers.SmolLM3Config, dict(num_hidden_layers=5)),
    "granite": (transformers.GraniteConfig, dict(
        embedding_multiplier=12.0, attention_multiplier=0.4, residual_multiplier=0.22, logits_scaling=8.0)),
    "phi3": (transformers.Phi3Config, dict(sliding_window=48)),
    "phi3-long": (transformers.Phi3Config, dict(
        original_max_position_embeddings=64, partial_rotary_factor=0.75, rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64,
            "partial_rotary_factor": 0.75, "short_factor": [1.0, 1.1, 1.2, 1.5, 2.0, 3.0],
            "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.0]})),
    "olmo2": (transformers.Olmo2Config, dict()),
    "glm4": (transformers.Glm4Config, dict(head_dim=32, rms_norm_eps=1e-5)),
    "gemma2": (transformers.Gemma2Config, dict(
        num_hidden_layers=4, head_dim=16, sliding_window=32, query_pre_attn_scalar=16, attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0, tie_word_embeddings=True)),
    "gpt2": (transformers.GPT2Config, dict(n_inner=96)),
    "starcoder2": (transformers.Starcoder2Config, dict(sliding_window=32)),
    "falcon": (transformers.FalconConfig, dict(ffn_hidden_size=96)),
    "falcon-groups": (transformers.FalconConfig, dict(ffn_hidden_size=96, num_kv_heads=2, new_decoder_architecture=True)),
    "mixtral": (transformers.MixtralConfig, dict(**EXPERTS, num_local_experts=4, head_dim=16)),
    "qwen2moe": (transformers.Qwen2MoeConfig, dict(
        **EXPERTS, num_experts=6, moe_intermediate_size=64, shared_expert_intermediate_size=64, norm_topk_prob=False,
        decoder_sparse_step=1)),
    "qwen3moe": (transformers.Qwen3MoeConfig, dict(
        **EXPERTS, num_experts=8, moe_intermediate_size=64, norm_topk_prob=True, head_dim=32)),
    "glm4moe": (transformers.Glm4MoeConfig, dict(
        **EXPERTS, n_routed_experts=6, n_shared_experts=1, moe_intermediate_size=64, first_k_dense_replace=1, n_group=1,
        topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5, use_qk_norm=True, attention_bias=True, head_dim=32)),
    "deepseek2": (transformers.DeepseekV2Config, dict(
        **LATENT, topk_method="group_limited_greedy", rope_parameters=YARN_SCALES)),
    "deepseek2-lite": (transformers.DeepseekV2Config, dict(**{**LATENT, "q_lora_rank": None}, topk_method="greedy")),
    "deepseek2-old": (transformers.DeepseekV2Config, dict(**LATENT, topk_method="greedy", one_kv_b=True)),
    "deepseek3": (transformers.DeepseekV3Config, dict(**LATENT, norm_topk_prob=True, rope_parameters=YARN_SCALES)),
    "gpt-oss": (transformers.GptOssConfig, dict(
        **EXPERTS, num_hidden_layers=4, num_local_experts=4, head_dim=16, sliding_window=32, rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
            "truncate": False})),
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
        for key, p in model.state_dict().items():
            if ("norm" in key or "ln_" in key) and key.endswith(".weight"):  # spread around what means "no change"
                p.copy_(torch.randn_like(p) * 0.2 + (0.0 if architecture(config) in GEMMAS else 1.0))
            else:  # large enough that positions and windows show in the logits
                p.copy_(torch.randn_like(p) * (1.5 / p.shape[-1] ** 0.5 if p.dim() > 1 and not key.endswith("bias") else 0.3))
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


def llama3_factors(rope, head_dim):
    factors = []
    for i in range(head_dim // 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (2 * i / head_dim)
        trained, low, high = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
        keep = min(1.0, max(0.0, (trained / wavelength - low) / (high - low)))
        factors.append(1 / ((1 - keep) / rope["factor"] + keep))
    return np.array(factors, dtype=np.float32)


def add_rope(writer, config, head_dim):
    rope = getattr(config, "rope_parameters", None)
    if config.model_type == "gpt2":
        return
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if "original_max_position_embeddings" in rope and rope["rope_type"] in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        growth = config.max_position_embeddings / rope["original_max_position_embeddings"]
        writer.add_rope_scaling_attn_factors(
            (1 + np.log(growth) / np.log(rope["original_max_position_embeddings"])) ** 0.5)
        for kind in ("short", "long"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], dtype=np.float32))
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, head_dim))


def add_own(writer, name, config):
    arch = architecture(config)
    if name in ("mistral", "gemma3", "gemma2", "phi3", "gpt-oss"):
        writer.add_sliding_window(config.sliding_window)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch == "granite":
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    count = next((getattr(config, k) for k in ("num_local_experts", "num_experts", "n_routed_experts")
                  if getattr(config, k, None)), 0)
    if count:
        writer.add_expert_count(count)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", None) or config.intermediate_size)
    if arch == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if arch == "glm4moe":
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if arch == "deepseek2":
        sigmoids = config.model_type == "deepseek_v3"
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(sigmoids)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if sigmoids else gguf.ExpertGatingFuncType.SOFTMAX)
        if sigmoids or config.topk_method != "greedy":
            writer.add_expert_group_count(config.n_group)
            writer.add_expert_group_used_count(config.topk_group)
    if arch == "starcoder2":  # converters leave it out
        writer.add_sliding_window(config.sliding_window)


def add_latent(writer, config):
    head, one = config.qk_nope_head_dim + config.qk_rope_head_dim, getattr(config, "one_kv_b", False)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_key_length(head if one else config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.v_head_dim if one else config.kv_lora_rank)
    if not one:
        writer.add_key_length_mla(head)
        writer.add_value_length_mla(config.v_head_dim)


def add_metadata(writer, name, config, head_dim):
    writer.add_name(f"tiny {name}")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    inner = {"gpt2": "n_inner", "falcon": "ffn_hidden_size"}.get(config.model_type, "intermediate_size")
    writer.add_feed_forward_length(getattr(config, inner))
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(kv_heads(config))
    epsilon = {"gpt2": "layer_norm_epsilon", "falcon": "layer_norm_epsilon", "starcoder2": "norm_epsilon"}
    if config.model_type in epsilon:
        writer.add_layer_norm_eps(getattr(config, epsilon[config.model_type]))
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if architecture(config) == "deepseek2":
        add_latent(writer, config)
    else:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_vocab_size(config.vocab_size)
    add_rope(writer, config, head_dim)
    add_own(writer, name, config)
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
    head_dim = head_size(config)
    writer = gguf.GGUFWriter(path, architecture(config))
    add_metadata(writer, name, config, head_dim)
    for key, parameter in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = parameter.detach().numpy().astype(np.float32) + added(key, config)
        stored = {}
        for part, rows in to_gguf(key, values, config, fused=True):
            rows = np.ascontiguousarray(rows)
            if rows.ndim >= 2 and part.endswith(".weight") and "ffn_gate_inp" not in part and quant != Quant.F32:
                raw = gguf.quantize(rows, quant)
                stored[part] = gguf.dequantize(raw, quant).reshape(rows.shape).astype(np.float32)
                writer.add_tensor(part, raw, raw_dtype=quant)
            else:
                stored[part] = rows
                writer.add_tensor(part, rows)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(from_gguf(key, tuple(parameter.shape), stored, config, fused=True)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or MODELS:
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
