"""Makes the pages of the documentation that come from the source: commands, routes, the kv object, metrics, the C API, and the
picture of a block's life. mkdocs calls it (mkdocs.yml); tests/docs/check_site.py does, too.

    scripts/docs_pages.py FOLDER [QUIRE]     writes them into FOLDER
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read(*paths):
    return "\n".join((ROOT / p).read_text() for p in paths)


def joined(strings):
    """What adjacent string literals of C++ say."""
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', strings)).replace('\\"', '"')


def commands(quire):
    def help_of(*words):
        for more in ("--help-all", "--help"):  # a command without rare options has one help
            done = subprocess.run([quire, *words, more], capture_output=True, text=True)
            if done.returncode == 0:
                return done.stdout
        raise RuntimeError(f"quire {' '.join(words)} --help: {done.stderr}")
    names = re.findall(r"^  ([a-z]+(?: [a-z]+)?)  ", subprocess.run([quire, "help"], capture_output=True, text=True, check=True).stdout, re.M)
    page = ["# Commands", "", "What `quire COMMAND --help-all` prints. Every option of `serve` is also an environment variable "
            "(`QUIRE_MAX_QUEUE` for `--max-queue`) and a key of `--config`.", ""]
    for name in names:
        page += [f"## {name}", "", "```text", help_of(*name.split()).rstrip(), "```", ""]
    return "\n".join(page)


def all_routes():
    found = []
    for path in sorted((ROOT / "src/server").rglob("*.cc")):
        if path.name.endswith("_test.cc"):
            continue
        for method, pattern, access, handler in re.findall(
                r'\{"(GET|POST|PUT|PATCH|DELETE)",\s*"(/[^"]*)",\s*Access::(\w+),\s*(\w+)', path.read_text()):
            dialect = path.parent.name if path.parent.parent.name == "dialect" else ""
            found.append((pattern, method, access, handler == "not_yet", dialect))
    return sorted(set(found))


def routes():
    page = ["# Routes", "", "Paths under `/v1` also work without it, and under `/v1beta` and `/v1alpha`. A route for `user` needs a key where "
            "there are keys, one for `admin` an administrator's; [the server](../server.md) tells what they do.", "",
            "| path | method | who | dialect |", "|---|---|---|---|"]
    for pattern, method, access, missing, dialect in all_routes():
        page.append(f"| `{pattern}` | {method} | {access} | {'answers 501' if missing else dialect} |")
    return "\n".join(page) + "\n"


def all_metrics():
    text = read("src/server/metrics.cc")
    found = {}
    kinds = {"gauge": "gauge", "counter": "counter", "histogram": "histogram"}
    literals = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'
    for kind, name, words in re.findall(r'\b(gauge|counter|histogram)\(\s*"([\w:]+)",\s*' + literals, text):
        found[name] = (kinds[kind], joined(words))
    for name, kind, words in re.findall(r'\b(?:open|family)\(\s*"([\w:]+)",\s*MetricType::(\w+),\s*' + literals, text):
        found[name] = (kind.lower(), joined(words))
    return found


def metrics():
    page = ["# Metrics", "", "What `GET /metrics` has. All have the labels `model_name` and `engine`; histograms have buckets, a sum and a count.",
            "", "| name | kind | |", "|---|---|---|"]
    page += [f"| `{name}` | {kind} | {words} |" for name, (kind, words) in sorted(all_metrics().items())]
    return "\n".join(page) + "\n"


def kv_fields():
    """Fields of the kv object, as its parser reads them: name -> what it takes."""
    text = read("src/server/kv_parse.cc")
    takes = {"text": "text", "number": "number", "integer": "whole number", "boolean": "true or false", "find": "object or list"}
    found = {}
    for how, name in re.findall(r'\bf\.(text|number|integer|boolean|find)\("(\w+)"', text):
        found.setdefault(name, takes[how])
    return found


def kv_object():
    page = ["# The `kv` object", "", "Fields of `kv` in the body of a generation, or in the header `x-kv-policy`; unknown ones are errors. "
            "[The server](../server.md#the-kv-object-of-a-request) tells what they mean, [formats](../formats.md) and "
            "[methods](../methods.md) the values.", "", "| field | takes |", "|---|---|"]
    page += [f"| `{name}` | {what} |" for name, what in sorted(kv_fields().items())]
    return "\n".join(page) + "\n"


def c_api():
    header = read("include/quire.h")
    return "# The C API\n\n`include/quire.h`, whole. [How to use it](../capi.md).\n\n```c\n" + header.rstrip() + "\n```\n"


# How a block lives: states, and what leads from one to the next.
STATES = [("open", "one sequence writes rows"), ("sealed", "encoded, immutable, named by its key"),
          ("cached", "in the index, used by nobody"), ("below", "a record in a tier"), ("free", "its bytes are others'")]
WAYS = [(0, 1, "full"), (1, 2, "its last reader ends"), (2, 1, "a prompt hits it"), (2, 3, "written below"), (3, 1, "loaded"),
        (2, 4, "evicted")]


def block_life():
    """An SVG. States lie in a row; what leads on is drawn above them, what leads back below."""
    width, gap, top, box = 190, 60, 110, 64
    at = [20 + i * (width + gap) for i in range(len(STATES))]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {at[-1] + width + 20} 290" role="img" '
           'aria-label="How a block lives: open, sealed, cached, below memory, free" font-family="sans-serif" font-size="14">',
           '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
           '<path d="M0 0L10 5L0 10z" fill="#555"/></marker></defs>']
    for x, (name, what) in zip(at, STATES):
        out.append(f'<rect x="{x}" y="{top}" width="{width}" height="{box}" rx="8" fill="#eef2fb" stroke="#3f51b5"/>'
                   f'<text x="{x + width / 2}" y="{top + 26}" text-anchor="middle" font-weight="bold" fill="#111">{name}</text>'
                   f'<text x="{x + width / 2}" y="{top + 47}" text-anchor="middle" font-size="11" fill="#333">{what}</text>')
    for a, b, why in WAYS:
        above = b > a
        y, bend = (top, -26 - 22 * (b - a)) if above else (top + box, 26 + 22 * (a - b))
        x1, x2 = at[a] + width * (0.65 if above else 0.35), at[b] + width * (0.35 if above else 0.65)
        middle = (x1 + x2) / 2
        out.append(f'<path d="M{x1} {y}Q{middle} {y + 2 * bend} {x2} {y}" fill="none" stroke="#555" marker-end="url(#a)"/>'
                   f'<text x="{middle}" y="{y + bend + (-4 if above else 14)}" text-anchor="middle" fill="#333">{why}</text>')
    return "\n".join(out) + "\n</svg>\n"


def pages(quire):
    made = {"reference/routes.md": routes(), "reference/metrics.md": metrics(), "reference/kv.md": kv_object(), "reference/c.md": c_api(),
            "block-life.svg": block_life()}
    if os.path.exists(quire):
        made["reference/commands.md"] = commands(quire)
    else:
        made["reference/commands.md"] = "# Commands\n\nBuild the program first (`./run --build-only`): this page is what it prints.\n"
    return made


def on_files(files, config):
    """mkdocs's hook."""
    from mkdocs.structure.files import File
    for path, text in pages(os.environ.get("QUIRE", str(ROOT / "build/release/quire"))).items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """mkdocs's hook. Files of the source that lie outside the documentation are named, not linked."""
    return re.sub(r"\[([^\]]+)\]\(\.\./(?:\.\./)*((?:bench|deploy|examples|include|packaging|scripts|src|tests)/[^)]+)\)", r"\1 (`\2`)", markdown)


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    for path, text in pages(sys.argv[2] if len(sys.argv) > 2 else str(ROOT / "build/release/quire")).items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(text)
