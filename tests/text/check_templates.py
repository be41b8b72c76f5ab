"""Renders real chat templates with jinja2 and with ours on random conversations, and compares.

    check_templates.py RENDER_MAIN [--count N] [--seed S] [--fetch] [PLACE...]

Templates are other people's, so none are kept here: they are taken from GGUF files, folders and wheels (any *.jinja
file, any "chat_template" string in JSON) at the PLACEs given, by default quire/templates and quire/models in the cache
folder. --fetch downloads, without installing them, three packages that carry more than a hundred templates into the
first. Exits 77 when there is no jinja2 or no template.
"""
import argparse
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import zipfile

try:
    import reference
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

MARK = "QzX"  # in every string of the conversation; must never be called the template's own
SPECIALS = ["<|im_end|>", "<|im_start|>", "</s>", "<s>", "[INST]", "[/INST]", "<|eot_id|>", "<end_of_turn>",
            "<｜User｜>", "<|end|>", "<think>", "</think>", "<tool_call>", "<|START_OF_TURN_TOKEN|>"]
WORDS = ["hello", "Grüße", "日本語", "emoji 🙂", "line\nbreak", "tab\there", "  spaced  ", "it's", '"quoted"', "back\\slash",
         "{{ not.jinja }}", "{% if %}", "a < b & c > d", "\u00a0nbsp", "naïve", "ß", "\n", "é", "1.5", "null"]


def gguf_template(path):
    """The string value of tokenizer.chat_template, found without a GGUF library."""
    key = b"tokenizer.chat_template"
    head = path.open("rb").read(64 << 20)
    at = head.find(struct.pack("<Q", len(key)) + key)
    if at < 0:
        return None
    at += 8 + len(key)
    kind, size = struct.unpack_from("<IQ", head, at)
    return head[at + 12:at + 12 + size].decode() if kind == 8 else None


def strings_in_json(text):
    def walk(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                if key == "chat_template" and isinstance(inner, str):
                    yield inner
                elif key == "chat_template" and isinstance(inner, list):
                    yield from (e["template"] for e in inner if isinstance(e, dict) and "template" in e)
                else:
                    yield from walk(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner)
    try:
        yield from walk(json.loads(text))
    except ValueError:
        return


def templates_in(name, text):
    if name.endswith(".jinja"):
        yield text
    elif name.endswith(".json") and '"chat_template"' in text:
        yield from strings_in_json(text)


def find_templates(places):
    """{source: where it was found}, each source once."""
    found = {}

    def take(where, name, data):
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return
        for source in templates_in(name, text):
            if "{%" in source or "{{" in source:
                found.setdefault(source, where)

    for place in places:
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for file in files:
            name = file.name
            if not file.is_file():
                continue
            if name.endswith((".jinja", ".json")) and file.stat().st_size < 32 << 20:
                take(str(file), name, file.read_bytes())
            elif name.endswith(".whl"):
                with zipfile.ZipFile(file) as wheel:
                    for inner in sorted(wheel.namelist()):
                        if inner.endswith((".jinja", ".json")):
                            take(f"{name}:{inner}", inner, wheel.read(inner))
            elif name.endswith(".gguf"):
                source = gguf_template(file)
                if source:
                    found.setdefault(source, str(file))
    return found


PACKAGES = ["trl", "axolotl", "ldp"]


def fetch(folder):
    if any(folder.glob("*.whl")):
        return
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *PACKAGES])
    if done.returncode != 0:
        print("no packages of templates: pip download failed; going on with what is here")


class Conversations:
    def __init__(self, rng):
        self.rng = rng

    def text(self):
        rng = self.rng
        if rng.random() < 0.05:
            return ""
        parts = [rng.choice(SPECIALS if rng.random() < 0.25 else WORDS) for _ in range(rng.randint(1, 5))]
        parts.insert(rng.randrange(len(parts) + 1), MARK)
        return rng.choice(["", " ", "\n"]).join(parts)

    def content(self, plain):
        if plain or self.rng.random() < 0.85:
            return self.text()
        return [{"type": "text", "text": self.text()} for _ in range(self.rng.randint(1, 3))]

    def json_value(self, depth=0):
        rng = self.rng
        kind = rng.randrange(8 if depth < 2 else 5)
        if kind == 0:
            return rng.choice([None, True, False])
        if kind == 1:
            return rng.choice([0, -3, 42, 2**53, 2**64 - 1])
        if kind == 2:
            return rng.choice([0.5, -1.25, 1e-7, 3.0, 1e22, 0.1])
        if kind < 5:
            return self.text()
        if kind == 5:
            return [self.json_value(depth + 1) for _ in range(rng.randint(0, 3))]
        return {f"k{i}{MARK}": self.json_value(depth + 1) for i in range(rng.randint(0, 3))}

    def tool(self, index):
        rng = self.rng
        properties = {}
        for i in range(rng.randint(0, 3)):
            p = {"type": rng.choice(["string", "integer", "number", "boolean", "array", "object"]),
                 "description": self.text()}
            if p["type"] == "array":
                p["items"] = {"type": "string"}
            if p["type"] == "string" and rng.random() < 0.3:
                p["enum"] = [self.text() for _ in range(rng.randint(1, 3))]
            properties[f"arg{i}"] = p
        function = {"name": f"tool_{index}", "description": self.text(),
                    "parameters": {"type": "object", "properties": properties,
                                   "required": list(properties)[:rng.randint(0, 2)]}}
        return {"type": "function", "function": function}

    def call(self, index, as_text):
        arguments = {f"arg{i}": self.json_value() for i in range(self.rng.randint(0, 3))}
        return {"id": f"call{index:05d}", "type": "function",
                "function": {"name": f"tool_{index}", "arguments": json.dumps(arguments) if as_text else arguments}}

    def messages(self, tools):
        rng = self.rng
        plain = rng.random() < 0.8
        as_text = rng.random() < 0.2
        out = []
        if rng.random() < 0.5:
            out.append({"role": "system" if rng.random() < 0.9 else "developer",
                        "content": "" if rng.random() < 0.1 else self.content(plain)})
        for _ in range(rng.randint(1, 3)):
            out.append({"role": "user", "content": self.content(plain)})
            if tools and rng.random() < 0.5:
                calls = [self.call(i, as_text) for i in range(rng.randint(1, 2) if rng.random() < 0.4 else 1)]
                message = {"role": "assistant", "tool_calls": calls}
                if rng.random() < 0.7:
                    message["content"] = rng.choice([None, "", self.text()])
                out.append(message)
                for call in calls:
                    out.append({"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"],
                                "content": self.text()})
            if rng.random() < 0.85:
                message = {"role": "assistant", "content": self.content(plain)}
                if rng.random() < 0.2:
                    message["reasoning_content"] = self.text()
                if rng.random() < 0.2:
                    message["content"] = f"<think>{self.text()}</think>{self.text()}"
                out.append(message)
        if rng.random() < 0.6 and out[-1]["role"] == "assistant":
            out.append({"role": "user", "content": self.content(plain)})
        if rng.random() < 0.05:
            rng.shuffle(out)
        return out

    def context(self):
        rng = self.rng
        tools = [self.tool(i) for i in range(rng.randint(1, 3))] if rng.random() < 0.4 else None
        context = {"messages": self.messages(tools), "tools": tools, "documents": None,
                   "add_generation_prompt": rng.random() < 0.7,
                   "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
        for name in ("enable_thinking", "thinking", "keep_cot", "add_default_system_prompt"):
            if rng.random() < 0.2:
                context[name] = rng.random() < 0.5
        if rng.random() < 0.2:
            context["date_string"] = "26 Jul 2024"
        return context


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("places", nargs="*", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=24, help="conversations per template")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fetch", action="store_true")
    parser.add_argument("--show", type=int, default=5, help="differences to print")
    options = parser.parse_intermixed_args()
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "quire"
    if options.fetch:
        fetch(cache / "templates")
    places = options.places or [cache / "templates", cache / "models"]
    found = find_templates([p for p in places if p.exists()])
    if not found:
        print(f"skipped: no chat template in {', '.join(map(str, places))}")
        sys.exit(77)

    conversations = Conversations(random.Random(options.seed))
    cases = [(source, conversations.context()) for source in found for _ in range(options.count)]
    equal = both_fail = 0
    bad = []
    unsupported = {}
    for (source, context), answer in zip(cases, reference.ours(options.binary, cases)):
        want, error = reference.expected(source, context)
        leaked = [s for s, data in answer.get("segments", []) if not data and MARK in s]
        if want is not None and answer.get("text") == want and not leaked:
            equal += 1
        elif want is None and "error" in answer:
            both_fail += 1
        elif answer.get("code") == 4:
            unsupported.setdefault(answer["error"], found[source])
        else:
            bad.append((source, context, want, error, answer, leaked))
    for source, context, want, error, answer, leaked in bad[:options.show]:
        print("---", found[source])
        print("context:", json.dumps(context, ensure_ascii=False))
        print("jinja2: ", repr(want) if want is not None else error)
        print("ours:   ", repr(answer.get("text", answer.get("error"))))
        if leaked:
            print("data called template text:", leaked)
    for error, where in unsupported.items():
        print("unsupported:", where, error)
    print(f"{len(found)} templates, {len(cases)} conversations: {equal} equal, {both_fail} refused by both, "
          f"{len(bad)} different, {len(unsupported)} unsupported constructs")
    sys.exit(bool(bad or unsupported or equal == 0))


main()
