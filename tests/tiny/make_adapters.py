"""What PEFT computes with the adapters of src/model/tiny_adapter.cc on the tiny models, in fp32, kept in adapters.json for
tiny_adapter_test.

    build/release/tests/write_tiny FOLDER && python tests/tiny/make_adapters.py FOLDER

Needs what make_logits.py needs, and peft. Run this again when a case or the writer changes.
"""
import json
import pathlib
import sys

import numpy as np
import peft
import torch

from make_logits import POSITIONS, PROMPT, load

MODELS = {"llama-qv": "llama-F32", "llama-all": "llama-F32", "qwen2-qv": "qwen2-F32", "qwen2-all": "qwen2-F32",
          "mixtral-attention": "mixtral-F32", "phi3-fused": "phi3-F32", "llama-late": "llama-F32"}


def main():
    torch.set_num_threads(1)
    folder, cases = pathlib.Path(sys.argv[1]), {}
    for name, model in MODELS.items():
        base = load(folder / f"{model}.gguf")
        with torch.no_grad():
            plain = base(torch.tensor([PROMPT])).logits[0].numpy()
            adapted = peft.PeftModel.from_pretrained(base, folder / "adapters" / name).float().eval()
            loaded = [p for n, p in adapted.named_parameters() if "lora_" in n]
            assert loaded and all(float(p.abs().max()) > 0 for p in loaded)
            logits = adapted(input_ids=torch.tensor([PROMPT])).logits[0].numpy()
        moved = np.abs(logits - plain).max(axis=1) / np.abs(plain).max()
        print(name, len(loaded), "matrices; moved at the positions:", [round(float(moved[p]), 3) for p in POSITIONS])
        cases[name] = [[float(f"{x:.6g}") for x in logits[p]] for p in POSITIONS]
    rows = ",\n".join(f'"{name}": {json.dumps(case, separators=(",", ":"))}' for name, case in cases.items())
    (pathlib.Path(__file__).parent / "adapters.json").write_text(
        f'{{"prompt": {json.dumps(PROMPT)},\n"positions": {POSITIONS},\n"cases": {{\n{rows}\n}}}}\n')


if __name__ == "__main__":
    main()
