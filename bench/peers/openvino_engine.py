"""OpenVINO GenAI's engine with continuous batching, set up alike for openvino_worker.py and openvino_server.py."""
import argparse

import numpy as np
import openvino
import openvino_genai

VERSION = f"openvino-genai {openvino_genai.get_version()}"


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", default="", help="KV precision; empty for its own default (u8)")
    parser.add_argument("--chunk", type=int, default=512, help="most tokens in one step")
    parser.add_argument("--cache-gb", type=int, default=4)
    return parser.parse_args()


def open_pipeline(args, prefix_caching):
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = args.cache_gb
    scheduler.max_num_batched_tokens = args.chunk
    scheduler.max_num_seqs = 64
    scheduler.enable_prefix_caching = prefix_caching
    properties = {"INFERENCE_NUM_THREADS": args.threads}
    if args.kv:
        properties["KV_CACHE_PRECISION"] = args.kv
    return openvino_genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", properties)


def add_request(pipeline, number, ids, count):
    """Greedy, `count` tokens whatever they are."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = count
    config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
    return pipeline.add_request(number, openvino.Tensor(np.array([ids], np.int64)), config)
