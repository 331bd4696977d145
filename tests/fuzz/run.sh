#!/usr/bin/env bash
# Builds the fuzz targets with Clang and libFuzzer in build-fuzz/ and runs each for a while.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
  cat <<'TEXT'
usage: tests/fuzz/run.sh [--seconds S] [--jobs N] [--build-only] [--help] [TARGET...]

  --seconds S   how long each target runs (default 60)
  --jobs N      compile with N processes (default: one per core)
  --build-only  build and run nothing
  TARGET        safetensors, gguf, tokenizer, config, tokens, corpus, state (default: all)

What is found lies in build-fuzz/findings/; the corpus grows in build-fuzz/corpus/. Exits with 0 if
nothing was found, 1 if something was or the build broke, 2 for wrong usage or without Clang.
TEXT
}

seconds=60 jobs=$(nproc) build_only=no targets=()
while (($#)); do
  case $1 in
    --seconds | --jobs)
      if ! [[ ${2:-} =~ ^[1-9][0-9]*$ ]]; then
        echo "expected $1 with a number of 1 or more; found '${2:-}'; try $1 2" >&2
        exit 2
      fi
      if [[ $1 == --seconds ]]; then seconds=$2; else jobs=$2; fi
      shift
      ;;
    --build-only) build_only=yes ;;
    --help | -h)
      usage
      exit 0
      ;;
    -*)
      echo "expected --seconds, --jobs, --build-only or --help; found '$1'" >&2
      usage >&2
      exit 2
      ;;
    *) targets+=("$1") ;;
  esac
  shift
done
((${#targets[@]})) || targets=(safetensors gguf tokenizer config tokens corpus state)

compiler=$(command -v clang++ || true)
if [[ -z $compiler ]]; then
  echo "expected clang++ with libFuzzer; found none; the driver needs no Clang:" >&2
  echo "ctest -R ^fuzz_ in a build folder" >&2
  exit 2
fi
folder=build-fuzz
[[ -f $folder/CMakeCache.txt ]] ||
  cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$compiler" \
    -DSNUG_FUZZ=ON
cmake --build "$folder" --parallel "$jobs" --target "${targets[@]/#/fuzz_}"
[[ $build_only == no ]] || exit 0

# No input of these sizes needs a block of 512 MiB, 2 GiB in all or 20 seconds.
limits=(-malloc_limit_mb=512 -rss_limit_mb=2048 -timeout=20 -print_final_stats=1)
status=0
mkdir -p "$folder/findings"
for target in "${targets[@]}"; do
  grown=$folder/corpus/$target
  mkdir -p "$grown"
  echo "== $target for $seconds s"
  longest=65536
  [[ $target != corpus ]] || longest=4096 # packed text may expand 20000 times
  "$folder/bin/fuzz_$target" "${limits[@]}" -max_len=$longest -max_total_time="$seconds" \
    -artifact_prefix="$folder/findings/$target-" "$grown" "tests/fuzz/corpus/$target" \
    2>"$folder/findings/$target.log" || status=1
  grep -E 'BROKEN|ERROR|SUMMARY|stat::number_of_executed_units' "$folder/findings/$target.log" || true
done
exit $status
