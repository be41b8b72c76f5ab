#!/usr/bin/env python3
"""Fails when two files of a module define functions of the same name in anonymous namespaces.

Files of a module are compiled together (cmake/quire.cmake). Types and variables of the same name would not compile, but
functions would silently become overloads of each other.

    check_names.py SOURCE_FOLDER
"""
import collections
import pathlib
import re
import sys

APART = {"format"}  # modules that are compiled file by file
ALONE = re.compile(r"_(test|fuzz|bench|avx2|avx512|vnni|bf16)\.cc$|^model/arch/")
NAMED = re.compile(r"^(?!return|namespace|using|extern|static_assert|template|struct|class|enum|constexpr auto|#|//| )"
                   r"[\w:<>,&* \[\]]*?[\w>&*\]] [&*]?(\w+)\(", re.M)


def hidden_functions(text):
    """Names of functions defined at the start of a line inside anonymous namespaces."""
    names = set()
    for part in re.findall(r"^namespace \{\n(.*?)^\}  // namespace$", text, re.M | re.S):
        names |= set(NAMED.findall(part))
    return names


def main():
    source = pathlib.Path(sys.argv[1])
    wrong = found = 0
    for module in sorted(p for p in source.iterdir() if p.is_dir() and p.name not in APART):
        where = collections.defaultdict(list)
        for file in sorted(module.rglob("*.cc")):
            name = str(file.relative_to(source))
            if not ALONE.search(name):
                for function in hidden_functions(file.read_text()):
                    where[function].append(name)
                    found += 1
        for function, files in sorted(where.items()):
            if len(files) > 1:
                wrong += 1
                print(f"error: {function}() is hidden in {' and in '.join(files)}; give each a name of its own")
    if found < 100:
        sys.exit(f"error: only {found} functions were found in {source}: this check no longer understands the source")
    print(f"{found} hidden functions, {wrong} names twice")
    sys.exit(wrong > 0)


main()
