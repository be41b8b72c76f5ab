"""What a peer's program has in common: bench/compare starts it, sends one JSON request a line and reads one answer.

    {"work": "prefill", "tokens": 512, "salt": 3}                     a prompt nobody has seen, to its first token
    {"work": "decode", "depth": 2048, "batch": 1, "count": 32}        steps of `batch` sequences behind `depth` tokens

The answer is {"tokens_per_second": x}. A program that is ready prints {"ready": version} after its first token.
"""
import json
import sys

VOCABULARY = 48000  # ids below this are ordinary text in the default model


def prompt(count, salt):
    """Token ids that depend on salt from the first on, so that no engine can reuse an earlier prompt."""
    state, ids = salt * 2654435761 + 12345, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append(20 + (state >> 33) % (VOCABULARY - 20))
    return ids


def rate_between_tokens(times):
    """Tokens a second while every sequence was decoding: from the last one's first token to the first one's last.

    times: for each sequence, when each of its tokens arrived.
    """
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    return sum(begin < x <= end for t in times for x in t) / (end - begin)


def serve(version, works):
    """Answers requests until standard input ends. works: name -> function(**request) -> tokens per second."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a library prints must not look like an answer
    print(json.dumps({"ready": version}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        work = works[request.pop("work")]
        print(json.dumps({"tokens_per_second": work(**request)}), file=answers, flush=True)


def serve_generator(name, generate):
    """Serves an engine that is a function: generate(prompts, count) gives the start and each token's time of arrival."""
    def prefill(tokens, salt):
        start, times = generate([prompt(tokens, salt)], 1)
        return tokens / (times[0][0] - start)

    def decode(depth, batch, count):
        _, times = generate([prompt(depth, sequence) for sequence in range(batch)], count + 1)
        return rate_between_tokens(times)

    prefill(16, 0)
    serve(name, {"prefill": prefill, "decode": decode})
