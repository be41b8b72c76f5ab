"""Random small templates over the whole grammar, rendered with jinja2 and with ours.

    check_grammar.py RENDER_MAIN [--count N] [--seed S] [--sample FILE]

--sample writes cases with what jinja2 makes of them; the unit test replays tests/text/jinja_cases.json without Python.
Exits 77 when there is no jinja2.
"""
import argparse
import json
import random
import sys

try:
    import reference
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

CONTEXT = {
    "s": "Hello World", "t": "  Grüße, ΣΑΣ ßtraße\n日本 🙂 it's \"x\"  ", "e": "", "u": "a-b (c) [d]\tE\nf", "n": 7, "z": 0, "m": -3,
    "big": 2**40, "f": 2.5, "g": -0.1, "h": 1e20, "b": True, "no": False, "nil": None,
    "li": [3, 1, 2, 1], "ls": ["b", "A", "c", "a"], "le": [], "lm": [1, "a", None, 2.5, True, [1, "x"], {"k": "v"}],
    "d": {"b": 1, "a": "x", "C": None}, "de": {}, "dn": {"x": {"y": [10, 20, {"z": "deep"}]}, "items": 5, "l": ["p", "q"]},
    "messages": [{"role": "system", "content": "Be nice.\n"}, {"role": "user", "content": " hi <|end|> "},
                 {"role": "assistant", "content": "yo", "n": 2}, {"role": "user", "content": "", "n": 1}],
}
STRINGS = ["'a'", "'x y'", '"it\'s"', "'é'", "''", "'\\n'", "'a,b,,c'", "' pad '", "'<b>&'", "'%s'", "'AbC'", "'1'", "'3.7'", "'\\u00e9\\t'"]


class Generator:
    def __init__(self, rng):
        self.rng = rng
        self.names = []  # loop variables and the like, of any type
        self.macros = []
        self.loops = 0

    def pick(self, *options):
        return self.rng.choice(options)

    def chance(self, p):
        return self.rng.random() < p

    # ---- expressions, by the type they should have; now and then they have another
    def expr(self, kind=None, depth=3):
        kind = kind or self.pick("str", "str", "int", "float", "bool", "list", "dict", "any")
        if self.chance(0.04):
            kind = "any"
        if self.names and self.chance(0.12):
            return self.pick(*self.names)
        text = getattr(self, kind)(depth)
        return f"({text})" if self.chance(0.08) else text

    def any(self, depth):
        return self.pick("nil", "missing", "nil", "b", "lm", "messages", "s", "n", "f", "d", "(1, 'a')", "(1,)", "()", "[]", "{}", "missing.x" if self.chance(0.1) else "d.zz",
                         "lm[" + str(self.rng.randint(-8, 7)) + "]")

    def str(self, depth):
        if depth <= 0 or self.chance(0.25):
            return self.pick("s", "t", "e", "u", *STRINGS)
        d = depth - 1
        x = lambda: self.operand("str", d)
        return self.pick(
            lambda: f"{x()} + {x()}", lambda: f"{x()} ~ {self.operand(None, d)}", lambda: f"{x()} * {self.rng.randint(-1, 3)}",
            lambda: f"{x()}|{self.pick('upper', 'lower', 'title', 'capitalize', 'trim', 'string', 'reverse', 'first', 'last')}",
            lambda: f"{x()}.{self.pick('strip()', 'lstrip()', 'rstrip()', 'upper()', 'lower()', 'title()', 'capitalize()', 'swapcase()')}",
            lambda: f"{x()}.{self.pick('strip', 'lstrip', 'rstrip')}({self.pick(*STRINGS)})",
            lambda: f"{x()}.replace({x()}, {x()})", lambda: f"{x()}|replace({x()}, {x()})",
            lambda: f"{x()}.replace({x()}, {x()}, {self.rng.randint(-1, 2)})",
            lambda: f"{self.pick('s', 't', 'u', 'e', 'missing')}[{self.slice()}]", lambda: f"{x()}[{self.rng.randint(-4, 4)}]",
            lambda: f"{self.operand('list', d)}|join({self.pick('', *STRINGS)})", lambda: f"{self.pick(*STRINGS)}.join({self.pick('ls', x() + '.split()')})",
            lambda: f"{self.operand(None, d)}|tojson{self.pick('', '', '(indent=2)', '(indent=4, sort_keys=true)', '(ensure_ascii=true)')}",
            lambda: f"{self.operand(None, d)}|string", lambda: f"{x()} if {self.expr('bool', d)} else {x()}",
            lambda: f"{self.pick('missing', 'nil', 'e', 'd.a')}|default({x()}{self.pick('', ', true')})",
            lambda: f"{x()}|indent({self.pick('', '2', '3, true', 'first=true', 'blank=true')})",
            lambda: f"{self.pick('d', 'dn.x', 'messages[0]', 'messages[-1]')}{self.pick('.a', '.role', '.content', '[' + repr('role') + ']')}",
            lambda: f"'%s-%s' % ({self.operand(None, d)}, {self.operand(None, d)})", lambda: f"'%d|%5.2f|%-4s|%%' % (n, f, {x()})",
            lambda: f"'{{}} {{}}'.format({self.operand(None, d)}, {x()})", lambda: f"{x()}.{self.pick('center', 'ljust', 'rjust')}({self.rng.randint(0, 14)}, '*')",
            lambda: f"{x()}.{self.pick('removeprefix', 'removesuffix')}({x()})", lambda: f"{x()}.partition({self.pick(*STRINGS)})[{self.rng.randint(0, 2)}]",
            lambda: f"'5'.zfill({self.rng.randint(0, 4)})",
        )()

    def int(self, depth):
        if depth <= 0 or self.chance(0.25):
            return self.pick("n", "z", "m", "big", "0", "1", "2", "10", "1_000", "li[0]")
        d = depth - 1
        x = lambda: self.operand("int", d)
        return self.pick(
            lambda: f"{x()} {self.pick('+', '-', '*', '//', '%')} {x()}", lambda: f"-{x()}", lambda: f"{x()} ** {self.rng.randint(0, 3)}",
            lambda: f"{self.operand('str', d)}|length", lambda: f"{self.operand('list', d)}|{self.pick('length', 'count')}", lambda: f"{self.operand('str', d)}|int",
            lambda: f"{self.operand(None, d)}|int{self.pick('', '(5)')}", lambda: f"{self.operand('float', d)}|int", lambda: f"li|{self.pick('sum', 'min', 'max', 'first', 'last')}",
            lambda: f"{self.operand('str', d)}.{self.pick('find', 'rfind', 'count')}({self.operand('str', d)}{self.pick('', '', ', 1', ', -3, 4')})",
            lambda: f"{x()}|abs", lambda: f"{self.operand('str', d)}|wordcount", lambda: f"messages|sum(attribute='n')", lambda: f"ls.index('c')",
        )()

    def float(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick("f", "g", "h", "1.5", "0.1", "1e3", "2.0", "1e-7", "123456789.125")
        d = depth - 1
        return self.pick(
            lambda: f"{self.operand('float', d)} {self.pick('+', '-', '*', '/', '//', '%')} {self.operand('int', d)}", lambda: f"{self.operand('int', d)} / {self.operand('int', d)}",
            lambda: f"{self.operand('float', d)}|round{self.pick('', '(1)', '(2)', '(1, ' + repr('floor') + ')', '(0, ' + repr('ceil') + ')')}", lambda: f"{self.operand('str', d)}|float",
            lambda: f"{self.operand('float', d)}|abs", lambda: f"-{self.operand('float', d)}",
        )()

    def bool(self, depth):
        if depth <= 0 or self.chance(0.15):
            return self.pick("true", "false", "b", "no", "True")
        d = depth - 1
        test = self.pick("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "callable", "upper", "lower")
        return self.pick(
            lambda: f"{self.operand('int', d)} {self.pick('<', '<=', '>', '>=', '==', '!=')} {self.operand(self.pick('int', 'float'), d)}",
            lambda: f"{self.operand('str', d)} {self.pick('<', '==', '!=', '>=')} {self.operand('str', d)}", lambda: f"{self.operand('int', d)} < {self.operand('int', d)} <= {self.operand('int', d)}",
            lambda: f"{self.operand(None, d)} {self.pick('==', '!=')} {self.operand(None, d)}", lambda: f"not {self.operand(None, d)}", lambda: f"{self.operand(None, d)} {self.pick('and', 'or')} {self.operand(None, d)}",
            lambda: f"{self.operand('str', d)} {self.pick('in', 'not in')} {self.operand(self.pick('str', 'list', 'dict'), d)}", lambda: f"{self.operand(None, d)} is {self.pick('', 'not ')}{test}",
            lambda: f"{self.operand('int', d)} is {self.pick('odd', 'even', 'divisibleby 3', 'eq 7', 'gt 2', 'equalto(1)', 'in [1, 2]')}",
            lambda: f"{self.operand('str', d)}.{self.pick('startswith', 'endswith')}({self.pick(*STRINGS, '(' + repr('a') + ', ' + repr('H') + ')')})",
            lambda: f"{self.operand('str', d)}.{self.pick('isdigit', 'isalpha', 'isspace', 'isupper', 'islower', 'isalnum')}()",
        )()

    def list(self, depth):
        if depth <= 0 or self.chance(0.2):
            return self.pick("li", "ls", "le", "lm", "messages", "dn.l", "[1, 2]", "['x', n]", "range(4)|list", "range(5, 0, -2)", "d.keys()", "d.values()|list")
        d = depth - 1
        return self.pick(
            lambda: f"[{self.expr(None, d)}, {self.expr(None, d)}]", lambda: f"{self.operand('list', d)} + {self.operand('list', d)}", lambda: f"{self.pick('li', 'ls', 'lm', 'messages', 'nil', 'range(6)')}[{self.slice()}]",
            lambda: f"{self.operand('str', d)}.{self.pick('split()', 'split(' + repr(',') + ')', 'rsplit(' + repr('a') + ', 1)', 'split(' + repr(' ') + ', 1)', 'splitlines()', 'splitlines(true)', 'rsplit(none, 1)', 'split(maxsplit=1)')}",
            lambda: f"{self.pick('li', 'ls')}|sort{self.pick('', '(reverse=true)', '(case_sensitive=true)')}", lambda: f"ls|map('upper')|list", lambda: f"{self.operand('list', d)}|map('string')|list",
            lambda: f"messages|map(attribute='{self.pick('role', 'content', 'n')}'{self.pick('', ', default=0')})|list", lambda: f"messages|{self.pick('selectattr', 'rejectattr')}('role', '{self.pick('equalto', 'eq', 'ne', '==')}', 'user')|list",
            lambda: f"messages|{self.pick('selectattr', 'rejectattr')}('n'{self.pick('', ', ' + repr('defined'))})|list", lambda: f"lm|{self.pick('select', 'reject')}('{self.pick('string', 'number', 'none', 'mapping', 'defined')}')|list",
            lambda: f"li|{self.pick('unique', 'reverse')}|list", lambda: f"li|batch(2{self.pick('', ', 0')})|list", lambda: f"{self.operand('str', d)}|list", lambda: f"{self.pick('d', 'dn', 'de')}|{self.pick('dictsort', 'items|list', 'list')}",
            lambda: f"{self.pick('d', 'dn')}.{self.pick('items()', 'keys()', 'values()')}|list", lambda: f"d|dictsort(reverse=true)", lambda: f"li * 2", lambda: f"messages|sort(attribute='role')", lambda: f"li|select('gt', 1)|list", lambda: f"d.{self.pick('items', 'keys', 'values')}()",
        )()

    def dict(self, depth):
        if depth <= 0 or self.chance(0.4):
            return self.pick("d", "de", "dn", "dn.x", "messages[1]", "{'k': n}")
        d = depth - 1
        return self.pick(lambda: f"{{'q': {self.expr(None, d)}, {self.expr('str', 0)}: {self.expr(None, d)}}}", lambda: f"dict(a={self.expr(None, d)}, b=2)", lambda: f"dict(d, z=1)", lambda: f"d.get('{self.pick('a', 'q')}', {self.expr('dict', d)})", lambda: "lm|last", lambda: "messages|first")()

    def operand(self, kind, depth):
        text = self.expr(kind, depth)
        simple = text.isidentifier() or text[0] in "('[{" and text[-1] in ")']}" and text.count(text[0]) == 1 or text.replace(".", "").isalnum()
        return text if simple or "|" not in text and self.chance(0.1) else f"({text})"

    def slice(self):
        part = lambda: self.pick("", "", str(self.rng.randint(-5, 6)))
        return self.pick(f"{part()}:{part()}", f"{part()}:{part()}:{self.pick('1', '2', '-1', '-2', '')}")

    # ---- statements
    def tag(self, body):
        left, right = self.pick("{%", "{%", "{%", "{%-", "{%+"), self.pick("%}", "%}", "%}", "-%}", "+%}")
        return f"{left} {body} {right}"

    def text(self):
        return "".join(self.pick("a", "B ", "\n", "\n", "  ", "\n    ", "x}", "{ ", "é", "<|end|>", "\t", "%}", "#", "\r\n") for _ in range(self.rng.randint(0, 4)))

    def output(self):
        left, right = self.pick("{{", "{{", "{{-", "{{ "), self.pick("}}", "}}", "-}}", " }}")
        return f"{left} {self.expr() if self.chance(0.95) else '(' + self.expr() + ')|' + self.pick('e', 'safe')} {right}"

    def block(self, depth):
        names, macros = len(self.names), len(self.macros)
        out = "".join(self.text() + self.statement(depth) for _ in range(self.rng.randint(1, 3))) + self.text()
        del self.names[names:], self.macros[macros:]
        return out

    def statement(self, depth):
        if depth <= 0 or self.chance(0.4):
            return self.output()
        return self.pick(self.if_, self.if_, self.for_, self.for_, self.set_, self.set_, self.set_block, self.macro, self.call, self.namespace, self.with_, self.filter_, self.raw, self.comment, self.leave, self.generation)(depth - 1)

    def if_(self, depth):
        out = self.tag("if " + self.expr(self.pick("bool", None))) + self.block(depth)
        if self.chance(0.3):
            out += self.tag("elif " + self.expr("bool")) + self.block(depth)
        if self.chance(0.4):
            out += self.tag("else") + self.block(depth)
        return out + self.tag("endif")

    def for_(self, depth):
        name = self.pick("i", "x", "item")
        head = f"for {name} in {self.expr('list', 2)}"
        added = [name, "loop.index", "loop.first", "loop.last", "loop.index0", "loop.revindex", "loop.length", "loop.cycle('p', 'q')", "loop.previtem", "loop.nextitem", "loop.changed(" + name + ")"]
        if self.chance(0.2):
            head, added = f"for k, v in {self.pick('d.items()', 'dn|items', 'd|dictsort', '[[1, 2], [3, 4]]', 'lm')}", ["k", "v", "loop.index"]
        elif self.chance(0.2):
            head += f" if {name} {self.pick('is defined', '!= 1', 'is string', '')}".rstrip()
        names = len(self.names)
        self.names += added
        self.loops += 1
        out = self.tag(head) + self.block(depth)
        self.loops -= 1
        del self.names[names:]
        if self.chance(0.2):
            out += self.tag("else") + self.block(depth)
        return out + self.tag("endfor")

    def set_(self, depth):
        name = self.pick("v1", "v2")
        if self.chance(0.1):
            self.names += ["v1", "v2"]
            return self.tag(f"set v1, v2 = {self.expr()}, {self.expr()}")
        out = self.tag(f"set {name} = {self.expr()}")
        self.names.append(name)
        return out

    def set_block(self, depth):
        out = self.tag("set v3" + self.pick("", "", " | upper", "|trim|replace('a', 'b')")) + self.block(depth) + self.tag("endset")
        self.names.append("v3")
        return out

    def macro(self, depth):
        name = f"m{len(self.macros)}"
        names, loops = len(self.names), self.loops
        self.names += ["p", "q"] + (["varargs", "kwargs"] if self.chance(0.2) else [])
        self.loops = 0
        out = self.tag(f"macro {name}(p, q={self.expr(None, 1)})") + self.block(depth) + self.tag("endmacro")
        self.loops = loops
        del self.names[names:]
        self.macros.append(name)
        self.names += [f"{name}({self.expr(None, 1)})", f"{name}(p={self.expr(None, 1)})", f"{name}(1, 2)", f"{name}()", f"{name}(1, 2, 3, r=4)"]
        return out

    def call(self, depth):
        loops, self.loops = self.loops, 0
        out = (self.tag("macro wrap(a)") + "[{{ a }}:{{ caller(" + self.pick("", "7") + ") }}]" + self.tag("endmacro") +
               self.tag(self.pick("call", "call(w)", "call(w=1)") + f" wrap({self.expr(None, 1)})") + self.block(depth) + self.tag("endcall"))
        self.loops = loops
        return out

    def namespace(self, depth):
        out = self.tag(f"set ns = namespace(c={self.expr(None, 1)}, t='')")
        self.names += ["ns.c", "ns.t", "ns.nope"]
        return out + self.tag(f"for i in {self.expr('list', 1)}") + self.tag(f"set ns.{self.pick('c', 't')} = {self.pick('ns.t ~ i', 'loop.index', 'i', self.expr(None, 1))}") + self.text() + self.tag("endfor") + "{{ ns.c }}{{ ns.t }}"

    def with_(self, depth):
        names = len(self.names)
        head = f"with w1 = {self.expr(None, 1)}, w2 = {self.expr(None, 1)}"
        self.names += ["w1", "w2"]
        out = self.tag(head) + self.block(depth) + self.tag("endwith")
        del self.names[names:]
        return out

    def filter_(self, depth):
        return self.tag("filter " + self.pick("upper", "trim", "replace('a', 'zz')|lower", "indent(2)", "length")) + self.block(depth) + self.tag("endfilter")

    def generation(self, depth):
        loops, self.loops = self.loops, 0
        out = self.tag("generation") + self.block(depth) + self.tag("endgeneration")
        self.loops = loops
        return out

    def raw(self, depth):
        return self.pick("{% raw %}", "{%- raw -%}", "{%raw%}") + self.pick("{{ x }}", " {% if %} \n", "\n  ") + self.pick("{% endraw %}", "{%- endraw -%}", "{%+ endraw +%}")

    def comment(self, depth):
        return self.pick("{# c #}", "{#- c\n -#}", "{#c#}\n", "{#+ {{ x }} +#}")

    def leave(self, depth):
        if not self.loops:
            return self.output()
        return self.tag(f"if {self.expr('bool', 1)}") + self.tag(self.pick("break", "continue")) + self.tag("endif")


ADDRESS = ("<generator", " object at 0x", "<bound method", "<built-in", "<function", "<reversed", "<list_reverse", "<LoopContext", "<range_iterator", "_reverse")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=8)
    parser.add_argument("--sample", help="write the first 600 usable cases here")
    options = parser.parse_args()
    cases = []
    for i in range(options.count):
        generator = Generator(random.Random(f"{options.seed}:{i}"))
        start = f"{{% set {generator.pick('s', 'n')} = {generator.expr()} %}}" if generator.chance(0.1) else ""
        cases.append((start + generator.block(generator.rng.randint(1, 3)), CONTEXT))
    equal = both_fail = skipped = 0
    bad, sample, unsupported = [], [], {}
    for (source, context), answer in zip(cases, reference.ours(options.binary, cases)):
        want, error = reference.expected(source, context)
        if want is not None and any(a in want.replace("&lt;", "<") or a.upper() in want.upper() for a in ADDRESS):
            skipped += 1  # shows a memory address
        elif want is not None and answer.get("text") == want:
            equal += 1
            sample.append({"template": source, "text": want})
        elif want is None and "error" in answer:
            both_fail += 1
            if len(sample) % 8 == 0:
                sample.append({"template": source, "fails": error.split(":")[0]})
        elif want is not None and any(a in answer.get("error", "") for a in ("beyond 127 bits", "printing a")):
            skipped += 1  # our integers are bounded, and a variable held an address
        elif answer.get("code") == 4:
            unsupported[answer["error"].split(" (line")[0]] = source
        else:
            bad.append((source, want, error, answer))
    for source, want, error, answer in sorted(bad, key=lambda row: len(row[0]))[:options.show]:
        print("---", repr(source))
        print("jinja2:", repr(want) if want is not None else error)
        print("ours:  ", repr(answer.get("text", answer.get("error"))))
    for error, source in unsupported.items():
        print("unsupported:", error, "in", repr(source)[:200])
    print(f"seed {options.seed}: {equal} equal, {both_fail} refused by both, {len(bad)} different, "
          f"{len(unsupported)} unsupported constructs, {skipped} not compared (addresses, huge integers)")
    if options.sample:
        small = [c for c in sample if len(json.dumps(c)) < 1200][:600]
        with open(options.sample, "w") as file:
            json.dump({"context": CONTEXT, "cases": small}, file, ensure_ascii=False, indent=0)
            file.write("\n")
        print(f"wrote {len(small)} cases")
    sys.exit(bool(bad or unsupported or not equal))


main()
