"""Answers of a given shape, asked for with the openai client from a real server on a real model.

    scripts/python tests/server/check_structured.py build/release/quire MODEL.gguf

Every answer that came to its end must parse and validate; streamed, batched and repeated ones must be the same.
"""
import concurrent.futures
import json
import os
import re
import sys
import time

import jsonschema
import openai
import pydantic
from serving import Server

quire, model = sys.argv[1:3]
if not os.path.exists(model):
    print(f"skipped: {model} is not there")
    sys.exit(77)
server = Server(quire, model)
client = server.openai()

checks = 0


def check(fact, what):
    global checks
    checks += 1
    if not fact:
        print("FAILED:", what)
        raise AssertionError(what)


def ask(text, **more):
    more.setdefault("temperature", 0)
    more.setdefault("max_tokens", 120)
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], **more)


def of_schema(schema, strict=True):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


def closed(properties, **more):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
            **more}


word = {"type": "string", "maxLength": 16}
schemas = {
    "nested": closed({"name": word, "home": closed({"city": word, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}})}),
    "enum": closed({"color": {"enum": ["red", "green", "blue"]}, "mode": {"const": "fast"}}),
    "array": closed({"tags": {"type": "array", "items": word, "minItems": 2, "maxItems": 3}}),
    "ref": {**closed({"a": {"$ref": "#/$defs/point"}, "b": {"$ref": "#/$defs/point"}}),
            "$defs": {"point": closed({"x": {"type": "integer", "minimum": -9, "maximum": 9}, "y": {"type": "boolean"}})}},
    "recursive": {"$ref": "#/$defs/node", "$defs": {"node": closed(
        {"value": {"type": "integer", "minimum": 0, "maximum": 99},
         "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}})}},
    "numbers": closed({"age": {"type": "integer", "minimum": 18, "maximum": 65},
                       "height": {"type": "string", "pattern": r"^[12]\.[0-9]{2}m$"}}),
    "unicode": closed({"saison": {"enum": ["été", "hiver", "冬", "☀️"]}, "mot": word}),
    "formats": closed({"day": {"type": "string", "format": "date"}, "id": {"type": "string", "format": "uuid"}}),
    "union": closed({"v": {"anyOf": [{"type": "integer", "maximum": 99, "minimum": 0}, {"type": "null"}, word]}}),
    "types": closed({"v": {"type": ["boolean", "null"]}}),
    "tuple": {"type": "array", "prefixItems": [word, {"type": "boolean"}], "items": False, "minItems": 2},
    "optional": {"type": "object", "properties": {"a": word, "b": {"type": "boolean"}}, "required": ["b"],
                 "additionalProperties": False},
}
weather = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.",
           "parameters": closed({"city": word, "unit": {"enum": ["celsius", "fahrenheit"]}})}}
save = {"type": "function", "function": {"name": "save", "parameters": closed({"items": {
    "type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1, "maxItems": 2}},
    **{"$defs": {"item": closed({"id": {"type": "integer", "minimum": 0, "maximum": 9}})}})}}
arguments = {t["function"]["name"]: t["function"]["parameters"] for t in (weather, save)}


def shape(answer):
    """What must be the same, whoever else is asking."""
    return [(c.message.content, [(t.function.name, t.function.arguments) for t in c.message.tool_calls or []],
             c.finish_reason) for c in answer.choices]


def check_json(name, answer, schema):
    for choice in answer.choices:
        check(choice.finish_reason in ("stop", "length"), f"{name}: finish {choice.finish_reason}")
        if choice.finish_reason == "stop":
            try:
                jsonschema.validate(json.loads(choice.message.content), schema)
            except Exception as e:
                check(False, f"{name}: {choice.message.content!r}: {e}")


def check_calls(name, answer, allowed):
    for choice in answer.choices:
        check(choice.message.tool_calls, f"{name}: no call")
        if choice.finish_reason == "length":
            continue
        check(choice.finish_reason == "tool_calls", f"{name}: finish {choice.finish_reason}")
        check(choice.message.content is None, f"{name}: content {choice.message.content!r}")
        for call in choice.message.tool_calls:
            check(call.function.name in allowed, f"{name}: called {call.function.name}")
            jsonschema.validate(json.loads(call.function.arguments), arguments[call.function.name])


requests = []  # (name, arguments of ask, check of the answer)
for name, schema in schemas.items():
    requests.append((name, dict(text=f"Give me an example of {name} as JSON.", response_format=of_schema(schema)),
                     lambda a, n=name, s=schema: check_json(n, a, s)))
    requests.append((name + ", drawn", dict(text=f"Invent something ({name}).", temperature=1, seed=11, n=2,
                                            response_format=of_schema(schema, strict=False)),
                     lambda a, n=name, s=schema: check_json(n, a, s)))
requests += [
    ("json_object", dict(text="A JSON object about a cat.", response_format={"type": "json_object"}, max_tokens=60),
     lambda a: check_json("json_object", a, {"type": "object"})),
    ("regex", dict(text="Say yes.", extra_body={"structured_outputs": {"regex": r"(yes|no)[!?]{1,2} \d{2,3}"}}),
     lambda a: check(re.fullmatch(r"(yes|no)[!?]{1,2} \d{2,3}", a.choices[0].message.content), "regex")),
    ("choice", dict(text="Cat or dog?", extra_body={"structured_outputs": {"choice": ["cat", "dog", "été \"x\""]}}),
     lambda a: check(a.choices[0].message.content in ("cat", "dog", "été \"x\""), "choice")),
    ("grammar", dict(text="A sum.", extra_body={"structured_outputs": {
        "grammar": "root ::= n \"+\" n \"=\" n\nn ::= [0-9] [0-9]?\n"}}),
     lambda a: check(re.fullmatch(r"\d\d?\+\d\d?=\d\d?", a.choices[0].message.content), "grammar")),
    ("structured_outputs.json", dict(text="JSON", extra_body={"structured_outputs": {"json": json.dumps(schemas["enum"])}}),
     lambda a: check_json("structured_outputs.json", a, schemas["enum"])),
    ("penalties, bias, minimum", dict(text="JSON", response_format=of_schema(schemas["array"]), frequency_penalty=1.5,
                                      presence_penalty=1, temperature=0.9, seed=3, top_p=0.9,
                                      extra_body={"min_tokens": 100, "top_k": 40, "repetition_penalty": 1.2}),
     lambda a: (check_json("penalties", a, schemas["array"]),
                check(a.choices[0].finish_reason == "stop", "a grammar that is complete ends before min_tokens"))),
    ("tool, required", dict(text="Weather in Paris?", tools=[weather, save], tool_choice="required"),
     lambda a: check_calls("required", a, ("get_weather", "save"))),
    ("tool, one call", dict(text="Weather in Paris?", tools=[weather, save], tool_choice="required",
                            parallel_tool_calls=False, temperature=1, seed=5, n=3),
     lambda a: (check_calls("one call", a, ("get_weather", "save")),
                check(all(len(c.message.tool_calls) == 1 for c in a.choices), "one call"))),
    ("tool, named", dict(text="Hi", tools=[weather, save],
                         tool_choice={"type": "function", "function": {"name": "save"}}),
     lambda a: (check_calls("named", a, ("save",)), check(len(a.choices[0].message.tool_calls) == 1, "named once"))),
    ("tool, auto", dict(text="What is the weather in Paris?", tools=[weather], tool_choice="auto", max_tokens=60),
     lambda a: [jsonschema.validate(json.loads(t.function.arguments), arguments[t.function.name])
                for t in a.choices[0].message.tool_calls or [] if a.choices[0].finish_reason == "tool_calls"]),
]

try:
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda r: ask(**r[1]), requests))
    ended = 0
    for (name, _, verify), answer in zip(requests, together):
        verify(answer)
        ended += all(c.finish_reason != "length" for c in answer.choices)
    print(f"{len(requests)} requests together: {time.monotonic() - began:.0f} s, {ended} came to their end")
    check(ended >= len(requests) * 3 // 4, "most answers come to their end")

    for i in range(0, len(requests), 3):
        name, what, _ = requests[i]
        check(shape(ask(**what)) == shape(together[i]), f"{name}: alone and batched differ")
    print("alone = batched")

    # Streamed: the same text, the same calls.
    for i in [*range(1, len(requests), 5), *(i for i, r in enumerate(requests) if r[0].startswith("tool, "))]:
        name, what, _ = requests[i]
        more = dict(what)
        texts, calls = {}, {}
        for chunk in ask(**more, stream=True):
            for c in chunk.choices:
                texts[c.index] = texts.get(c.index, "") + (c.delta.content or "")
                for t in c.delta.tool_calls or []:
                    one = calls.setdefault((c.index, t.index), ["", ""])
                    one[0] += t.function.name or ""
                    one[1] += t.function.arguments or ""
        for c in together[i].choices:
            check(texts[c.index] == (c.message.content or ""), f"{name}: streamed text differs")
            whole = [[t.function.name, t.function.arguments] for t in c.message.tool_calls or []]
            check([v for k, v in sorted(calls.items()) if k[0] == c.index] == whole, f"{name}: streamed calls differ")
    print("streamed = whole")

    # Log-probabilities belong to the tokens that were drawn, and stop strings still cut.
    answer = ask("JSON", response_format=of_schema(schemas["nested"]), logprobs=True, top_logprobs=2).choices[0]
    text = b"".join(bytes(t.bytes) for t in answer.logprobs.content).decode()
    check(text.startswith(answer.message.content), f"logprobs spell {text!r}, not {answer.message.content!r}")
    check(all(t.logprob <= 0 for t in answer.logprobs.content), "logprobs are at most 0")
    stopped = ask("JSON", response_format=of_schema(schemas["nested"]), stop=["city"]).choices[0]
    check(stopped.finish_reason == "stop" and stopped.message.content.endswith('"home": {"'), "stop string")

    class Pet(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        legs: int = pydantic.Field(ge=0, le=8)

    parsed = client.chat.completions.parse(model="m", messages=[{"role": "user", "content": "A pet."}],
                                           response_format=Pet, temperature=0, max_tokens=100)
    check(isinstance(parsed.choices[0].message.parsed, Pet), "pydantic")

    calling = ask("Weather?", tools=[weather], tool_choice="required", parallel_tool_calls=False).choices[0].message
    turn = client.chat.completions.create(model="m", max_tokens=8, temperature=0, tools=[weather], tool_choice="none", messages=[
        {"role": "user", "content": "Weather?"}, calling.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": calling.tool_calls[0].id, "content": "18 C"}])
    check(turn.choices[0].message.tool_calls is None, "the turn after a tool's answer")

    completions = client.completions.create(model="m", prompt=["A: ", "B: "], max_tokens=20, n=2, temperature=1, seed=2,
                                            extra_body={"structured_outputs": {"regex": "[a-f]{4,6}"}})
    check(len(completions.choices) == 4 and all(re.fullmatch("[a-f]{4,6}", c.text) for c in completions.choices),
          "completions")

    def refused(param, contains, **what):
        try:
            ask("x", **what)
        except openai.BadRequestError as e:
            check(e.body["param"] == param and contains in e.body["message"], f"refused with {e.body}")
            check(".cc" not in e.body["message"], f"a path in {e.body}")
        else:
            check(False, f"not refused: {what}")

    refused("response_format", "objekt", response_format=of_schema({"type": "objekt"}))
    refused("response_format", "uniqueItems", response_format=of_schema({"type": "array", "items": {}, "uniqueItems": True}))
    refused("response_format", "none", response_format=of_schema({"$ref": "#/$defs/none"}))
    refused("structured_outputs", "parenthesis", extra_body={"structured_outputs": {"regex": "(a"}})
    refused("structured_outputs", "root", extra_body={"structured_outputs": {"grammar": "a ::= \"b\""}})
    broken = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "x"}}}}}
    refused("tools", "'f'", tools=[broken], tool_choice="required")
    check(ask("Hi", tools=[broken], max_tokens=4).choices[0], "a tool that is only offered need not be right")
    print(f"{checks} checks passed, {time.monotonic() - began:.0f} s")
finally:
    server.stop()
