"""Checks that Quire reads quantized weight files as other programs mean them.

    scripts/python tests/checkpoints/check_checkpoints.py build/release/quire build/release/tests/write_tiny [CHECK ...]

A model in each form is compared with the same model in F32, whose weights another program has decoded: numpy (folders.py)
for Hugging Face folders, the gguf package for GGUF files. Decoders with a mistake in them must be far off.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import gguf
import numpy as np

import folders

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "server"))
from serving import Server  # noqa: E402

LIMIT = 1.5e-3  # of the largest logit, with activations of 16 bits
PROMPT = np.random.default_rng(3).integers(0, 256, 70).tolist()
QUIRE, WRITE_TINY = sys.argv[1:3]
failures = []


def expect(condition, what):
    if not condition:
        failures.append(what)
        print("FAILED:", what, flush=True)


def run(*arguments):
    return subprocess.run([QUIRE, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def logits(model, name="?"):
    rows = folder / "rows.f32"
    done = run("eval", model, "--tokens", ",".join(map(str, PROMPT)), "--logits", rows, "--every", 1, "--activations", "int16",
               "--kv-format", "f32", "--threads", 2, "--json")
    if done.returncode != 0:
        sys.exit(f"error: {name}: {done.stderr}")
    return np.fromfile(rows, dtype=np.float32)


def error_of(model):
    """What opening this model says; nothing if it opens."""
    done = run("eval", model, "--tokens", "1,2,3", "--json")
    expect(0 <= done.returncode < 128, f"{model}: ended with {done.returncode}")  # not by a signal
    return done.stderr if done.returncode else ""


def difference(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def compare(name, path, config, tensors, decoded, exact, wrongs):
    got = logits(folders.write_folder(path, config, tensors), name)
    plain = {k: v for k, v in config.items() if k != "quantization_config"}
    twin = path.with_name(path.name + "-f32")
    want = logits(folders.write_folder(twin, plain, decoded()), name)
    error = difference(got, want)
    print(f"{name}: {error:.2g}", flush=True)
    expect(np.isfinite(got).all() and (np.array_equal(got, want) if exact else error < LIMIT), f"{name} is off by {error:.3g}")
    for wrong in wrongs:
        folders.write_folder(twin, plain, decoded(wrong))
        expect(difference(logits(twin, name), got) > 20 * LIMIT, f"{name}: '{wrong}' is not noticed")
    shutil.rmtree(twin)


def check_folders():
    for form in folders.FORMS:
        config, tensors, decoded = folders.make_llama(form)
        compare(form.name, folder / form.name, config | {"quantization_config": form.config}, tensors, decoded, form.exact,
                form.wrong)
        shown = json.loads(run("show", folder / form.name, "--json").stdout)
        expect(form.config["quant_method"] in shown["quantization"], f"{form.name}: show says {shown['quantization']}")
        expect(len(shown["weight_types"]) == 2, f"{form.name}: show says {shown['weight_types']}")
    compare("gpt-oss", folder / "gpt-oss", *folders.make_gpt_oss(), False, ("order",))
    expect("MXFP4" in json.loads(run("show", folder / "gpt-oss", "--json").stdout)["weight_types"], "gpt-oss has no MXFP4")


def check_threads_and_chunks():
    """The same bits for any number of threads and rows in a step."""
    for name in ("awq-32", "nf4", "fp8-block", "gpt-oss"):
        rows = []
        for options in (("--threads", 1, "--chunk", 7), ("--threads", 2, "--chunk", 70)):
            done = run("eval", folder / name, "--tokens", ",".join(map(str, PROMPT)), "--logits", folder / "x.f32", "--every", 1,
                       *options, "--json")
            expect(done.returncode == 0, f"{name} {options}: {done.stderr}")
            rows.append((folder / "x.f32").read_bytes())
        expect(rows[0] == rows[1], f"{name}: threads or chunks change bits")


def damaged(name, change, config_change=None):
    form = next(f for f in folders.FORMS if f.name == name)
    config, tensors, _ = folders.make_llama(form)
    config["quantization_config"] = json.loads(json.dumps(form.config)) | (config_change or {})
    change(tensors)
    return error_of(folders.write_folder(folder / "damaged", config, tensors))


def check_damage():
    up = "model.layers.1.mlp.up_proj"

    def without(name):
        return lambda t: t.pop(up + name)

    def with_(name, value):
        return lambda t: t.update({up + name: value(t[up + name])})

    cases = [
        ("awq-32", without(".qzeros"), {}, ["up_proj.qzeros' is missing"]),
        ("awq-32", without(".scales"), {}, ["up_proj.scales' is missing"]),
        ("awq-32", with_(".scales", lambda s: s[:-1]), {}, ["up_proj.scales' has shape"]),
        ("awq-32", with_(".qweight", lambda q: q[:0]), {}, ["up_proj.qweight' has shape [0, "]),
        ("awq-32", with_(".qzeros", lambda q: q[:0]), {}, ["up_proj.qzeros' is empty"]),
        ("awq-32", with_(".qweight", lambda q: q[:, :-4]), {}, ["up_proj"]),
        ("awq-32", lambda t: None, {"version": "gemv"}, ["'version'", "gemv", "gemm"]),
        ("awq-32", lambda t: None, {"bits": 8}, ["'bits'", "8"]),
        ("awq-32", lambda t: None, {"quant_method": "hqq"}, ["'quant_method'", "hqq", "gptq"]),
        ("gptq-act-64", with_(".g_idx", lambda g: g + 3), {}, ["up_proj.g_idx' puts input", "into group"]),
        ("gptq-act-64", with_(".g_idx", lambda g: -g), {}, ["into group -"]),
        ("gptq-act-64", with_(".g_idx", lambda g: g[:-1]), {}, ["up_proj.g_idx' has shape"]),
        ("gptq-32", lambda t: None, {"checkpoint_format": "marlin"}, ["marlin"]),
        ("gptq-32", lambda t: None, {"bits": 3}, ["'bits'"]),
        ("packed-32-zeros-bf16", with_(".weight_zero_point", lambda z: z[:, :-1]), {}, ["zero_point' has shape"]),
        ("packed-32-zeros-bf16", with_(".weight_shape", lambda s: s[::-1] + 1), {}, ["weight_shape' says"]),
        ("packed-32-zeros-f32", with_(".weight_scale", lambda s: s + np.float32(1e-7)), {}, ["neither F16 nor BF16"]),
        ("packed-32-zeros-bf16", lambda t: None, {"format": "nvfp4-pack-quantized"}, ["'format'", "nvfp4"]),
        ("packed-32-zeros-bf16", lambda t: None, {"config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}}},
         ["'num_bits'"]),
        ("fp8-block", without(".weight_scale_inv"), {}, ["up_proj.weight' is of type F8_E4M3", "_scale_inv"]),
        ("fp8-block", with_(".weight_scale_inv", lambda s: s[:1]), {}, ["does not fit"]),
        ("fp8-block", lambda t: None, {"weight_block_size": [128, 48]}, ["blocks of 48 inputs"]),
        ("fp8-block", lambda t: None, {"weight_block_size": [0, 128]}, ["'weight_block_size'"]),
        ("fp8-block", with_(".weight", lambda w: folders.Typed("F8_E5M2", w.array)), {}, ["F8_E5M2"]),
        ("mxfp4-packed", without(".weight_scale"), {}, ["weight_scale' is missing"]),
        ("nf4", without(".weight.absmax"), {}, ["absmax' is missing"]),
        ("nf4", with_(".weight.absmax", lambda a: a[1:]), {}, ["scales"]),
        ("nf4", with_(".weight.quant_map", lambda m: m * np.float32(0.5)), {}, ["NF4"]),
        ("nf4", with_(".weight.quant_state.bitsandbytes__nf4", lambda s: s[:-1]), {}, ["JSON"]),
        ("nf4", with_(".weight.quant_state.bitsandbytes__nf4", lambda s: np.frombuffer(
            b'{"shape":[4611686018427387904,4],"blocksize":64}', dtype=np.uint8)), {}, ["'shape'"]),
        ("nf4-double", without(".weight.nested_absmax"), {}, ["nested_absmax' is missing"]),
        ("nf4", lambda t: None, {"load_in_8bit": True}, ["load_in_8bit"]),
        ("nf4", lambda t: None, {"bnb_4bit_quant_type": "fp4"}, ["fp4"]),
    ]
    for name, change, config, wanted in cases:
        said = damaged(name, change, config)
        expect(said and all(word in said for word in wanted), f"{name} {config} {wanted}: {said or 'opens'}")


def rewrite(reader, path, tensors, **options):
    """A GGUF file with the keys of another one, and these tensors: name -> (raw, type), raw None: as they are."""
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, arch, **options)
    for f in reader.fields.values():
        if f.name.startswith("GGUF.") or f.name in ("general.architecture", "tokenizer.ggml.merges"):
            continue  # the writer refuses empty arrays
        kind = f.types[0]
        writer.add_key_value(f.name, f.contents(), kind, f.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for t in reader.tensors:
        raw, kind = tensors.get(t.name, (None, t.tensor_type))
        writer.add_tensor(t.name, t.data if raw is None else raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


SCALES = {"IQ4_XS": 5e-5, "IQ2_XXS": 1e-3, "IQ2_XS": 1e-3, "IQ2_S": 1e-3, "IQ3_XXS": 4e-4, "IQ3_S": 4e-4, "IQ4_NL": 1e-3}


def random_blocks(rng, name, shape):
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // elements, size), dtype=np.uint8)
    if name == "MXFP4":
        blocks[..., 0] = rng.integers(121, 124, blocks.shape[:-1])
    else:
        scales = (SCALES[name] * rng.uniform(0.5, 1.5, blocks.shape[:-1])).astype(np.float16)
        blocks[..., :2] = scales[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1), kind


def check_gguf(tiny):
    reader = gguf.GGUFReader(tiny / "wide.gguf")
    matrices = [t for t in reader.tensors if len(t.shape) > 1]
    for name in ("IQ4_XS", "MXFP4", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"):
        rng = np.random.default_rng(7)
        coded = {t.name: random_blocks(rng, name, tuple(int(n) for n in reversed(t.shape))) for t in matrices}
        rewrite(reader, folder / f"{name}.gguf", coded)
        plain = {n: (gguf.dequantize(raw, kind).astype(np.float32), gguf.GGMLQuantizationType.F32) for n, (raw, kind) in coded.items()}
        rewrite(reader, folder / "f32.gguf", plain)
        error = difference(logits(folder / f"{name}.gguf", name), want := logits(folder / "f32.gguf", name))
        print(f"{name}: {error:.2g}", flush=True)
        expect(error < LIMIT and np.isfinite(want).all(), f"GGUF {name} is off by {error:.3g}")
        shown = json.loads(run("show", folder / f"{name}.gguf", "--json").stdout)
        expect(name in shown["weight_types"], f"GGUF {name}: show says {shown['weight_types']}")
    # gpt-oss's experts, three dimensions
    oss = gguf.GGUFReader(tiny / "gpt-oss-F32.gguf")
    experts = [t for t in oss.tensors if "_exps.weight" in t.name]
    rng = np.random.default_rng(8)
    coded = {t.name: random_blocks(rng, "MXFP4", tuple(int(n) for n in reversed(t.shape))) for t in experts}
    rewrite(oss, folder / "oss.gguf", coded)
    rewrite(oss, folder / "f32.gguf", {n: (gguf.dequantize(raw, kind), gguf.GGMLQuantizationType.F32) for n, (raw, kind) in coded.items()})
    error = difference(logits(folder / "oss.gguf"), logits(folder / "f32.gguf"))
    print(f"gpt-oss GGUF: {error:.2g}", flush=True)
    expect(error < LIMIT, f"gpt-oss in GGUF is off by {error:.3g}")
    # what is not read
    raw, kind = np.zeros((512, 100), dtype=np.uint8), gguf.GGMLQuantizationType.IQ1_S
    rewrite(reader, folder / "iq1.gguf", {"blk.1.ffn_up.weight": (raw, kind)})
    said = error_of(folder / "iq1.gguf")
    expect("IQ1_S" in said and "blk.1.ffn_up.weight" in said, f"IQ1_S: {said}")


def check_split(tiny):
    whole = logits(tiny / "wide.gguf")
    rewrite(gguf.GGUFReader(tiny / "wide.gguf"), folder / "split.gguf", {}, split_max_tensors=12, small_first_shard=True)
    (folder / "split.gguf").unlink(missing_ok=True)
    parts = sorted(folder.glob("split-*.gguf"))
    expect(len(parts) >= 4, f"the gguf package wrote {parts}")
    for name in (parts[0], parts[-1], folder / "split"):
        expect(np.array_equal(logits(name, str(name)), whole), f"{name} has other logits than the whole file")
        shown = run("show", name, "--json")
        expect(shown.returncode == 0 and json.loads(shown.stdout)["layers"] == 4, f"show {name}: {shown.stderr}")
        expect(run("plan", name).returncode == 0, f"plan {name}")
    with Server(QUIRE, folder / "split") as server:
        status, _, answer = server.call("POST", "/v1/completions", {"model": "m", "prompt": [1, 2, 3], "max_tokens": 4})
        expect(status == 200 and answer["usage"]["completion_tokens"] == 4, f"a server of parts: {answer}")
        with open(parts[-1], "ab") as file:
            file.write(b"x")
        end = time.time() + 60
        while f"{parts[-1].name} had" not in server.output() and time.time() < end:
            time.sleep(0.2)
        expect(f"{parts[-1].name} had" in server.output(), f"a changed part: {server.output()}")
    second = parts[1].rename(folder / "away")
    said = error_of(parts[0])
    expect(second and parts[1].name in said and f"part 2 of {len(parts)}" in said, f"a missing part: {said}")
    shutil.copy(parts[2], parts[1])
    expect("its name says 2" in error_of(parts[0]), "a part twice is not refused")


with tempfile.TemporaryDirectory() as made:
    folder = pathlib.Path(made)
    tiny = folder / "tiny"
    tiny.mkdir()
    subprocess.run([WRITE_TINY, tiny], check=True)
    checks = {"split": lambda: check_split(tiny), "gguf": lambda: check_gguf(tiny), "folders": check_folders,
              "threads": check_threads_and_chunks, "damage": check_damage}
    for name in sys.argv[3:] or checks:
        checks[name]()
sys.exit(f"{len(failures)} failed" if failures else 0)
