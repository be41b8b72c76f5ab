"""llama.cpp through the low-level interface of llama-cpp-python, as the benchmarks and the reference use it.

    engine = Engine("model.gguf", context=8192, sequences=1, flash=True)
    engine.feed([1, 2, 3], sequence=0, position=0, want="last")
"""
import ctypes

import llama_cpp as lc
import numpy as np

VERSION = f"llama-cpp-python {lc.__version__}"
_FLASH = {True: 1, False: 0}
_TYPES = {"f16": lc.GGML_TYPE_F16, "q8_0": lc.GGML_TYPE_Q8_0, "q4_0": lc.GGML_TYPE_Q4_0}
_silent = lc.llama_log_callback(lambda level, text, data: None)
lc.llama_log_set(_silent, ctypes.c_void_p(0))
lc.llama_backend_init()


class Engine:
    """One model and one context; a sequence is a row of the batch."""

    def __init__(self, path, context, sequences=1, flash=True, threads=2, batch=2048, micro_batch=512,
                 kv_type="f16"):
        params = lc.llama_model_default_params()
        self.model = lc.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"error: llama.cpp cannot load {path}")
        params = lc.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = batch
        params.n_ubatch = micro_batch
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = _FLASH[flash]
        params.kv_unified = sequences == 1
        params.type_k = params.type_v = _TYPES[kv_type]
        params.no_perf = True
        self.context = lc.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"error: llama.cpp cannot make a context of {context} tokens")
        self.vocabulary = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.limit = batch
        self.batch = lc.llama_batch_init(batch, 0, 1)

    def clear(self):
        lc.llama_memory_clear(lc.llama_get_memory(self.context), True)

    def forget_from(self, position, sequence=-1):
        """Drops what stands at `position` and after, of one sequence or (-1) of all."""
        if not lc.llama_memory_seq_rm(lc.llama_get_memory(self.context), sequence, position, -1):
            raise SystemExit(f"error: llama.cpp could not forget tokens from {position}")

    def decode(self, rows):
        """One step over rows of (token, position, sequence, wants logits)."""
        self.batch.n_tokens = len(rows)
        for i, (token, position, sequence, want) in enumerate(rows):
            self.batch.token[i] = token
            self.batch.pos[i] = position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = want
        status = lc.llama_decode(self.context, self.batch)
        if status != 0:
            raise SystemExit(f"error: llama_decode returned {status} for {len(rows)} tokens")
        lc.llama_synchronize(self.context)

    def feed(self, ids, sequence=0, position=0, want="last"):
        """Feeds a run of tokens; yields (index of the first, logits of its rows) when want is "all"."""
        for start in range(0, len(ids), self.limit):
            part = ids[start:start + self.limit]
            last = start + len(part) == len(ids)
            self.decode([(token, position + start + i, sequence, want == "all" or (last and i == len(part) - 1))
                         for i, token in enumerate(part)])
            if want == "all":
                yield start, np.ctypeslib.as_array(lc.llama_get_logits(self.context), (len(part), self.vocabulary))

    def prefill(self, ids, sequence=0, position=0):
        for _ in self.feed(ids, sequence, position):
            pass

    def logits(self, row=-1):
        return np.ctypeslib.as_array(lc.llama_get_logits_ith(self.context, row), (self.vocabulary,))

    def close(self):
        lc.llama_batch_free(self.batch)
        lc.llama_free(self.context)
        lc.llama_model_free(self.model)
