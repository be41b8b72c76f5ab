#!/usr/bin/env python3
"""Names the answers that differ between two files of record.py; exits 1 where there is one.

    tests/answers/compare.py before.json after.json
"""
import json
import sys


def differences(before, after):
    """Lines about cases that are not the same in both."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, "not asked"), after.get(name, "not asked")
        if old != new:
            lines.append(f"{name}: {old} -> {new}")
    return lines


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    before, after = (json.load(open(path))["cases"] for path in sys.argv[1:])
    lines = differences(before, after)
    for line in lines:
        print(line)
    print(f"{len(before.keys() | after.keys()) - len(lines)} equal, {len(lines)} differ")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
