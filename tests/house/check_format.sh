#!/usr/bin/env bash
# Checks every C++ and CUDA source of the repository against .clang-format. Exits with 77, which
# CTest reports as skipped, where clang-format 14 is missing: each version formats a little
# differently, and 14 is the one of the reference system, Debian 12.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

formatter=""
for candidate in clang-format-14 clang-format; do
  if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q 'version 14\.'; then
    formatter=$candidate
    break
  fi
done
if [[ -z $formatter ]]; then
  echo "skipped: clang-format 14 is not installed (apt-get install clang-format)"
  exit 77
fi

# A check that cannot fail is worth nothing: a badly formatted line must be refused.
if echo 'int  main( ){return 0 ;}' |
  "$formatter" --dry-run -Werror --assume-filename=engine/core/probe.cpp 2>/dev/null; then
  echo "expected clang-format to refuse a badly formatted line; it accepted it" >&2
  exit 1
fi

mapfile -t files < <(find engine layers optim quant parallel tools tests -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | sort)
if ((${#files[@]} == 0)); then
  echo "expected sources below the repository root; found none" >&2
  exit 1
fi
if ! "$formatter" --dry-run -Werror --style=file "${files[@]}"; then
  echo "some of ${#files[@]} files are not formatted; try: $formatter -i FILE" >&2
  exit 1
fi
echo "${#files[@]} files are formatted"
