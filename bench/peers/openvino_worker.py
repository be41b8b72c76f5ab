"""OpenVINO GenAI for bench/compare: openvino_worker.py MODEL.gguf --threads 2 [--kv u8|f16]

Continuous batching with paged attention, which is also what its pipeline for one conversation runs on.
"""
import time

from openvino_engine import VERSION, add_request, arguments, open_pipeline
from worker import serve_generator

pipeline = open_pipeline(arguments(), prefix_caching=False)
requests = 0


def generate(prompts, count):
    """Runs prompts together; returns the start and, for each, when each of its tokens arrived."""
    global requests
    start = time.perf_counter()
    handles = []
    for ids in prompts:
        requests += 1
        handles.append(add_request(pipeline, requests, ids, count))
    times = [[] for _ in prompts]
    while pipeline.has_non_finished_requests():
        pipeline.step()
        now = time.perf_counter()
        for arrived, handle in zip(times, handles):
            if handle.can_read():
                for output in handle.read().values():
                    arrived += [now] * len(output.generated_ids)
    return start, times


serve_generator(VERSION, generate)
