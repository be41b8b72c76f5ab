"""The documentation is true to the source: what it names exists, what exists is in it, its samples are well-formed.

    python3 tests/docs/check_site.py ROOT QUIRE              the pages, as files
    scripts/python --docs tests/docs/check_site.py ROOT QUIRE --site      also the site, with every link
"""
import ast
import html.parser
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import urllib.parse
import xml.dom.minidom

root, quire = pathlib.Path(sys.argv[1]), os.path.abspath(sys.argv[2])
sys.path.insert(0, str(root / "scripts"))
import docs_pages  # noqa: E402

problems = []
pages = {str(p.relative_to(root)): p.read_text() for p in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]}
made = docs_pages.pages(quire)
commands = re.findall(r"^## (.+)$", made["reference/commands.md"], re.M)
help_texts = dict(re.findall(r"^## ([a-z ]+)\n\n```text\n(.*?)\n```", made["reference/commands.md"], re.M | re.S))


def problem(page, text, where):
    problems.append(f"{page}:{text[:where].count(chr(10)) + 1}: ")
    return problems[-1]


def say(page, text, at, words):
    problem(page, text, at)
    problems[-1] += words


# Samples: JSON and Python parse; a command exists and has the options that it is given.
samples = 0
for page, text in pages.items():
    for block in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        kind, body = block.groups()
        try:
            if kind == "json":
                json.loads(body if body.lstrip().startswith(("{", "[")) else "{" + body + "}")  # or a part of an object
                samples += 1
            elif kind == "python":
                ast.parse(body)
                samples += 1
        except (ValueError, SyntaxError) as e:
            say(page, text, block.start(), f"a {kind} sample is none: {e}")
        if kind != "bash":
            continue
        for line in body.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(line, comments=True)
            except ValueError as e:
                say(page, text, block.start(), f"'{line}': {e}")
                continue
            samples += bool(words)
            if not words or words[0] != "quire":
                continue
            name = " ".join(words[1:3]) if " ".join(words[1:3]) in commands else words[1] if len(words) > 1 else ""
            if name not in commands:
                say(page, text, block.start(), f"there is no command `quire {' '.join(words[1:3])}`")
                continue
            for flag in (w.split("=")[0] for w in words if re.match(r"--?[a-z]", w)):
                if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", help_texts[name]):
                    say(page, text, block.start(), f"`quire {name}` has no option {flag}")

# Routes that are named exist; a {name} stands for one part.
patterns = {(method, re.sub(r"\{\w+\*?\}", "{}", path)) for path, method, *_ in docs_pages.all_routes()}
paths = {path for _, path in patterns}


def known_path(path):
    path = re.sub(r"/(agent-7|acme)(?=/|$)", "/{}", re.sub(r"\{[\w*]+\}", "{}", path))
    wanted = [path, path.replace("/v1beta/", "/v1/"), path.replace("/v2/", "/v1/")]
    return any(p in paths or p.startswith("/v1/models/{}:") or any(q.startswith(p.rstrip("/") + "/") for q in paths) for p in wanted)


named = 0
for page, text in pages.items():
    if not re.match(r"README|docs/(server|quickstart|models|concepts|troubleshooting|guides|tiers|security|replay|methods|formats)", page):
        continue
    for found in re.finditer(r"(?:GET|POST|PUT|PATCH|DELETE) (/[\w/{}*.:-]+)|`(/v1/kv/[\w/{}-]+)", text):
        path = (found.group(1) or found.group(2)).rstrip(".:,")
        named += 1
        if not known_path(path):
            say(page, text, found.start(), f"there is no route {path}")
server = pages["docs/server.md"]
for path, method, access, missing, dialect in docs_pages.all_routes():
    if f"`{path}`" not in made["reference/routes.md"]:
        problems.append(f"reference/routes.md: lacks {method} {path}")

# Metrics that are named exist; all that the source has are in the reference.
metrics = docs_pages.all_metrics()
source = (root / "src/server/metrics.cc").read_text()
for name in set(re.findall(r'"((?:vllm:|kv_|trace_|process_)\w+)"', source)):
    if name not in metrics and re.search(rf'(?:open|gauge|counter|histogram|family)\(\s*"{re.escape(name)}"', source):
        problems.append(f"reference/metrics.md: lacks {name}")
if len(metrics) < 50:
    problems.append(f"reference/metrics.md: {len(metrics)} metrics; does the page still find them?")
for page, text in pages.items():
    for found in re.finditer(r"`((?:vllm:|kv_)[a-z_]+(?:_total|_bytes|_seconds|_error))`", text):
        if found.group(1) not in metrics and found.group(1) not in source:
            say(page, text, found.start(), f"there is no metric {found.group(1)}")

# Error codes: each has a row of its own, and each row a code.
codes = set()
for path in (root / "src/server").rglob("*.cc"):
    if not path.name.endswith(("_test.cc", "_fuzz.cc")) and path.name not in ("metrics.cc", "cache_diagnostics.cc"):
        text = path.read_text()
        codes |= set(re.findall(r'\bcode = "([a-z_]+)"', text)) | set(re.findall(r'\.code = (?:[^,;"]*\? )"([a-z_]+)"', text))
        # The last argument of these, where it is a word of its own and not the first one.
        codes |= set(re.findall(r'\b(?:bad_value|refuse|not_found)\((?:"(?:[^"\\]|\\.)*"|[^"();]|\((?:"(?:[^"\\]|\\.)*"|[^"()])*\))*?,'
                                r'\s*"([a-z]+(?:_[a-z]+)+)"\)', text))
failure = re.search(r"failure_name.*?names\[\] = \{(.*?)\};", (root / "src/engine/request.cc").read_text(), re.S).group(1)
codes |= set(re.findall(r'"([a-z_]+)"', failure)) - {"none", "kv_transfer_params"}  # the last is a parameter
rows = set(re.findall(r"`([a-z_]+)`", "\n".join(re.findall(r"^\| (`[^|]+) \| [0-9, ]+ \|", pages["docs/troubleshooting.md"], re.M))))
for code in sorted(codes - rows):
    problems.append(f"docs/troubleshooting.md: lacks the code {code}")
everything = "\n".join(p.read_text() for p in (root / "src").rglob("*.cc"))
for code in sorted(rows):
    if f'"{code}"' not in everything:
        problems.append(f"docs/troubleshooting.md: no error has the code {code}")

# Fields of the kv object.
fields = docs_pages.kv_fields()
for name in fields:
    if not re.search(rf'`{name}`|"{name}"', server + pages["docs/methods.md"] + pages["docs/formats.md"] + pages["docs/tiers.md"]):
        problems.append(f"docs/server.md: the kv object has a field {name} that no page tells of")
xml.dom.minidom.parseString(made["block-life.svg"])


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.names = [], set()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.names.add(attributes["id"])
        if link := attributes.get("href" if tag in ("a", "link") else "src"):
            self.links.append(link)


def check_links(site):
    parsed = {}
    for path in site.rglob("*.html"):
        parsed[path] = Links()
        parsed[path].feed(path.read_text())
    count = 0
    for path, page in parsed.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            count += 1
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                problems.append(f"{path.relative_to(site)}: leads to {link}, which is not there")
            elif parts.fragment and target in parsed and parts.fragment not in parsed[target].names | {"__skip"}:
                problems.append(f"{path.relative_to(site)}: leads to {link}, where nothing has that name")
    return count


links = 0
if "--site" in sys.argv:
    with tempfile.TemporaryDirectory() as folder:
        built = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", folder], cwd=root, capture_output=True, text=True,
                               env={**os.environ, "QUIRE": quire, "NO_MKDOCS_2_WARNING": "1"})
        if built.returncode != 0:
            problems.append("mkdocs: " + built.stdout + built.stderr)
        links = check_links(pathlib.Path(folder).resolve())
print("\n".join(problems) or f"{samples} samples, {named} named routes, {len(patterns)} routes, {len(metrics)} metrics, {len(rows)} error codes, "
      f"{len(fields)} fields, {links} links")
sys.exit(1 if problems else 0)
