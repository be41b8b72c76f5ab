"""Every flag of quire that a message or a page names exists.

    tests/cli/check_flags.py QUIRE ROOT
"""
import pathlib
import re
import subprocess
import sys

quire, root = sys.argv[1], pathlib.Path(sys.argv[2])
# Flags of other programs that our pages speak of.
OTHERS = {
    "--preset", "--build", "--target", "--test-dir", "--output-on-failure", "--long", "--help", "--version", "--clients",
    "--generators", "--events", "--s3", "--folder", "--fetch", "--recursive", "--only", "--benchmark"}


def help_of(*words):
    return subprocess.run([quire, *words, "--help-all"], capture_output=True, text=True).stdout + \
        subprocess.run([quire, *words, "--help"], capture_output=True, text=True).stdout


def flags_of_the_source():
    """What is declared: the help may leave some out."""
    flags = set()
    for path in (root / "src/cli").glob("*.cc"):
        for declared in re.findall(r'(?:add_)?(?:option|flag)\(\s*"([^"]+)"', path.read_text()):
            flags |= set(re.findall(r"--[a-z][a-z0-9-]*", declared))
        for names in re.findall(r'"(-[^" ]*)"', path.read_text()):  # "-n,--n-predict"
            flags |= set(re.findall(r"--[a-z][a-z0-9-]*", names))
    return flags


known = flags_of_the_source() | set(re.findall(r"--[a-z][a-z0-9-]*", help_of("serve") + help_of("run"))) | OTHERS
problems = []
for path in sorted([*(root / "src").rglob("*.cc"), *(root / "src").rglob("*.h")]):
    if path.name.endswith(("_test.cc", "_bench.cc", "_fuzz.cc")):
        continue
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for text in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
            for flag in re.findall(r"(?<![\w(-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?![\w:-])", text):  # not a style's --name:
                if flag not in known:
                    problems.append(f"{path.relative_to(root)}:{number}: {flag}")
for path in [root / "README.md", root / "docs/server.md", root / "docs/security.md", root / "docs/methods.md", root / "docs/formats.md",
             root / "docs/tiers.md", root / "docs/models.md", root / "docs/quickstart.md", *(root / "docs/guides").glob("*.md")]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if re.search(r"llama|vllm|ovms|cmake|ctest|git |pip |docker", line, re.I):
            continue  # of a peer, or of a tool
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", line):
            if flag not in known:
                problems.append(f"{path.relative_to(root)}:{number}: {flag}")
print("\n".join(problems) or f"{len(known)} flags; all that are named exist")
sys.exit(1 if problems else 0)
