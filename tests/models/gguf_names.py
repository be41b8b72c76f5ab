"""How the parameters of transformers' models lie in GGUF files: names, parts, order of rows, and ones that are added.

    for name, values in to_gguf("model.layers.0.self_attn.q_proj.weight", array, config): ...
    array = from_gguf(key, shape, tensors, config)
"""
import numpy as np

GEMMAS = ("gemma2", "gemma3")
# GGUF stores q and k of these for pairs (2i, 2i + 1); so do both forms of deepseek2.
INTERLEAVED = ("llama", "smollm3", "granite")
OLD = ("gpt2", "falcon")

RENAMES = [  # Hugging Face's parts of a name and GGUF's; the first that fits ends the search
    ("embed_tokens", "token_embd"), ("word_embeddings", "token_embd"), ("wte", "token_embd"), ("wpe", "position_embd"),
    ("ln_f", "output_norm"), ("lm_head", "output"), ("ln_1", "attn_norm"), ("ln_2", "ffn_norm"),
    ("ln_attn", "attn_norm_2"), ("ln_mlp", "attn_norm"),
    ("attn.c_attn", "attn_qkv"), ("attn.c_proj", "attn_output"), ("self_attention.query_key_value", "attn_qkv"),
    ("self_attention.dense", "attn_output"), ("mlp.dense_h_to_4h", "ffn_up"), ("mlp.dense_4h_to_h", "ffn_down"),
    ("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"), ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"), ("post_self_attn_layernorm", "post_attention_norm"),
    ("post_mlp_layernorm", "post_ffw_norm"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"), ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.kv_b_proj", "attn_kv_b"), ("self_attn.q_a_proj", "attn_q_a"), ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.qkv_proj", "attn_qkv"), ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"), ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"), ("self_attn.sinks", "attn_sinks.weight"),
    ("mlp.gate_up_proj", "ffn_gate_up"), ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"), ("mlp.shared_experts.", "ffn_shexp_"),
    ("mlp.shared_expert.", "ffn_shexp_"), ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.router", "ffn_gate_inp"), ("mlp.gate", "ffn_gate_inp"),
    ("mlp.experts.gate_up_proj_bias", "ffn_gate_up_exps.bias"), ("mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
    ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"), ("mlp.experts.down_proj", "ffn_down_exps.weight"),
    ("model.norm", "output_norm"),
]


def architecture(config):
    names = {"mistral": "llama", "mixtral": "llama", "gpt_oss": "gpt-oss", "glm4_moe": "glm4moe", "qwen2_moe": "qwen2moe",
             "qwen3_moe": "qwen3moe", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2"}
    return names.get(config.model_type, config.model_type.removesuffix("_text"))


def gguf_name(key, config):
    arch = architecture(config)
    after = arch in GEMMAS or arch in ("olmo2", "gpt-oss", "glm4moe")
    for hf, ours in RENAMES + [("post_attention_layernorm", "post_attention_norm" if after else "ffn_norm")]:
        if hf in key:
            name = key.replace(hf, ours).replace("model.layers.", "blk.").replace("transformer.h.", "blk.")
            name = name.removeprefix("model.").removeprefix("transformer.")
            for part in ("gate", "up", "down"):
                name = name.replace(f"ffn_shexp_{part}_proj", f"ffn_{part}_shexp")
            return name
    raise KeyError(key)


def head_size(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def kv_heads(config):
    if config.model_type == "gpt2":
        return config.num_attention_heads
    if architecture(config) == "deepseek2" and not getattr(config, "one_kv_b", False):
        return 1
    if config.model_type == "falcon":
        return config.num_kv_heads if config.new_decoder_architecture else 1
    return config.num_key_value_heads


def interleave(rows, heads):
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def ungroup(rows, config):
    """Falcon's q, k and v lie group by group."""
    kv, d = kv_heads(config), head_size(config)
    groups = rows.reshape(kv, config.num_attention_heads // kv + 2, d, -1)
    return np.concatenate([part.reshape(-1, rows.shape[-1]) for part in (groups[:, :-2], groups[:, -2], groups[:, -1])])


def to_gguf(key, values, config, fused=False):
    """[(name, values)]. `fused`: q, k and v as one tensor where the model has them so, gate and up likewise."""
    arch, name = architecture(config), gguf_name(key, config)
    if "attn_kv_b" in name and not getattr(config, "one_kv_b", False):
        heads = values.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
        keys, rest = heads[:, :config.qk_nope_head_dim], heads[:, config.qk_nope_head_dim:]
        return [(name.replace("attn_kv_b", "attn_k_b"), keys.swapaxes(1, 2)), (name.replace("attn_kv_b", "attn_v_b"), rest)]
    if arch == "gpt2" and values.ndim == 2 and "c_" in key:
        values = values.T
    if arch == "falcon" and "query_key_value" in key:
        values = ungroup(values, config)
    if "attn_qkv" in name and not fused:
        d = head_size(config)
        ends = np.cumsum([config.num_attention_heads * d, kv_heads(config) * d])
        return [(name.replace("attn_qkv", n), part) for n, part in
                zip(("attn_q", "attn_k", "attn_v"), np.split(values, ends))]
    if "ffn_gate_up." in name:
        if fused:
            return [(name.replace("ffn_gate_up", "ffn_up"), values)]
        return [(name.replace("ffn_gate_up", n), part) for n, part in zip(("ffn_gate", "ffn_up"), np.split(values, 2))]
    if arch == "gpt-oss" and values.ndim == 3:
        values = values.swapaxes(1, 2)
    if "ffn_gate_up_exps" in name:
        gate, up = (values[:, ::2], values[:, 1::2]) if arch == "gpt-oss" else np.split(values, 2, axis=1)
        return [(name.replace("ffn_gate_up", n), part) for n, part in (("ffn_gate", gate), ("ffn_up", up))]
    heads = {"attn_q.": config.num_attention_heads, "attn_k.": kv_heads(config)}
    permuted = next((h for part, h in heads.items() if part in name), 0) if arch in INTERLEAVED else 0
    return [(name, interleave(values, permuted) if permuted else values)]


def added(key, config):
    """What GGUF has more than transformers."""
    return np.float32(1 if architecture(config) in GEMMAS and "norm" in key else 0)


def from_gguf(key, shape, tensors, config, fused=False):
    """The parameter again, from a dictionary of tensors."""
    places = np.arange(int(np.prod(shape))).reshape(shape)
    values = np.empty(places.size, dtype=np.float32)
    for name, at in to_gguf(key, places, config, fused):
        values[at.reshape(-1)] = tensors[name].reshape(-1)
    return values.reshape(shape) - added(key, config)
