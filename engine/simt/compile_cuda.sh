#!/bin/sh
# compile_cuda.sh OBJECT COMMAND...: runs nvcc, keeps its words in OBJECT.ptxas and shows them only
# if it fails.
set -u
object=$1
shift
mkdir -p "$(dirname "$object")"
if ! "$@" >"$object.ptxas" 2>&1; then
  grep -v '^ptxas info' "$object.ptxas" >&2
  rm -f "$object" "$object.ptxas"
  exit 1
fi
