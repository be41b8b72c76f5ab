"""Fails when a module includes one above it, or when an instruction-set file includes more than plain headers.

The order is the order of quire_module(...) lines in src/CMakeLists.txt; each line's USES must name what it includes.
lab/ measures the product: only cli/, which has the commands of both, may use it.
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
src = root / "src"
uses = {}
for name, rest in re.findall(r"^quire_module\((\w+)(.*)\)", (src / "CMakeLists.txt").read_text(), re.M):
    direct = set(re.findall(r"quire_(\w+)", rest))
    missing = direct - uses.keys()
    if missing:
        sys.exit(f"src/CMakeLists.txt: {name} uses {missing}, which stand below it")
    uses[name] = {name} | direct | set().union(*(uses[d] for d in direct))

if knowing := {name for name, all in uses.items() if "lab" in all} - {"lab", "cli"}:
    sys.exit(f"src/CMakeLists.txt: {knowing} use lab, which only cli may")
uses["program"] = set(uses)  # main() stands above all of them

bad = []
for file in sorted(src.rglob("*")):
    if file.suffix not in (".cc", ".h"):
        continue
    module = file.relative_to(src).parts[0]
    isa = re.search(r"_(avx2|avx512|vnni|bf16)\.cc$", file.name)
    for number, line in enumerate(file.read_text().splitlines(), 1):
        where = f"{file.relative_to(root)}:{number}"
        own = re.match(r'#include "([^"]+)"', line)
        if own:
            target = own.group(1).split("/")[0]
            if "/" in own.group(1) and target in uses and target not in uses[module]:
                bad.append(f"{where}: {module} may not include {own.group(1)}")
        system = re.match(r"#include <([^>]+)>", line)
        if isa and system and system.group(1) not in ("immintrin.h", "cstdint", "cstddef", "cstring"):
            bad.append(f"{where}: instruction-set files include no <{system.group(1)}>")
print("\n".join(bad) or f"{len(uses) - 1} modules, every include points down")
sys.exit(bool(bad))
