"""Makes embeddings.json: last states of SmolLM2, pooled, as transformers computes them in fp32 on the dequantized weights.

    scripts/python --long tests/reference/make_embeddings.py MODEL.gguf

tests/server/check_embeddings.py compares /v1/embeddings with it.
"""
import base64
import json
import pathlib
import sys

import numpy as np
import torch

import make_reference

TEXTS = [
    "Hello",
    "The capital of France is Paris, and the river that runs through it is called the Seine.",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n",
    "A cache keeps what was computed before, so that it need not be computed again. " * 6,
]


def main():
    tokenizer, model = make_reference.load(sys.argv[1])
    cases = []
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            states = model.model(torch.tensor([ids])).last_hidden_state[0].double().numpy()
        pooled = {"last": states[-1], "mean": states.mean(axis=0), "cls": states[0]}
        case = {"text": text, "tokens": ids}
        for name, state in pooled.items():
            unit = (state / np.linalg.norm(state)).astype("<f2")
            case[name] = base64.b64encode(unit.tobytes()).decode()
        cases.append(case)
    path = pathlib.Path(__file__).parent / "embeddings.json"
    path.write_text(json.dumps({"model": "SmolLM2", "numbers": "base64 of little-endian f16, of length 1", "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
