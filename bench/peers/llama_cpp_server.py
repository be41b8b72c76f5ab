"""llama.cpp's own server, inside the package xllamacpp: llama_cpp_server.py MODEL.gguf --threads 2 --parallel 32

Continuous batching and prompt caching as that server has them by default; slots share room for --context tokens.
"""
import argparse
import importlib.metadata
import os
import socket

import xllamacpp

from server import announce

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--parallel", type=int, default=32)
parser.add_argument("--context", type=int, default=65536)
parser.add_argument("--slots", default="", help="folder that slots are saved in")
args = parser.parse_args()

answers = os.dup(1)
os.dup2(2, 1)  # what the library prints must not look like an answer
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
params = xllamacpp.CommonParams()
params.model.path = args.model
params.n_parallel = args.parallel
params.n_ctx = args.context
params.kv_unified = True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
params.port = port
params.offline = True
if args.slots:
    params.slot_save_path = args.slots + "/"
server = xllamacpp.Server(params)
server.handle_completions({"prompt": "Hello", "max_tokens": 1})
os.dup2(answers, 1)
announce(f"xllamacpp {importlib.metadata.version('xllamacpp')}", server.listening_address)
