#!/usr/bin/env python3
"""Asks a `quire` program many questions over HTTP and writes down a digest of every answer.

    tests/answers/record.py build/release/quire after.json      everything
    tests/answers/record.py build/release/quire after.json --quick
    tests/answers/record.py build/release/quire after.json --only smollm2/format
    tests/answers/record.py build/release/quire after.json --clients 1   the trace, one request at a time
    tests/answers/compare.py before.json after.json

The questions and their names are in cases.py; those asked at random and in a crowd in crowd.py. A digest covers token
ids, texts and log-probabilities to the last bit. The same program gives the same file, however busy the machine is.
Models come from scripts/fetch-model; QUIRE_TEST_MODEL and QUIRE_TEST_GEMMA name others.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import resource
import sys
import time

import cases
import crowd
from asking import Server, digest, post, refused
from compare import differences


def find_models():
    """Path by name, of those that are there."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "quire/models"
    known = {"smollm2": ("QUIRE_TEST_MODEL", "smollm2-135m-instruct-q4_1.gguf"),
             "gemma": ("QUIRE_TEST_GEMMA", "gemma-3-270m-q4_k_m.gguf")}
    found = {name: pathlib.Path(os.environ.get(variable) or cache / file) for name, (variable, file) in known.items()}
    return {name: path for name, path in found.items() if path.exists()}


def say(text):
    print(text, file=sys.stderr, flush=True)


class Record:
    def __init__(self, options, models):
        self.options, self.models = options, models
        self.cases, self.reasons, self.traces = {}, {}, {}

    def wanted(self, name):
        return not self.options.only or any(name.startswith(part) for part in self.options.only)

    def refuse(self, name, reason):
        self.cases[name] = "refused"
        self.reasons[name] = reason

    def serve(self, model, threads, memory, *arguments):
        return Server(self.options.quire, self.models[model], "--threads", threads, "--kv-cache-memory", memory, *arguments)

    def ask(self, server, name, case):
        if case.alone:
            server.post("/v1/kv/clear", {})
        for body in case.before:
            status, answer = post(server, "/v1/completions", body)
            assert status == 200 or refused(status, answer), (name, answer)
        status, answer = post(server, case.path, case.body)
        if refused(status, answer):
            self.refuse(name, answer["error"]["message"])
        elif status != 200:
            raise RuntimeError(f"{name}: {status} {answer}")
        else:
            self.cases[name] = digest(answer)

    def group(self, group):
        asked = [(f"{group.name}/{c.name}", c) for c in group.cases if self.wanted(f"{group.name}/{c.name}")]
        if not asked:
            return
        began = time.time()
        try:
            server = self.serve(group.model, group.threads, "512MiB", *group.arguments)
        except RuntimeError as e:
            if "this processor has no" not in str(e):
                raise
            return self.refuse(group.name, str(e))
        with server:
            for name, case in asked:
                self.ask(server, name, case)
        say(f"{group.name}: {len(asked)} answers in {time.time() - began:.0f} s")

    def trace(self, trace):
        if not self.wanted(trace.name):
            return
        began = time.time()
        with self.serve(trace.model, trace.threads, trace.memory, "--max-num-seqs", 8) as server:
            answers, fared = crowd.run(server, trace, self.options.clients)
        for number, answer in answers.items():
            self.cases[f"{trace.name}/{number:04}"] = answer
        self.traces[trace.name] = fared
        say(f"{trace.name}: {len(answers)} answers in {time.time() - began:.0f} s, {fared}")

    def write(self, path):
        out = {"cases": dict(sorted(self.cases.items())), "reasons": dict(sorted(self.reasons.items())), "traces": self.traces}
        path.write_text(json.dumps(out, indent=0) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="a part of it, within a minute")
    parser.add_argument("--only", action="append", help="cases whose names begin so; may be repeated")
    parser.add_argument("--expect", type=pathlib.Path, help="a file of before; exits 1 where an answer differs from it")
    parser.add_argument("--clients", type=int, default=8, help="of the trace (8)")
    options = parser.parse_args()
    models = find_models()
    for name in ("smollm2", "gemma"):
        if name not in models:
            print(f"skipped: there is no model {name}; scripts/fetch-model fetches it")
            sys.exit(77)
    record = Record(options, models)
    try:  # most servers have one thread, and run side by side
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            done = [pool.submit(record.group, group) for group in cases.groups(options.quick)]
            done += [pool.submit(record.trace, trace) for trace in crowd.traces(options.quick)]
            for one in done:
                one.result()
    finally:
        record.write(options.out)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    say(f"{len(record.cases)} answers, {len(record.reasons)} refused, {used.ru_utime + used.ru_stime:.0f} s of processor time")
    if options.expect:
        lines = differences(json.loads(options.expect.read_text())["cases"], record.cases)
        sys.exit("\n".join(lines + [f"{len(lines)} answers differ from {options.expect}"]) if lines else 0)


if __name__ == "__main__":
    main()
