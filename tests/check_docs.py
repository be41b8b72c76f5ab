"""Every test that docs/security.md and docs/conformance.md name exists, and every row of their tables names one.

    tests/check_docs.py ROOT

A test is named as `file` name, without `test_`; a case of a script that has no such functions as `file` "its words".
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
texts = {}  # by the name of the file
for folder in ("src", "tests"):
    for path in (root / folder).rglob("*_*"):
        if path.suffix in (".cc", ".c", ".py"):
            texts[path.stem] = texts.get(path.stem, "") + path.read_text()
problems, named = [], 0


def rows_of(page):
    """The cells of every row; each must name tests that exist."""
    global named
    rows = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or cells[-1] in ("test", "---"):
            continue
        rows.append(cells)
        tests = re.findall(r'`(\w+)`(?: (\w+)| "([^"]+)")?', cells[-1])
        if not tests:
            problems.append(f"{page.name}:{number}: no test of '{cells[0]}'")
        for file, name, words in tests:
            named += 1
            if file not in texts:
                problems.append(f"{page.name}:{number}: there is no {file}")
            elif name and not re.search(rf"TEST\w*\(\w+,\s*{name}\)|def test_{name}\(", texts[file]):
                problems.append(f"{page.name}:{number}: {file} has no test {name}")
            elif words not in texts[file]:
                problems.append(f"{page.name}:{number}: {file} does not say '{words}'")
    return rows


limits = rows_of(root / "docs/security.md")
if len(limits) < 30:
    problems.append(f"security.md: {len(limits)} rows of tables; were they renamed?")
items = rows_of(root / "docs/conformance.md")
if list(dict.fromkeys(c[0] for c in items if c[0])) != [str(i) for i in range(1, 65)]:
    problems.append("conformance.md: the items are not 1 to 64 in order")
for cells in items:
    if not re.match(r"holds$|partly: |not yet: ", cells[2]):
        problems.append(f"conformance.md: '{cells[1]}' is '{cells[2]}'; holds, partly: ... or not yet: ...?")
print("\n".join(problems) or f"{named} tests of {len(limits)} limits and {len(items)} promises to clients; all of them exist")
sys.exit(1 if problems else 0)
