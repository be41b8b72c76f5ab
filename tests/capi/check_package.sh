#!/bin/bash
# Installs the package into an empty folder and builds the example against it twice: by find_package and by pkg-config.
#   check_package.sh BUILD_FOLDER SOURCE_FOLDER [MODEL]
set -eu
build=$1 source=$2 model=${3:-}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cmake --install "$build" --prefix "$stage/usr" >/dev/null
find "$stage/usr" -name '*.h' | grep -v '/include/quire.h$' && { echo "more than quire.h was installed"; exit 1; }
cmake -S "$source/tests/capi/consumer" -B "$stage/by-cmake" -DCMAKE_PREFIX_PATH="$stage/usr" >/dev/null
cmake --build "$stage/by-cmake" >/dev/null
pc=$(dirname "$(find "$stage/usr" -name quire.pc)")
sed -i "s|^prefix=.*|prefix=$stage/usr|" "$pc/quire.pc"
export PKG_CONFIG_PATH=$pc
cc "$source/tests/capi/consumer/example.c" $(pkg-config --cflags --libs quire) -o "$stage/by-pkg-config"
export LD_LIBRARY_PATH=$(dirname "$(find "$stage/usr" -name libquire.so)")
if [ -n "$model" ] && [ -e "$model" ]; then
  a=$("$stage/by-cmake/example" "$model" "The capital of France is")
  b=$("$stage/by-pkg-config" "$model" "The capital of France is")
  echo "$a"
  [ "$a" = "$b" ] && [ -n "$a" ]
fi
nm -D --defined-only "$LD_LIBRARY_PATH/libquire.so" | awk '$2 ~ /[TW]/ {print $3}' | grep -v '^quire_' | head -3 | while read -r name; do
  echo "the library shows $name"; exit 1
done
echo "the package builds a consumer by find_package and by pkg-config"
