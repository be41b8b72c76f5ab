"""What every dialect says about cached, created and computed tokens is what the engine did, over 1,000 random requests.

    tests/server/check_accounting.py QUIRE WRITE_TINY [REQUESTS] [SEED]
"""
import concurrent.futures
import json
import random
import subprocess
import sys
import tempfile
import time

from serving import Server

QUIRE, WRITE_TINY = sys.argv[1:3]
REQUESTS = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else 7

# (path, body, what the answer says: prompt, cached, newly kept (None: not said), completion)


def turns(texts, names=("user", "assistant")):
    return [(names[i % 2], text) for i, text in enumerate(texts)]


def chat(system, texts, limit):
    messages = [{"role": "system", "content": system}] + [{"role": r, "content": t} for r, t in turns(texts)]
    return {"model": "m", "messages": messages, "max_tokens": limit, "temperature": 0, "kv": {}}


def of_openai(answer):
    u = answer["usage"]
    assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"], u
    d = u["prompt_tokens_details"]
    kv = answer["kv"]
    assert kv["computed_tokens"] == u["prompt_tokens"] - d["cached_tokens"], (u, kv)
    return u["prompt_tokens"], d["cached_tokens"], d["cache_write_tokens"], u["completion_tokens"]


def completion(system, texts, limit):
    return {"model": "m", "prompt": system + "".join(texts), "max_tokens": limit, "temperature": 0, "kv": {}}


def responses(system, texts, limit):
    return {"model": "m", "instructions": system, "input": [{"role": r, "content": t} for r, t in turns(texts)],
            "max_output_tokens": max(16, limit), "temperature": 0, "store": False}


def of_responses(answer):
    u = answer["usage"]
    assert u["total_tokens"] == u["input_tokens"] + u["output_tokens"], u
    d = u["input_tokens_details"]
    return u["input_tokens"], d["cached_tokens"], d["cache_write_tokens"], u["output_tokens"]


def anthropic(system, texts, limit):
    system = [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]
    return {"model": "m", "system": system, "messages": [{"role": r, "content": t} for r, t in turns(texts)],
            "max_tokens": limit, "temperature": 0}


def of_anthropic(answer):
    u = answer["usage"]
    created = u["cache_creation_input_tokens"]
    assert created == sum(u["cache_creation"].values()), u
    prompt = u["input_tokens"] + created + u["cache_read_input_tokens"]
    return prompt, u["cache_read_input_tokens"], created, u["output_tokens"]


def gemini(system, texts, limit):
    return {"systemInstruction": {"parts": [{"text": system}]},
            "contents": [{"role": r, "parts": [{"text": t}]} for r, t in turns(texts, ("user", "model"))],
            "generationConfig": {"maxOutputTokens": limit, "temperature": 0}}


def of_gemini(answer):
    u = answer["usageMetadata"]
    completion_tokens = u.get("candidatesTokenCount", 0) + u.get("thoughtsTokenCount", 0)
    assert u["totalTokenCount"] == u["promptTokenCount"] + completion_tokens, u
    return u["promptTokenCount"], u.get("cachedContentTokenCount", 0), None, completion_tokens


def ollama(system, texts, limit):
    messages = [{"role": "system", "content": system}] + [{"role": r, "content": t} for r, t in turns(texts)]
    return {"model": "m", "messages": messages, "stream": False, "options": {"num_predict": limit, "temperature": 0}}


def of_ollama(answer):
    return answer["prompt_eval_count"], None, None, answer["eval_count"]


def llama(system, texts, limit):
    return {"prompt": system + "".join(texts), "n_predict": limit, "temperature": 0}


def of_llama(answer):
    t = answer["timings"]
    assert t["cache_n"] + t["prompt_n"] == answer["tokens_evaluated"], answer
    return answer["tokens_evaluated"], answer["tokens_cached"], None, answer["tokens_predicted"]


DIALECTS = {
    "openai chat": ("/v1/chat/completions", chat, of_openai),
    "openai completions": ("/v1/completions", completion, of_openai),
    "responses": ("/v1/responses", responses, of_responses),
    "anthropic": ("/v1/messages", anthropic, of_anthropic),
    "gemini": ("/v1beta/models/m:generateContent", gemini, of_gemini),
    "ollama": ("/api/chat", ollama, of_ollama),
    "llama": ("/completion", llama, of_llama),
}


COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_hits_total",
            "vllm:request_prefill_kv_computed_tokens_sum")


def counters(server):
    """Of /metrics, once they rest: the engine publishes its counts after the step that ended the last answer."""
    last = None
    while (now := counters_now(server)) != last:
        last = now
        time.sleep(0.1)
    return now


def counters_now(server):
    """Counters without labels."""
    _, _, text = server.call("GET", "/metrics", raw=True)
    out = {}
    for line in text.decode().splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = name.split("{")[0]
            if name in COUNTERS:
                out[name] = out.get(name, 0) + float(value)
    return out


def main():
    source = random.Random(SEED)
    words = ["rain", "sun", "Paris", "wind", "7", "and", "cold", "sea"]

    def text(low, high):
        return " ".join(source.choice(words) for _ in range(source.randint(low, high)))

    systems = [text(20, 120) for _ in range(6)]
    openings = [[text(5, 60) for _ in range(source.choice((1, 3)))] for _ in range(12)]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([WRITE_TINY, folder], check=True)
        with Server(QUIRE, f"{folder}/llama-F32.gguf") as server:
            there = {}
            for name, (path, body, _) in DIALECTS.items():
                status, _, answer = server.call("POST", path, body("s", ["x"], 1), raw=True)
                if status not in (404, 405, 501):  # otherwise this server does not speak it
                    assert status == 200, (name, status, answer)
                    there[name] = DIALECTS[name]
            before = counters(server)
            plans = []
            for _ in range(REQUESTS):
                texts = list(source.choice(openings))
                if source.random() < 0.5:
                    texts += [text(1, 20), text(1, 20)]
                plans.append((source.choice(sorted(there)), source.choice(systems), texts, source.randint(1, 4)))

            def run(plan):
                name, system, texts, limit = plan
                path, body, read = there[name]
                status, headers, answer = server.call("POST", path, body(system, texts, limit))
                assert status == 200, (name, status, answer)
                prompt, cached, created, completion_tokens = read(answer)
                headers = {k.lower(): v for k, v in headers.items()}
                engine = int(headers["x-kv-prompt-tokens"]), int(headers["x-kv-cached-tokens"])
                cached = engine[1] if cached is None else cached
                assert (prompt, cached) == engine, (name, prompt, cached, engine)
                assert cached < prompt and cached + (created or 0) <= prompt, (name, answer)
                return prompt, cached, completion_tokens, name

            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                done = list(pool.map(run, plans))
            after = counters(server)
    moved = {name: after[name] - before.get(name, 0) for name in after}
    prompt, cached, completion_tokens = (sum(d[i] for d in done) for i in range(3))
    for name, value in zip(COUNTERS, (prompt, completion_tokens, cached, prompt - cached)):
        assert moved[name] == value, f"{name}: the engine counted {moved[name]:.0f}, answers say {value}"
    assert cached > prompt / 4, "most prompts begin like another one"
    by_name = {name: sum(d[3] == name for d in done) for name in there}
    print(f"{len(done)} requests {json.dumps(by_name)}: {prompt} prompt tokens, {cached} of them cached, as the engine says")


main()
