"""Distances between an engine's logits and the reference; used by check.py and peer_llama_cpp.py. numpy only."""
import json
import os
import pathlib

import numpy as np

HERE = pathlib.Path(__file__).parent
MODELS = {
    "smollm2": ("QUIRE_TEST_MODEL", "smollm2-135m-instruct-q4_1.gguf"),
    "gemma": ("QUIRE_TEST_GEMMA", "gemma-3-270m-q4_k_m.gguf"),
}


def find_model(name):
    """Where the tests' models are: a variable says so, or the cache folder has them."""
    variable, file = MODELS[name]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get(variable) or f"{cache}/quire/models/{file}")


def load(name):
    """The checked-in reference of a model: (arrays, description)."""
    return np.load(HERE / f"{name}.npz"), json.loads((HERE / f"{name}.json").read_text())


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def kl_whole(reference, logits):
    """KL(reference || engine) of each row, from whole rows of logits."""
    p, q = log_softmax(reference), log_softmax(logits)
    return (np.exp(p) * (p - q)).sum(-1)


def kl_kept(ids, logprobs, rest, logits):
    """KL of each row where of the reference only the top log-probabilities and the remaining mass were kept.

    The remaining tokens count as one outcome, so this is a lower bound of kl_whole; README.md says how tight it is.
    """
    q = log_softmax(logits)
    q_top = np.take_along_axis(q, ids.astype(np.int64), -1)
    p_top, p_rest = logprobs.astype(np.float64), rest.astype(np.float64)
    # Half precision moved the sum a little; kl_whole's rows sum to one, so these must too.
    shift = np.log(np.exp(p_top).sum(-1) + np.exp(p_rest))
    p_top, p_rest = p_top - shift[:, None], p_rest - shift
    np.put_along_axis(q, ids.astype(np.int64), -np.inf, -1)
    q_rest = np.logaddexp.reduce(q, -1)
    return (np.exp(p_top) * (p_top - q_top)).sum(-1) + np.exp(p_rest) * (p_rest - q_rest)


class Tally:
    """Collects what an engine's logits say about the contexts of a reference, rows in any portions.

    rows(context, first, logits) takes consecutive rows; every position is needed for top-1 and perplexity,
    only those at 0, every, 2 * every, ... for KL.
    """

    def __init__(self, arrays, every, whole=None):
        self.arrays, self.every, self.whole = arrays, every, whole
        self.kept, self.full, self.same, self.nll = [], [], [], []

    def rows(self, context, first, logits):
        ids = self.arrays["contexts"][context]
        count = len(logits)
        self.same.append(logits.argmax(-1) == self.arrays["best"][context][first:first + count])
        following = ids[first + 1:first + 1 + count]
        self.nll.append(-log_softmax(logits[:len(following)])[np.arange(len(following)), following])
        offset = -first % self.every
        picked = logits[offset::self.every]
        if len(picked):
            row = (first + offset) // self.every
            span = slice(row, row + len(picked))
            self.kept.append(kl_kept(self.arrays["top_ids"][context][span], self.arrays["top_logprobs"][context][span],
                                     self.arrays["rest_logprob"][context][span], picked))
        if self.whole:
            reference = np.load(self.whole.format(context), mmap_mode="r")
            self.full.append(kl_whole(reference[first:first + count], logits))

    def result(self):
        out = {"tokens": sum(map(len, self.same)), "kl": float(np.concatenate(self.kept).mean()),
               "top1": float(np.concatenate(self.same).mean()),
               "perplexity": float(np.exp(np.concatenate(self.nll).mean()))}
        if self.full:
            out["kl_whole"] = float(np.concatenate(self.full).mean())
            out["kl_whole_median"] = float(np.median(np.concatenate(self.full)))
        return out
