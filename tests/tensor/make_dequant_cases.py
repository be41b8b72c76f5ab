"""Writes tests/tensor/dequant_cases.txt: random encoded blocks of every weight type and what they mean.

Needs the packages gguf and numpy. One case per line: the type's name, its blocks in hex, and the floats that gguf's own
dequantize gives for them as little-endian f32 in hex. Scales are finite (random f16 of moderate size, some zero, some
subnormal), all other bits are uniform. Same output on every run.

    python tests/tensor/make_dequant_cases.py > tests/tensor/dequant_cases.txt
"""
import gguf
import numpy as np

# type -> byte offsets of the f16 scales inside a block
SCALES = {
    "F32": [], "F16": [0], "BF16": [], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
    "IQ4_XS": [0], "MXFP4": [], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0],
}
random = np.random.default_rng(20261115)


def scale(kind):
    if kind == 0:
        return np.float16(0)
    if kind == 1:
        return random.integers(1, 1024, dtype=np.uint16).view(np.float16)  # subnormal
    return np.float16(random.normal() * 10.0 ** random.integers(-4, 2))


for name, offsets in SCALES.items():
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    count = 48 if elements == 1 else 6 if elements == 32 else 3
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    if name == "F32":
        blocks = random.normal(size=count).astype(np.float32).view(np.uint8).reshape(count, size)
    if name == "BF16":
        blocks = np.ascontiguousarray(
            random.normal(size=count).astype(np.float32).view(np.uint8).reshape(count, 4)[:, 2:])
    for i, block in enumerate(blocks):
        for at in offsets:
            block[at:at + 2] = np.array([scale(i)]).view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = [0, 1, 2, 110, 127, 140]  # powers of two; the first ones are no normal numbers
    flat = blocks.reshape(-1)
    if name == "F32":
        floats = flat.view(np.float32)
    elif name == "F16":
        floats = flat.view(np.float16).astype(np.float32)
    else:
        floats = gguf.dequantize(flat, kind).reshape(-1)
    assert floats.dtype == np.float32 and floats.size == count * elements and np.isfinite(floats).all()
    print(name, flat.tobytes().hex(), floats.astype("<f4").tobytes().hex())
