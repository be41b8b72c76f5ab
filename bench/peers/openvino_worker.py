"""OpenVINO GenAI for bench/compare: openvino_worker.py MODEL.gguf --threads 2 [--kv u8|f16]

Continuous batching with paged attention, which is also what its pipeline for one conversation runs on.
"""
import argparse
import time

import numpy as np
import openvino
import openvino_genai

from worker import prompt, rate_between_tokens, serve

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--kv", default="", help="KV precision; empty for its own default (u8)")
parser.add_argument("--chunk", type=int, default=512, help="most tokens in one step")
args = parser.parse_args()

scheduler = openvino_genai.SchedulerConfig()
scheduler.cache_size = 4
scheduler.max_num_batched_tokens = args.chunk
scheduler.max_num_seqs = 64
scheduler.enable_prefix_caching = False
properties = {"INFERENCE_NUM_THREADS": args.threads}
if args.kv:
    properties["KV_CACHE_PRECISION"] = args.kv
pipeline = openvino_genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", properties)
requests = 0


def generate(prompts, count):
    """Runs prompts together; returns the start and, for each, when each of its tokens arrived."""
    global requests
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = count
    config.ignore_eos = True
    config.do_sample = False
    config.apply_chat_template = False
    start = time.perf_counter()
    handles = []
    for ids in prompts:
        requests += 1
        handles.append(pipeline.add_request(requests, openvino.Tensor(np.array([ids], np.int64)), config))
    times = [[] for _ in prompts]
    while pipeline.has_non_finished_requests():
        pipeline.step()
        now = time.perf_counter()
        for arrived, handle in zip(times, handles):
            if handle.can_read():
                for output in handle.read().values():
                    arrived += [now] * len(output.generated_ids)
    return start, times


def prefill(tokens, salt):
    start, times = generate([prompt(tokens, salt)], 1)
    return tokens / (times[0][0] - start)


def decode(depth, batch, count):
    _, times = generate([prompt(depth, sequence) for sequence in range(batch)], count + 1)
    return rate_between_tokens(times)


prefill(16, 0)
serve(f"openvino-genai {openvino_genai.get_version()}", {"prefill": prefill, "decode": decode})
