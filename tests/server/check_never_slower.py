"""The first token of a stored prompt, from a Redis that is as slow as the test says, beside the first token of computing it.

    check_never_slower.py QUIRE WRITE_TINY MODEL [--rounds 5] [--points "1000:1e6:0.05 ..."]

Two servers of a real model, one of them with the store. Both sides take turns; of each point the median of the ratios counts, and
it may be 1.05. On a machine where others work figures vary: the table says all of them.
"""
import os
import pathlib
import random
import secrets
import shutil
import statistics
import sys
import tempfile
import time

from check_stores import Redis, free_port, tier
from fault_proxy import Proxy
from serving import Server, wait_for

QUIRE = sys.argv[1]
MODEL = os.environ.get("QUIRE_TEST_MODEL") or sys.argv[3]
ROUNDS = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 5
if not os.path.exists(MODEL) or not shutil.which("redis-server"):
    sys.exit(77)
POINTS = [tuple(float(x) for x in p.split(":")) for p in sys.argv[sys.argv.index("--points") + 1].split()] if "--points" in sys.argv else \
    [(tokens, rate, delay) for tokens in (32, 128, 500, 2000, 8000) for rate in (1e6, 1e7, 1e8, float("inf"))
     for delay in (0, 0.01, 0.2)]
chance = random.Random()


def first_token_ms(server, tokens):
    answer = server.post("/v1/completions", {"model": "m", "prompt": tokens, "max_tokens": 1, "kv": {"report": ["usage", "timing"]}})
    return answer["kv"]["timing"]["ttft_ms"], answer["kv"]["cached_tokens"]


def measure(server, alone, proxy, tokens, rate, delay):
    ratios, cached = [], []
    for i in range(ROUNDS):
        prompt = [chance.randrange(500, 40000) for _ in range(int(tokens))]
        proxy.rate, proxy.delay = float("inf"), 0
        before = tier(server)["written"]["blocks"]
        first_token_ms(server, prompt)
        wait_for(lambda: tier(server)["written"]["blocks"] >= before + int(tokens) // 32, 60)
        for one in (server, alone):  # both begin with fresh memory
            one.post("/v1/kv/clear", {"select": {"all": True}})
        time.sleep(0.2)
        assert tier(server)["open"]
        proxy.rate, proxy.delay = rate, delay
        sides = [lambda: first_token_ms(alone, prompt), lambda: first_token_ms(server, prompt)]
        (computed, _), (stored, had) = [s() for s in sides] if i % 2 else [s() for s in sides[::-1]][::-1]
        ratios.append(stored / computed)
        cached.append(had)
    return ratios, cached


with tempfile.TemporaryDirectory() as top:
    secret = pathlib.Path(top, "secret")
    secret.write_text(secrets.token_hex(64))
    secret.chmod(0o600)
    node = Redis(top, free_port())
    worst = 0
    try:
        with Proxy(node.port) as slow, Server(QUIRE, MODEL, "-t", "1") as other, \
                Server(QUIRE, MODEL, "-t", "1", "--kv-store", f"redis://127.0.0.1:{slow.port}?patience=1000", "--kv-secret-file",
                       secret) as storing:
            for _ in range(2):
                for one in (storing, other):
                    first_token_ms(one, [chance.randrange(500, 40000) for _ in range(600)])
            for point in POINTS:
                found, from_store = measure(storing, other, slow, *point)
                median = statistics.median(found)
                worst = max(worst, median)
                print(f"{point[0]:5.0f} tokens, {point[1]:.0e} bytes/s, {point[2] * 1e3:3.0f} ms: {median:.3f} of computing "
                      f"({', '.join(f'{r:.2f}' for r in found)}); cached {statistics.median(from_store):.0f}", flush=True)
    finally:
        node.stop()
sys.exit(1 if worst > 1.05 else 0)
