"""The oracle: jinja2, set up the way transformers' apply_chat_template sets it up, and a pipe to our renderer."""
import copy
import datetime
import functools
import json
import subprocess
import threading

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = datetime.datetime(2024, 7, 1, 0, 0, 0)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def _raise(message):
    raise jinja2.exceptions.TemplateError(message)


def _tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


ENVIRONMENT = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
ENVIRONMENT.filters["tojson"] = _tojson
ENVIRONMENT.globals["raise_exception"] = _raise
ENVIRONMENT.globals["strftime_now"] = NOW.strftime


compiled = functools.lru_cache(maxsize=1)(ENVIRONMENT.from_string)


def expected(source, context):
    """(text, None) or (None, error)."""
    try:
        return compiled(source).render(**copy.deepcopy(context)), None  # a list given to |indent is changed
    except Exception as error:  # whatever Python raises, ours must be an error too
        return None, f"{type(error).__name__}: {error}"


def ours(binary, cases):
    """Answers for (source, context) pairs, in order."""
    process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def feed():
        for source, context in cases:
            line = json.dumps({"template": source, "context": context, "now": [NOW.year, NOW.month, NOW.day]})
            process.stdin.write(line.encode() + b"\n")
        process.stdin.close()

    feeder = threading.Thread(target=feed)
    feeder.start()
    answers = [json.loads(line) for line in process.stdout]
    feeder.join()
    if process.wait() != 0 or len(answers) != len(cases):
        raise SystemExit(f"{binary} ended with {process.returncode} after {len(answers)} of {len(cases)} answers")
    return answers
