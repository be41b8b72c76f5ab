"""vLLM on the CPU for bench/compare: vllm_worker.py MODEL_FOLDER --threads 2 (a Hugging Face folder; fp32 weights)"""
import argparse
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--threads", type=int, default=2)
args = parser.parse_args()
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{args.threads - 1}")
import vllm

from worker import serve_generator


def main():
    model = vllm.LLM(args.model, dtype="float32", max_model_len=8192, enable_prefix_caching=False, max_num_seqs=64,
                     disable_log_stats=True)
    engine, requests = model.llm_engine, 0

    def generate(prompts, count):
        nonlocal requests
        sampling = vllm.SamplingParams(temperature=0, max_tokens=count, min_tokens=count, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        place = {}
        for ids in prompts:
            requests += 1
            place[str(requests)] = len(place)
            engine.add_request(str(requests), {"prompt_token_ids": ids}, sampling)
        times = [[] for _ in prompts]
        while engine.has_unfinished_requests():
            for output in engine.step():
                arrived = times[place[output.request_id]]
                arrived += [time.perf_counter()] * (len(output.outputs[0].token_ids) - len(arrived))
        return start, times

    serve_generator(f"vllm-cpu {vllm.__version__}", generate)


if __name__ == "__main__":
    main()
