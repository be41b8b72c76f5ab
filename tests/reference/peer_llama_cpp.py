"""Measures llama.cpp on the reference's contexts, for the record in peers.json.

    PEERS/llama.cpp/bin/python tests/reference/peer_llama_cpp.py smollm2 MODEL.gguf [--logits FOLDER] [--contexts N]

FOLDER holds the whole logits that make_reference.py --logits kept; with it the whole KL is computed too.
"""
import argparse
import json
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[2] / "bench" / "peers"))
import llama_cpp_engine
import measure


def differences(engine, answers):
    """Of the greedy prompts: the reference's margin where llama.cpp first leaves it, by prompt number."""
    out = {}
    for number, answer in enumerate(answers):
        engine.clear()
        engine.prefill(answer["prompt_ids"])
        for step, (token, margin) in enumerate(zip(answer["token_ids"], answer["margin"])):
            if int(engine.logits().argmax()) != token:
                out[number] = {"step": step, "margin": margin}
                break
            engine.decode([(token, len(answer["prompt_ids"]) + step, 0, True)])
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("model")
    parser.add_argument("--logits")
    parser.add_argument("--contexts", type=int)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    arrays, described = measure.load(args.name)
    record = {}
    for flash in (False, True):
        engine = llama_cpp_engine.Engine(args.model, arrays["contexts"].shape[1], flash=flash, threads=args.threads, batch=512)
        tally = measure.Tally(arrays, described["every"], args.logits and f"{args.logits}/{args.name}-{{}}.npy")
        for number, ids in enumerate(arrays["contexts"][:args.contexts]):
            engine.clear()
            for first, logits in engine.feed(ids.tolist(), want="all"):
                for at in range(0, len(logits), 64):
                    tally.rows(number, first + at, logits[at:at + 64])
            print(f"context {number}: {tally.result()}", file=sys.stderr)
        left = differences(engine, described["answers"])
        record[f"flash {'on' if flash else 'off'}"] = {**tally.result(), "greedy_differs": len(left), "first_differences": left}
        engine.close()
    record = {"version": llama_cpp_engine.VERSION, "kv": "f16", **record}
    file = measure.HERE / "peers.json"
    peers = json.loads(file.read_text()) if file.exists() else {}
    peers.setdefault(args.name, {})["llama.cpp"] = record
    file.write_text(json.dumps(peers, indent=1) + "\n")


main()
