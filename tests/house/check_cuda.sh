#!/usr/bin/env bash
# check_cuda.sh BUILD_FOLDER: compiles every kernel with nvcc and refuses one whose registers spill
# to memory on any device. Exits with 77, which CTest reports as skipped, without the CUDA Toolkit.
set -euo pipefail
build=$1
if ! grep -q '^SNUG_NVCC:FILEPATH=/' "$build/CMakeCache.txt"; then
  echo "skipped: nvcc was not found when $build was configured"
  exit 77
fi
cmake --build "$build" --target cuda_check

# Prints "kernel: numbers" for every function that spills; fails if there is one or none was read.
spills() {
  awk '
    /Function properties for/ { kernel = $NF; next }
    /spill stores/ { ++read; if ($5 + $9 > 0) { print kernel ": " $0; bad = 1 } }
    END { if (!read) print "no kernel was reported"; exit bad || !read }' "$@"
}

# A check that cannot fail is worth nothing: a spill must be refused, and so must silence.
sample='ptxas info : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads'
if spills <<<"$sample" >/dev/null || spills </dev/null >/dev/null; then
  echo "expected a spill and an empty report to be refused; one was accepted" >&2
  exit 1
fi
cat "$build"/cuda/*.ptxas | spills
echo "$(cat "$build"/cuda/*.ptxas | grep -c 'spill stores') compiled functions, none spills"
