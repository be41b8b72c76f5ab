"""Every test that docs/security.md names exists, and every row of its tables names one.

    tests/check_docs.py ROOT
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
page = root / "docs/security.md"
texts = {}  # by the name of the file
for folder in ("src", "tests"):
    for path in (root / folder).rglob("*_*"):
        if path.suffix in (".cc", ".c", ".py"):
            texts[path.stem] = texts.get(path.stem, "") + path.read_text()
problems, named, rows = [], 0, 0
for number, line in enumerate(page.read_text().splitlines(), 1):
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if not line.startswith("|") or cells[-1] in ("test", "---"):
        continue
    rows += 1
    tests = re.findall(r"`(\w+)`(?: (\w+))?", cells[-1])
    if not tests:
        problems.append(f"{page.name}:{number}: no test of '{cells[0]}'")
    for file, name in tests:
        named += 1
        if file not in texts:
            problems.append(f"{page.name}:{number}: there is no {file}")
        elif name and not re.search(rf"TEST\w*\(\w+,\s*{name}\)|def test_{name}\(", texts[file]):
            problems.append(f"{page.name}:{number}: {file} has no test {name}")
if rows < 30:
    problems.append(f"{page.name}: {rows} rows of tables; were they renamed?")
print("\n".join(problems) or f"{named} tests of {rows} limits and promises; all of them exist")
sys.exit(1 if problems else 0)
