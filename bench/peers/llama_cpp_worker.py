"""llama.cpp for bench/compare: llama_cpp_worker.py MODEL.gguf --threads 2 --flash on|off (KV in f16)"""
import argparse
import time

import llama_cpp_engine
from worker import prompt, serve

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--flash", choices=["on", "off"], default="on")
args = parser.parse_args()

engine, shape, filled = None, None, None


def use(context, sequences):
    """An engine of this shape; making one costs a second, so the last stays."""
    global engine, shape, filled
    if shape != (context, sequences):
        if engine:
            engine.close()
        engine = llama_cpp_engine.Engine(args.model, context, sequences, args.flash == "on", args.threads)
        shape, filled = (context, sequences), None


def prefill(tokens, salt):
    global filled
    use(8192, 1)
    engine.clear()
    filled = None
    ids = prompt(tokens, salt)
    start = time.perf_counter()
    engine.prefill(ids)
    engine.logits().argmax()
    return tokens / (time.perf_counter() - start)


def decode(depth, batch, count):
    global filled
    use((depth + count + 64) * batch if batch > 1 else 8192, batch)
    if filled != depth:
        engine.clear()
        for sequence in range(batch):
            engine.prefill(prompt(depth, sequence), sequence)
        filled = depth
    tokens = [100 + sequence for sequence in range(batch)]
    for warm in (True, False):  # the first token is not counted
        start = time.perf_counter()
        for step in range(1 if warm else count):
            engine.decode([(token, depth + step, sequence, True) for sequence, token in enumerate(tokens)])
            tokens = [int(engine.logits(row).argmax()) for row in range(batch)]
        seconds = time.perf_counter() - start
        for sequence in range(batch):
            engine.forget_from(depth, sequence)
    return batch * count / seconds


prefill(16, 0)
serve(llama_cpp_engine.VERSION, {"prefill": prefill, "decode": decode})
