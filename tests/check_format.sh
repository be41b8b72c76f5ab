#!/bin/bash
# Fails where clang-format would change a file; skips where there is no clang-format.
set -u
cd "$1"
command -v clang-format >/dev/null || { echo "no clang-format: skipped"; exit 77; }
git ls-files '*.cc' '*.h' '*.c' | xargs clang-format --dry-run -Werror --ferror-limit=1 2>&1 | grep -m5 'error:' && exit 1
echo "every file is formatted"
