#!/bin/bash
# Fails where clang-format would change a file; skips where there is no clang-format.
set -u
cd "$1"
command -v clang-format >/dev/null || { echo "no clang-format: skipped"; exit 77; }
files=$(git ls-files '*.cc' '*.h' '*.c' 2>/dev/null || find src sim tests include bench -name '*.cc' -o -name '*.h' -o -name '*.c')
[ -n "$files" ] || { echo "error: no files"; exit 1; }
xargs <<<"$files" clang-format --dry-run -Werror --ferror-limit=1 2>&1 | grep -m5 'error:' && exit 1
echo "every file is formatted"
