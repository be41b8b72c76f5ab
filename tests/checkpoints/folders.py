"""Tiny Hugging Face folders of every quantization that Quire reads, and what their weights are.

A form makes the tensors of one matrix as a file has them, out of random codes. Its decode reads these tensors back; it is
written from the formats' descriptions and shares nothing with Quire's reader. `wrong` names a mistake that a reader could
make, which the test must notice.
"""
import json
import pathlib
import struct
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "cli"))
from hf_folder import write_hf_folder  # noqa: E402

NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
                1.0], dtype=np.float32)
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
TYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64", "uint8": "U8"}


def bf16_bits(x):
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def bf16(x):
    return (bf16_bits(x).astype(np.uint32) << 16).view(np.float32)


class Typed:
    """An array whose type numpy does not have."""

    def __init__(self, name, array):
        self.name, self.array = name, array


def save(path, tensors):
    header, data = {}, b""
    for name, t in tensors.items():
        kind, array = (t.name, t.array) if isinstance(t, Typed) else (TYPES[str(t.dtype)], t)
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def pack8(codes, axis, order=range(8)):
    """Eight codes along an axis in a word; order[j] is the place of the j-th."""
    codes = np.moveaxis(codes, axis, -1)
    words = np.zeros(codes.shape[:-1] + (codes.shape[-1] // 8,), dtype=np.uint32)
    for j in range(8):
        words |= codes[..., j::8].astype(np.uint32) << np.uint32(4 * order[j])
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32)


def unpack8(words, axis, order=range(8)):
    words = np.moveaxis(words.view(np.uint32), axis, -1)
    return np.moveaxis(np.stack([words >> np.uint32(4 * order[j]) & 15 for j in range(8)], -1).reshape(*words.shape[:-1], -1),
                       -1, axis).astype(np.int64)


AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]


class Form:
    """`exact`: logits are those of the decoded weights to the last bit; otherwise activations are rounded to integers."""

    def __init__(self, name, config, make, decode, wrong=(), exact=False):
        self.name, self.config, self.make, self.decode, self.wrong, self.exact = name, config, make, decode, wrong, exact


def four_bits(rng, rows, columns, group):
    groups = columns // group
    return (rng.integers(0, 16, (rows, columns)), rng.integers(0, 16, (rows, groups)),
            rng.uniform(0.004, 0.012, (rows, groups)).astype(np.float16))


def spread(values, columns):
    return np.repeat(values, columns // values.shape[1], axis=1)


def awq(group):
    def make(rng, base, rows, columns):
        q, z, s = four_bits(rng, rows, columns, group)
        return {base + ".qweight": pack8(q.T, 1, AWQ_ORDER), base + ".qzeros": pack8(z.T, 1, AWQ_ORDER), base + ".scales": s.T}

    def decode(t, base, wrong):
        order = range(8) if wrong == "order" else AWQ_ORDER
        q, z, s = unpack8(t[base + ".qweight"], 1, order).T, unpack8(t[base + ".qzeros"], 1, order).T, t[base + ".scales"].T
        z = z + (wrong == "zero")
        n = q.shape[1]
        return (spread(s.astype(np.float32), n) * (q - spread(z, n))).astype(np.float32)

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Form(f"awq-{group}", config, make, decode, ("order", "zero"))


def gptq(group, form="gptq", desc_act=False):
    less = 1 if form == "gptq" else 0

    def make(rng, base, rows, columns):
        q, z, s = four_bits(rng, rows, columns, group)
        order = np.arange(columns) // group
        if desc_act:
            rng.shuffle(order)
        return {base + ".qweight": pack8(q.T, 0), base + ".qzeros": pack8(z.T, 1), base + ".scales": s.T,
                base + ".g_idx": order.astype(np.int32)}

    def decode(t, base, wrong):
        q, z, s = unpack8(t[base + ".qweight"], 0).T, unpack8(t[base + ".qzeros"], 1).T, t[base + ".scales"].T
        g = np.sort(t[base + ".g_idx"]) if wrong == "order" else t[base + ".g_idx"]
        z = z + (0 if wrong == "zero" else less)
        w = (s.astype(np.float32)[:, g] * (q - z[:, g])).astype(np.float32)
        return bf16(w) if desc_act else w

    config = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": desc_act, "checkpoint_format": form}
    wrong = (("zero",) if less else ()) + (("order",) if desc_act else ())
    return Form(form + ("-act" if desc_act else "") + f"-{group}", config, make, decode, wrong, exact=desc_act)


def packed(group, zeros, act=False, scale_type="BF16"):
    def make(rng, base, rows, columns):
        q, z, s = four_bits(rng, rows, columns, group or columns)
        t = {base + ".weight_packed": pack8(q, 1), base + ".weight_shape": np.array([rows, columns], dtype=np.int64)}
        t[base + ".weight_scale"] = Typed("BF16", bf16_bits(s)) if scale_type == "BF16" else s.astype(np.float32)
        if zeros:
            t[base + ".weight_zero_point"] = pack8(z, 0)
        if act:
            order = np.arange(columns, dtype=np.int32) // group
            rng.shuffle(order)
            t[base + ".weight_g_idx"] = order
        return t

    def decode(t, base, wrong):
        q, s = unpack8(t[base + ".weight_packed"], 1), t[base + ".weight_scale"]
        s = (s.array.astype(np.uint32) << 16).view(np.float32) if isinstance(s, Typed) else s
        z = unpack8(t[base + ".weight_zero_point"], 0) if zeros and wrong != "zero" else np.full(s.shape, 8)
        g = t[base + ".weight_g_idx"] if act else np.arange(q.shape[1]) * s.shape[1] // q.shape[1]
        if wrong == "order":
            q = q.reshape(*q.shape[:-1], -1, 2)[..., ::-1].reshape(q.shape)
        w = (s[:, g] * (q - z[:, g])).astype(np.float32)
        return bf16(w) if act else w

    weights = {"num_bits": 4, "type": "int", "symmetric": not zeros, "strategy": "group" if group else "channel",
               "group_size": group or None, "actorder": "group" if act else None}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": weights}}}
    name = f"packed-{group or 'channel'}" + ("-zeros" if zeros else "") + ("-act" if act else "") + f"-{scale_type.lower()}"
    return Form(name, config, make, decode, ("order",) + (("zero",) if zeros else ()), exact=act)


def e4m3(codes):
    sign, e, m = np.where(codes & 0x80, -1.0, 1.0), (codes >> 3 & 15).astype(np.int64), (codes & 7).astype(np.float64)
    return (sign * np.where(e == 0, m * 2.0**-9, (1 + m / 8) * 2.0 ** (e - 7))).astype(np.float32)


def fp8(kind, config, scale_name="weight_scale_inv", scale_type="F32"):
    def make(rng, base, rows, columns):
        shape = {"block": (-(-rows // 128), -(-columns // 128)), "row": (rows, 1), "tensor": ()}[kind]
        codes = (rng.integers(0, 0x44, (rows, columns)) | rng.integers(0, 2, (rows, columns)) << 7).astype(np.uint8)
        scales = np.asarray(rng.uniform(0.03, 0.09, shape), dtype=np.float32)
        if scale_type == "F8_E8M0":
            scales = Typed(scale_type, rng.integers(121, 124, shape).astype(np.uint8))
        return {base + ".weight": Typed("F8_E4M3", codes), f"{base}.{scale_name}": scales}

    def decode(t, base, wrong):
        w, s = e4m3(t[base + ".weight"].array), t[f"{base}.{scale_name}"]
        if isinstance(s, Typed):
            s = np.exp2(s.array.astype(np.float32) - 127).astype(np.float32)
        if wrong == "divide":
            s = (np.float32(0.0036) / s).astype(np.float32)
        if kind == "block":
            s = s.repeat(128, 0).repeat(128, 1)[:w.shape[0], :w.shape[1]]
            s = s[::-1] if wrong == "block" else s
        return (w * s).astype(np.float32)

    return Form(f"fp8-{kind}" + ("-e8m0" if scale_type != "F32" else "") + ("-ct" if "format" in config else ""), config, make,
                decode, ("divide",) if scale_type == "F32" else (), exact=True)


def float_quantized(strategy):
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
        "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": strategy}}}}


def mxfp4_packed():
    def make(rng, base, rows, columns):
        return {base + ".weight_packed": rng.integers(0, 256, (rows, columns // 2), dtype=np.uint8),
                base + ".weight_scale": rng.integers(120, 123, (rows, columns // 32), dtype=np.uint8)}

    def decode(t, base, wrong):
        return decode_mxfp4(t[base + ".weight_packed"], t[base + ".weight_scale"], wrong)

    config = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}}}
    return Form("mxfp4-packed", config, make, decode, ("order",))


def decode_mxfp4(codes, scales, wrong=None):
    low, high = codes & 15, codes >> 4
    q = np.stack([high, low] if wrong == "order" else [low, high], -1).reshape(*scales.shape, 32)
    return (FP4[q] * np.exp2(scales.astype(np.float32) - 127)[..., None]).reshape(*scales.shape[:-1], -1).astype(np.float32)


def nf4(double, block=64):
    def make(rng, base, rows, columns):
        n, blocks, w = rows * columns, rows * columns // block, base + ".weight"
        state = {"quant_type": "nf4", "blocksize": block, "dtype": "float32", "shape": [rows, columns]}
        t = {w: rng.integers(0, 256, (n // 2, 1), dtype=np.uint8), w + ".quant_map": NF4}
        if double:
            t |= {w + ".absmax": rng.integers(0, 256, blocks, dtype=np.uint8),
                  w + ".nested_absmax": rng.uniform(0.02, 0.04, -(-blocks // 256)).astype(np.float32),
                  w + ".nested_quant_map": np.linspace(-1, 1, 256, dtype=np.float32)}
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.1234567}
        else:
            t[w + ".absmax"] = rng.uniform(0.05, 0.2, blocks).astype(np.float32)
        return t | {w + ".quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(state).encode(), dtype=np.uint8)}

    def decode(t, base, wrong):
        w = base + ".weight"
        state = json.loads(t[w + ".quant_state.bitsandbytes__nf4"].tobytes())
        scales = t[w + ".absmax"]
        if double:
            scales = t[w + ".nested_quant_map"][scales] * t[w + ".nested_absmax"].repeat(256)[:scales.size]
            scales = scales + np.float32(0 if wrong == "offset" else state["nested_offset"])
        codes = t[w].reshape(-1)
        pair = [codes & 15, codes >> 4] if wrong == "order" else [codes >> 4, codes & 15]
        q = np.stack(pair, -1).reshape(-1, block)
        return (NF4[q] * scales[:, None]).astype(np.float32).reshape(state["shape"])

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
              "bnb_4bit_use_double_quant": double}
    return Form("nf4" + ("-double" if double else "") + ("" if block == 64 else f"-{block}"), config, make, decode,
                ("order",) + (("offset",) if double else ()), exact=True)


FORMS = [
    awq(32), awq(128), gptq(32), gptq(64, "gptq_v2"), gptq(64, desc_act=True), packed(64, False), packed(32, True),
    packed(0, False), packed(32, True, scale_type="F32"), packed(32, False, act=True),
    fp8("block", {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}),
    fp8("block", {"quant_method": "fp8", "weight_block_size": [128, 128]}, scale_type="F8_E8M0"),
    fp8("tensor", {"quant_method": "fp8", "activation_scheme": "static"}, "weight_scale"),
    fp8("row", float_quantized("channel"), "weight_scale"), fp8("tensor", float_quantized("tensor"), "weight_scale"),
    mxfp4_packed(), nf4(False), nf4(True), nf4(False, 128)]

LLAMA = dict(model_type="llama", hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=32, vocab_size=256, max_position_embeddings=512, rms_norm_eps=1e-5,
             rope_theta=10000.0, tie_word_embeddings=False)


def llama_shapes(c):
    h, q, kv, i = c["hidden_size"], c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"], c["intermediate_size"]
    plain = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,), "lm_head.weight": (c["vocab_size"], h)}
    coded = {}
    for n in range(c["num_hidden_layers"]):
        at = f"model.layers.{n}."
        plain |= {at + "input_layernorm.weight": (h,), at + "post_attention_layernorm.weight": (h,)}
        coded |= {at + "self_attn.q_proj": (q, h), at + "self_attn.k_proj": (kv, h), at + "self_attn.v_proj": (kv, h),
                  at + "self_attn.o_proj": (h, q), at + "mlp.gate_proj": (i, h), at + "mlp.up_proj": (i, h),
                  at + "mlp.down_proj": (h, i)}
    return plain, coded


def plain_tensors(rng, shapes):
    return {name: (1 + 0.3 * rng.normal(size=shape) if len(shape) == 1 else rng.normal(size=shape) * 0.1).astype(np.float32)
            for name, shape in shapes.items()}


def write_folder(path, config, tensors):
    if not path.exists():
        write_hf_folder(path)
    (path / "config.json").write_text(json.dumps(config))
    save(path / "model.safetensors", tensors)
    return path


def make_llama(form, seed=1):
    """The configuration of a folder of this form, its tensors, and those of the same model in F32 by a way to decode."""
    rng = np.random.default_rng(seed)
    plain_shapes, coded_shapes = llama_shapes(LLAMA)
    if "awq-128" in form.name or "nf4" in form.name:  # 192 is no multiple of their groups
        plain_shapes, coded_shapes = llama_shapes(LLAMA | {"intermediate_size": 256})
        config = LLAMA | {"intermediate_size": 256}
    else:
        config = dict(LLAMA)
    plain, coded = plain_tensors(rng, plain_shapes), {}
    for base, shape in coded_shapes.items():
        coded |= form.make(rng, base, *shape)

    def decoded(wrong=None):
        return plain | {base + ".weight": form.decode(coded, base, wrong) for base in coded_shapes}

    return config, plain | coded, decoded


OSS = dict(model_type="gpt_oss", hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
           num_key_value_heads=2, head_dim=16, vocab_size=256, max_position_embeddings=512, rms_norm_eps=1e-5,
           rope_theta=10000.0, tie_word_embeddings=False, num_local_experts=4, num_experts_per_tok=2, sliding_window=32,
           rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0,
                             truncate=False))


def make_gpt_oss(seed=5):
    """gpt-oss with experts in MXFP4: configuration, tensors, and those in F32."""
    rng, c = np.random.default_rng(seed), OSS
    h, i, e, q, kv = c["hidden_size"], c["intermediate_size"], c["num_local_experts"], 64, 32
    shapes = {"model.embed_tokens.weight": (256, h), "model.norm.weight": (h,), "lm_head.weight": (256, h)}
    coded = {}
    for n in range(c["num_hidden_layers"]):
        at = f"model.layers.{n}."
        shapes |= {at + "input_layernorm.weight": (h,), at + "post_attention_layernorm.weight": (h,),
                   at + "self_attn.q_proj.weight": (q, h), at + "self_attn.k_proj.weight": (kv, h),
                   at + "self_attn.v_proj.weight": (kv, h), at + "self_attn.o_proj.weight": (h, q),
                   at + "self_attn.q_proj.bias": (q,), at + "self_attn.k_proj.bias": (kv,),
                   at + "self_attn.v_proj.bias": (kv,), at + "self_attn.o_proj.bias": (h,), at + "self_attn.sinks": (4,),
                   at + "mlp.router.weight": (e, h), at + "mlp.router.bias": (e,),
                   at + "mlp.experts.gate_up_proj_bias": (e, 2 * i), at + "mlp.experts.down_proj_bias": (e, h)}
        coded |= {at + "mlp.experts.gate_up_proj": (e, 2 * i, h), at + "mlp.experts.down_proj": (e, h, i)}
    plain = plain_tensors(rng, shapes)
    for name in plain:
        if "router.weight" in name:
            plain[name] *= 8  # choices that are far apart
    tensors = {}
    for name, (count, rows, columns) in coded.items():
        tensors[name + "_blocks"] = rng.integers(0, 256, (count, rows, columns // 32, 16), dtype=np.uint8)
        tensors[name + "_scales"] = rng.integers(119, 122, (count, rows, columns // 32), dtype=np.uint8)

    def decoded(wrong=None):
        return plain | {name: np.ascontiguousarray(
            decode_mxfp4(tensors[name + "_blocks"], tensors[name + "_scales"], wrong).swapaxes(1, 2)) for name in coded}

    return c | {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}, plain | tensors, decoded
