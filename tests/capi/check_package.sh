#!/bin/bash
# Installs the package into an empty folder and builds the example against it twice: by find_package and by pkg-config.
#   check_package.sh BUILD_FOLDER SOURCE_FOLDER [MODEL]
set -eu
build=$1 source=$2 model=${3:-}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cmake --install "$build" --prefix "$stage/usr" >/dev/null
find "$stage/usr" -name '*.h' | grep -v '/include/quire.h$' && { echo "more than quire.h was installed"; exit 1; }
configure() { cmake -S "$source/tests/capi/consumer" -B "$1" -DCMAKE_PREFIX_PATH="$stage/usr" -DWANTED_VERSION="$2"; }
configure "$stage/by-cmake" 0.1 >/dev/null
configure "$stage/too-new" 0.2 >/dev/null 2>&1 && { echo "find_package(quire 0.2) finds version 0.1"; exit 1; }
cmake --build "$stage/by-cmake" >/dev/null
pc=$(dirname "$(find "$stage/usr" -name quire.pc)")
export PKG_CONFIG_PATH=$pc
prefix=$(realpath "$(pkg-config --variable=prefix quire)")
[ "$prefix" = "$stage/usr" ] || { echo "quire.pc says $prefix, it was installed into $stage/usr"; exit 1; }
cc "$source/tests/capi/consumer/example.c" $(pkg-config --cflags --libs quire) -o "$stage/by-pkg-config"
sed -n '/^```c$/,/^```$/{/^```/!p}' "$source/docs/capi.md" >"$stage/from-docs.c"
cc -Wall -Wextra -Werror -Wno-unused-parameter "$stage/from-docs.c" $(pkg-config --cflags --libs quire) -o "$stage/from-docs"
export LD_LIBRARY_PATH=$(dirname "$(find "$stage/usr" -name libquire.so)")
if [ -n "$model" ] && [ -e "$model" ]; then
  a=$("$stage/by-cmake/example" "$model" "The capital of France is")
  b=$("$stage/by-pkg-config" "$model" "The capital of France is")
  echo "$a"
  [ "$a" = "$b" ] && [ -n "$a" ]
  "$stage/from-docs" "$model" | grep . || { echo "the example of docs/capi.md says nothing"; exit 1; }
fi
nm -D --defined-only "$LD_LIBRARY_PATH/libquire.so" | awk '$2 ~ /[TW]/ {print $3}' | grep -v '^quire_' | head -3 | while read -r name; do
  echo "the library shows $name"; exit 1
done
echo "the package builds a consumer by find_package and by pkg-config"
