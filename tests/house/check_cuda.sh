#!/usr/bin/env bash
# check_cuda.sh BUILD_FOLDER: compiles every kernel with nvcc and refuses one whose registers spill
# to memory on any device. Exits with 77, which CTest reports as skipped, without the CUDA Toolkit.
# shellcheck disable=SC2119,SC2120  # spills reads files or its input
set -euo pipefail
build=$1

# Prints "kernel: numbers" for every function that spills; fails if there is one or none was read.
spills() {
  awk '
    /Function properties for/ { kernel = $NF; next }
    /spill stores/ { ++read; if ($5 + $9 > 0) { print kernel ": " $0; bad = 1 } }
    END { if (!read) print "no kernel was reported"; exit bad || !read }' "$@"
}

# A check that cannot fail is worth nothing: a spill must be refused, of stores or of loads, in the
# last function or before it, and so must silence; a clean report must pass. Without nvcc too.
report() {
  for numbers in "$@"; do
    printf 'ptxas info : Function properties for k\n    %s spill loads\n' "$numbers"
  done
}
clean='0 bytes stack frame, 0 bytes spill stores, 0 bytes'
stores='8 bytes stack frame, 8 bytes spill stores, 0 bytes'
loads='0 bytes stack frame, 0 bytes spill stores, 4 bytes'
if report "$clean" "$stores" | spills >/dev/null || report "$loads" "$clean" | spills >/dev/null ||
  spills </dev/null >/dev/null; then
  echo "expected a spill and an empty report to be refused; one was accepted" >&2
  exit 1
fi
if ! report "$clean" "$clean" | spills; then
  echo "expected a report without a spill to pass; it was refused" >&2
  exit 1
fi

if ! grep -q '^SNUG_NVCC:FILEPATH=/' "$build/CMakeCache.txt"; then
  echo "skipped: nvcc was not found when $build was configured"
  exit 77
fi
cmake --build "$build" --target cuda_check

cat "$build"/cuda/*.ptxas | spills
echo "$(cat "$build"/cuda/*.ptxas | grep -c 'spill stores') compiled functions, none spills"
