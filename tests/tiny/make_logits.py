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
from gguf_names import from_gguf, to_gguf  # noqa: E402

POSITIONS = [0, 33, 64, 95]
PROMPT = np.random.default_rng(11).integers(0, 256, 96).tolist()
GREEDY_TOKENS = 24
CONFIGS = {"llama": transformers.LlamaConfig, "gemma3": transformers.Gemma3TextConfig,
           "qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config, "smollm3": transformers.SmolLM3Config,
           "granite": transformers.GraniteConfig, "phi3": transformers.Phi3Config, "olmo2": transformers.Olmo2Config,
           "glm4": transformers.Glm4Config, "gemma2": transformers.Gemma2Config, "gpt2": transformers.GPT2Config,
           "starcoder2": transformers.Starcoder2Config, "falcon": transformers.FalconConfig,
           "qwen2moe": transformers.Qwen2MoeConfig, "qwen3moe": transformers.Qwen3MoeConfig,
           "gpt-oss": transformers.GptOssConfig, "glm4moe": transformers.Glm4MoeConfig, "deepseek2": transformers.DeepseekV2Config}


def metadata(reader):
    arch = reader.fields["general.architecture"].contents()
    return arch, {k.removeprefix(arch + "."): f.contents() for k, f in reader.fields.items() if k.startswith(arch + ".")}


def make_rope(arch, meta, tensors):
    rope = {"rope_type": "default", "rope_theta": meta["rope.freq_base"]}
    kind = "longrope" if "rope_factors_long.weight" in tensors else meta.get("rope.scaling.type", "default")
    if kind != "default":
        rope["rope_type"] = kind
    if kind in ("linear", "yarn"):
        rope["factor"] = meta["rope.scaling.factor"]
    if kind in ("yarn", "longrope"):
        rope["original_max_position_embeddings"] = meta["rope.scaling.original_context_length"]
    if "rope.scaling.yarn_log_multiplier" in meta:  # GGUF means that both are alike
        rope["mscale"] = rope["mscale_all_dim"] = round(meta["rope.scaling.yarn_log_multiplier"] * 10, 5)
    if kind == "yarn" and arch == "gpt-oss":
        rope["truncate"] = False
    if kind == "longrope":
        rope |= {"attention_factor": meta["rope.scaling.attn_factor"],
                 "short_factor": tensors["rope_factors_short.weight"].astype(float).tolist(),
                 "long_factor": tensors["rope_factors_long.weight"].astype(float).tolist()}
    if "rope.dimension_count" in meta and arch != "deepseek2":
        rope["partial_rotary_factor"] = meta["rope.dimension_count"] / meta["attention.key_length"]
    return rope


def make_own(arch, meta, rope):
    """What the architecture's configuration has beside the numbers of all."""
    window, epsilon = meta.get("attention.sliding_window"), meta.get("attention.layer_norm_epsilon")
    if arch in ("gemma2", "gemma3"):
        own = dict(sliding_window=window, query_pre_attn_scalar=meta["attention.key_length"])
        if arch == "gemma2":
            return own | dict(attn_logit_softcapping=meta["attn_logit_softcapping"],
                              final_logit_softcapping=meta["final_logit_softcapping"])
        return own | dict(rope_parameters={"full_attention": rope, "sliding_attention": {
            "rope_type": "default", "rope_theta": 10000.0}})
    if arch == "granite":
        return dict(embedding_multiplier=meta["embedding_scale"], attention_multiplier=meta["attention.scale"],
                    residual_multiplier=meta["residual_scale"], logits_scaling=meta["logit_scale"])
    if arch == "gpt2":
        return dict(n_inner=meta["feed_forward_length"], layer_norm_epsilon=epsilon)
    if arch == "falcon":
        return dict(ffn_hidden_size=meta["feed_forward_length"], layer_norm_epsilon=epsilon)
    if arch == "starcoder2":
        return dict(norm_epsilon=epsilon, sliding_window=window)
    own = dict(sliding_window=window) if window else {}
    if rope["rope_type"] == "longrope":
        own["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    return own


def make_experts(arch, meta):
    if "expert_count" not in meta:
        return {}
    count, width = meta["expert_count"], meta["expert_feed_forward_length"]
    own = dict(num_experts_per_tok=meta["expert_used_count"], experts_implementation="eager")
    if arch in ("llama", "gpt-oss"):
        return own | dict(num_local_experts=count, intermediate_size=width)
    own |= dict(moe_intermediate_size=width)
    if arch == "glm4moe":
        return own | dict(n_routed_experts=count, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1,
                          norm_topk_prob=True, routed_scaling_factor=meta["expert_weights_scale"], use_qk_norm=True,
                          attention_bias=True)
    if arch == "deepseek2":
        sigmoids = meta["expert_gating_func"] == 2
        return own | dict(n_routed_experts=count, n_shared_experts=meta["expert_shared_count"], first_k_dense_replace=1,
                          n_group=meta["expert_group_count"], topk_group=meta["expert_group_used_count"],
                          norm_topk_prob=sigmoids, routed_scaling_factor=meta["expert_weights_scale"],
                          **({} if sigmoids else dict(topk_method="group_limited_greedy")))
    own |= dict(num_experts=count, norm_topk_prob=arch == "qwen3moe", decoder_sparse_step=1, mlp_only_layers=[])
    if arch == "qwen2moe":
        own |= dict(shared_expert_intermediate_size=meta["expert_shared_feed_forward_length"])
    return own


def make_latent(meta, tensors):
    one = "blk.0.attn_kv_b.weight" in tensors
    rotated, rank = meta["rope.dimension_count"], meta["attention.kv_lora_rank"]
    head, out = (meta["attention." + ("key_length" if one else "key_length_mla")],
                 meta["attention." + ("value_length" if one else "value_length_mla")])
    return dict(kv_lora_rank=rank, q_lora_rank=meta.get("attention.q_lora_rank"), qk_rope_head_dim=rotated,
                qk_nope_head_dim=head - rotated, v_head_dim=out, num_key_value_heads=meta["attention.head_count"], one_kv_b=one)


def make_config(arch, meta, tensors):
    rope = make_rope(arch, meta, tensors)
    own = {"rope_parameters": rope} | make_own(arch, meta, rope)
    own = {"intermediate_size": meta["feed_forward_length"]} | own | make_experts(arch, meta)
    kind = transformers.MistralConfig if arch == "llama" and "sliding_window" in own else CONFIGS[arch]
    if arch == "llama" and "expert_count" in meta:
        kind = transformers.MixtralConfig
    head = {} if arch == "falcon" else dict(head_dim=meta["attention.key_length"])
    own = dict(num_key_value_heads=meta["attention.head_count_kv"]) | own
    if arch == "deepseek2":
        head, own = {}, own | make_latent(meta, tensors)
        kind = transformers.DeepseekV3Config if meta["expert_gating_func"] == 2 else kind
    return kind(vocab_size=260, hidden_size=meta["embedding_length"],
                num_hidden_layers=meta["block_count"], num_attention_heads=meta["attention.head_count"],
                **head,
                max_position_embeddings=meta["context_length"], rms_norm_eps=meta["attention.layer_norm_rms_epsilon"],
                tie_word_embeddings="output.weight" not in tensors, bos_token_id=256, eos_token_id=257, pad_token_id=257,
                attn_implementation="eager", dtype="float32", **own)


def load(path):
    reader = gguf.GGUFReader(path)
    arch, meta = metadata(reader)
    tensors = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    config = make_config(arch, meta, tensors)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    used = {name for name in tensors if name.startswith("rope_f")}
    with torch.no_grad():
        for key, parameter in model.state_dict().items():
            if key == "lm_head.weight" and config.tie_word_embeddings:
                continue
            shape = tuple(parameter.shape)
            used.update(name for name, _ in to_gguf(key, np.empty(shape, dtype=bool), config))
            parameter.copy_(torch.from_numpy(from_gguf(key, shape, tensors, config)))
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
