"""The cases of record.py, one request at a time: what is asked of which server.

A Group is one server, a Case one answer of it. The lists below are fixed, so that a format or a method that disappears is
noticed.
"""
import dataclasses
import random

FORMATS = ["f16", "f32", "bf16", "fp8-e4m3", "fp8-e5m2", "int8", "q8_0", "q5_1", "q4_1", "q4_0", "nvfp4", "hadamard-int4",
           "hadamard-int3", "hadamard-int2", "int3", "kivi-4", "kivi-2", "turbo-4", "turbo-3", "polar-rec", "qjl",
           "kvquant-3", "cq-4", "cq-3", "cq-2", "cq-1", "minicache"]
PAIRS = {"int8+hadamard-int4": {"k": "int8", "v": "hadamard-int4"},
         "f16+q4_0": {"k": "f16", "v": "q4_0"},
         "kivi-2,recent,sinks": {"k": "kivi-2", "recent_exact": 64, "sinks": 4},
         "int8,recent": {"k": "int8", "recent_exact": 40},
         "hadamard-int4,skip": {"k": "hadamard-int4", "skip_layers": [0, 1]}}

RETAIN = ["streaming", "window", "snapkv", "pyramidkv", "expected", "kvzip", "kvzip-uniform", "kvcompose", "keydiff", "knorm",
          "lagkv", "cur", "h2o", "observed", "scissorhands", "tova", "fastgen", "duo", "random", "ada-snapkv", "ada-expected",
          "critical-snapkv", "ada-critical-snapkv", "critical-h2o"]
MERGE = ["value", "d2o", "cam"]
CUT = ["streaming", "knorm", "expected", "kvzip", "h2o", "random"]

SELECT = {"quest": {"policy": "quest", "tokens": 96},
          "xattention": {"policy": "xattention", "threshold": 0.5},
          "vertical-slash": {"policy": "vertical-slash", "columns": 20, "diagonals": 20}}

SAMPLED = {"temperature": 1.0, "seed": 7, "logprobs": 2}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 99},
                                           "colors": {"type": "array", "items": {"enum": ["red", "green", "blue"]},
                                                      "minItems": 1, "maxItems": 2}},
          "required": ["name", "age", "colors"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather in a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"], "additionalProperties": False}}}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    body: dict
    path: str = "/v1/completions"
    alone: bool = False  # on a cleared cache
    before: tuple = ()   # requests that fill it first; their answers are not recorded


@dataclasses.dataclass(frozen=True)
class Group:
    name: str        # of the server
    model: str       # smollm2 or gemma
    arguments: tuple
    cases: list
    threads: int = 1


def story(seed, words):
    """So many words of English that nobody wrote."""
    chance = random.Random(f"story {seed}")
    subjects = ["The captain", "A young doctor", "My sister", "The old teacher", "Nobody", "The engineer", "A tired farmer",
                "The city council", "Our neighbour", "The last train"]
    verbs = ["opened", "forgot", "counted", "repaired", "described", "carried", "sold", "found", "painted", "hid"]
    objects = ["seven letters", "the red door", "a map of the harbour", "three broken clocks", "the blue notebook",
               "an apple", "the longest bridge", "two hundred stones", "a song", "the key"]
    places = ["in Paris", "behind the station", "on Monday", "before the storm", "near the river", "without a word",
              "for his brother", "at half past nine", "in the winter of 1912", "after the meeting"]
    out = []
    while len(out) < words:
        out += f"{chance.choice(subjects)} {chance.choice(verbs)} {chance.choice(objects)} {chance.choice(places)}.".split()
    return " ".join(out[:words])


def complete(prompt, tokens=20, **more):
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}


def chat(text, tokens=40, **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0, "return_token_ids": True,
            **more}


def lossy(**kv):
    return {"kv": {"allow_lossy": True, **kv}}


def both(name, body, **more):
    """Greedy, and drawn with a seed and log-probabilities."""
    return [Case(f"{name}/greedy", body, **more), Case(f"{name}/sampled", {**body, **SAMPLED}, **more)]


def format_cases(prompt, names=FORMATS, pairs=PAIRS):
    ways = {name: name for name in names} | pairs
    return [c for name, way in ways.items() for c in both(f"format/{name}", complete(prompt, **lossy(format=way)))]


def retain_cases(prompt, names=RETAIN):
    cases = []
    for name in names:
        cases += both(f"retain/{name}", complete(prompt, 24, **lossy(budget={"policy": name, "ratio": 0.3})))
    return cases


def policy_cases(prompt):
    """Retention with its options, windows, selection."""
    budget = lambda **b: complete(prompt, 24, **lossy(budget=b))
    cases = []
    for merge in MERGE:
        cases += both(f"merge/{merge}", budget(policy="snapkv", ratio=0.3, merge=merge))
    for name in CUT:  # the second goes on from the snapshot that the first left
        cases += both(f"cut/{name}", budget(policy=name, tokens=96, cut=160), alone=True)
        cases.append(Case(f"cut/{name}/again", budget(policy=name, tokens=96, cut=160), alone=True,
                          before=(budget(policy=name, tokens=96, cut=160),)))
    cases += both("retain/keydiff,every", budget(policy="keydiff", tokens=80, every=32))
    cases += both("retain/expected,fp8", complete(prompt, 24, **lossy(budget={"policy": "expected", "ratio": 0.3},
                                                                      format="fp8-e4m3")))
    cases += both("retain/tova,hadamard-int4", complete(prompt, 24, **lossy(budget={"policy": "tova", "ratio": 0.3},
                                                                            format="hadamard-int4")))
    cases += both("retain/snapkv,n", {**budget(policy="snapkv", ratio=0.3), "n": 3})
    cases += both("window/64", complete(prompt, **lossy(window={"size": 64})))
    cases += both("window/64,sink", complete(prompt, **lossy(window={"size": 64, "sink": 4})))
    for name, select in SELECT.items():
        cases += both(f"select/{name}", complete(prompt, **lossy(select=select)))
        cases += both(f"select/{name},int8", complete(prompt, **lossy(select=select, format="int8")))
    cases += both("select/xattention,h2o", complete(prompt, **lossy(select=SELECT["xattention"],
                                                                    budget={"policy": "h2o", "ratio": 0.3})))
    return cases


def cache_cases(prompt):
    """Answers that depend on what is cached."""
    first, second = story("first", 150), story("second", 150)
    cached = tuple(complete("It is said: " + text, 1) for text in (first, second))
    blended = "Question: " + second + " And then: " + first + " So what?"
    cases = []
    for share in (0, 0.2, 1):
        cases += both(f"blend/{share}", complete(blended, **lossy(reuse="approximate", recompute=share)), alone=True,
                      before=cached)
    for name in ("int8", "hadamard-int4", "kivi-2"):
        cases += both(f"convert/{name}", complete(prompt, **lossy(format=name, convert=True)), alone=True,
                      before=(complete(prompt, 1),))
    return cases


def answer_cases(prompt):
    """Ways of answering: choices, beams, penalties, grammars, log-probabilities."""
    short = story("short", 30)
    asked = lambda **more: complete(short, 24, **more)
    drawn = {"temperature": 0.9, "seed": 11}
    outputs = lambda **o: {"structured_outputs": o, "ignore_eos": False}
    return [
        Case("answer/n", asked(n=4, **drawn)),
        Case("answer/n,greedy", asked(n=2)),
        Case("answer/best_of", asked(n=2, best_of=4, **drawn)),
        Case("answer/beams", asked(n=3, use_beam_search=True)),
        Case("answer/beams,long", complete(prompt, 16, n=2, best_of=4, use_beam_search=True, length_penalty=0.5)),
        Case("answer/beams,int8", asked(n=2, use_beam_search=True, kv={"format": "int8"})),
        Case("answer/repetition", asked(repetition_penalty=1.3)),
        Case("answer/penalties", asked(presence_penalty=0.7, frequency_penalty=0.9, **drawn)),
        Case("answer/top_k", asked(top_k=20, **drawn)),
        Case("answer/top_p", asked(top_p=0.8, **drawn)),
        Case("answer/min_p", asked(min_p=0.05, typical_p=0.9, **drawn)),
        Case("answer/bias", asked(logit_bias={"100": 5, "200": -100, "300": 4})),
        Case("answer/bad_words", asked(bad_words=["the", " The"])),
        Case("answer/stop", asked(stop=[".", " a"])),
        Case("answer/stop_tokens", asked(stop_token_ids=list(range(100, 160)), min_tokens=4)),
        Case("answer/logprobs", asked(logprobs=5)),
        Case("answer/echo", {**asked(logprobs=1), "echo": True, "max_tokens": 4}),
        Case("answer/prompt_logprobs", asked(prompt_logprobs=2)),
        Case("answer/prompts", asked() | {"prompt": [short, "Once upon a time", prompt]}),
        Case("answer/ended", asked() | {"ignore_eos": False, "max_tokens": 60}),
        Case("grammar/regex", asked(**outputs(regex=r"(yes|no)[!?]{1,2} \d{2,3}"))),
        Case("grammar/choice", asked(**outputs(choice=["cat", "dog", "a horse"]))),
        Case("grammar/ebnf", asked(**outputs(grammar='root ::= n "+" n "=" n\nn ::= [0-9] [0-9]?\n'), **drawn)),
    ]


def chat_cases():
    ask = lambda name, text, **more: Case(f"chat/{name}", chat(text, **more), "/v1/chat/completions")
    drawn = {"temperature": 0.9, "seed": 11}
    shape = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}}
    return [ask("plain", "What is the capital of France?"),
            ask("sampled", "Tell me a story.", **drawn, logprobs=True, top_logprobs=2),
            ask("schema", "Invent a person, as JSON.", **shape),
            ask("schema,sampled", "Invent a person, as JSON.", **shape, **drawn, n=2),
            ask("tool", "Will it rain in Rome?", tools=[TOOL], tool_choice="required")]


def endless_cases():
    short = story("endless", 60)
    return [c for name in ("streaming", "window") for c in both(
        f"endless/{name}", complete(short, 300, **lossy(budget={"policy": name, "tokens": 96})))]


def few_cases(words, tokens=16):
    text = story("few", words)
    return (both("plain", complete(text, tokens)) + both("int8", complete(text, tokens, **lossy(format="int8"))) +
            both("hadamard-int4", complete(text, tokens, **lossy(format="hadamard-int4"))) +
            both("snapkv", complete(text, tokens, **lossy(budget={"policy": "snapkv", "ratio": 0.4}))))


def slow_cases():
    return both("plain", complete("The old teacher found", 4)) + both("int8", complete(story("slow", 26), 3, kv={"format": "int8"}))


def groups(quick):
    """Every server there is to start, without those of the trace."""
    for model in ("smollm2", "gemma"):
        prompt = story("long", 110 if quick else 240)
        if quick:
            cases = (format_cases(prompt, ["f16", "int8", "hadamard-int4", "kivi-2"], {"int8,recent": PAIRS["int8,recent"]}) +
                     retain_cases(prompt, ["streaming", "snapkv", "kvzip", "h2o", "ada-expected"]) + answer_cases(prompt))
        else:
            cases = (format_cases(prompt) + retain_cases(prompt) + policy_cases(prompt) + cache_cases(prompt) +
                     answer_cases(prompt))
        if model == "smollm2":  # the other has no chat template
            cases += chat_cases()
        yield Group(model, model, (), cases)
    if quick:
        return
    yield Group("smollm2/endless", "smollm2", ("--ctx-size", 256), endless_cases())
    for model in ("smollm2", "gemma"):
        for isa in ("scalar", "avx2", "avx512", "vnni", "bf16"):
            yield Group(f"{model}/isa/{isa}", model, ("--isa", isa), few_cases(120) if isa != "scalar" else slow_cases())
        yield Group(f"{model}/activations/int16", model, ("--activations", "int16"), few_cases(120))
    for name, arguments in {"block-16": ("--block-size", 16), "block-64": ("--block-size", 64),
                            "kv-int8": ("--kv-format", "int8", "--kv-recent-exact", 32),
                            "steps-64": ("--step-tokens", 64)}.items():
        yield Group(f"smollm2/server/{name}", "smollm2", arguments, few_cases(120))
    yield Group("smollm2/server/threads-2", "smollm2", (), few_cases(120), threads=2)
