"""A tiny model as a Hugging Face folder, for tests."""
import json
import math
import random
import struct


def write_hf_folder(path, without=(), **generation):
    """A Hugging Face folder of one small layer and 256 tokens, one per byte."""
    path.mkdir()
    hidden, heads, inner, vocabulary, layer = 32, 2, 64, 256, "model.layers.0."
    shapes = {"model.embed_tokens.weight": [vocabulary, hidden], "model.norm.weight": [hidden],
              **{f"{layer}{n}_layernorm.weight": [hidden] for n in ("input", "post_attention")},
              **{f"{layer}self_attn.{n}_proj.weight": [hidden, hidden] for n in "qkvo"},
              **{f"{layer}mlp.{n}_proj.weight": [inner, hidden] for n in ("gate", "up")},
              f"{layer}mlp.down_proj.weight": [hidden, inner]}
    chance, header, data = random.Random(1), {}, b""
    for tensor, shape in shapes.items():
        values = struct.pack(f"<{math.prod(shape)}f", *(1 if len(shape) == 1 else chance.gauss(0, 0.3) for _ in range(math.prod(shape))))
        header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves in such files
    others = [b for b in range(256) if b not in plain]
    files = {
        "config.json": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
                        "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": vocabulary,
                        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000, "tie_word_embeddings": True},
        "tokenizer.json": {"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
                           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                           "decoder": {"type": "ByteLevel"},
                           "model": {"type": "BPE", "merges": [],
                                     "vocab": {chr(b if b in plain else 256 + others.index(b)): b for b in range(256)}}},
        "generation_config.json": generation}
    for file, content in files.items():
        if file not in without:
            (path / file).write_text(json.dumps(content))
    return path
