#!/usr/bin/env bash
# The first thing to run on a machine with a GPU: tests, compute-sanitizer where there is one, and
# benchmarks, as one Markdown report. Runs from a bundle (tools/bundle.sh) or from the repository,
# where it builds what is missing.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT'
usage: gpu_check.sh [--quick] [--report FILE] [--help]

  --quick        leave out compute-sanitizer and the benchmarks
  --report FILE  where the Markdown goes (default: gpu_check.md)

Exits with 0 if all that ran passed, 1 if something failed, 2 for wrong usage or without a GPU.
TEXT
}

# refuse EXPECTED FOUND TRY
refuse() {
  printf 'expected %s\n  found: %s\n  try:   %s\n' "$1" "$2" "$3" >&2
  exit 2
}

quick=no report=gpu_check.md
while (($#)); do
  case $1 in
    --quick) quick=yes ;;
    --report)
      [[ -n ${2:-} ]] || refuse "--report FILE" "no file" "--report gpu_check.md"
      report=$2 && shift
      ;;
    --help | -h) usage && exit 0 ;;
    *) refuse "--quick, --report FILE or --help" "'$1'" "gpu_check.sh --help" ;;
  esac
  shift
done

# A GPU first: a build takes minutes.
command -v nvidia-smi >/dev/null ||
  refuse "a machine with an NVIDIA GPU and its driver" "no nvidia-smi" \
    "run this where \`nvidia-smi -L\` lists a GPU"
gpus=$(nvidia-smi -L 2>&1)
[[ $gpus == GPU\ * ]] ||
  refuse "a GPU that \`nvidia-smi -L\` lists" "${gpus:-nothing}" \
    "look at the driver, and at what the container may use"

if [[ -f $here/COMMIT ]]; then # a bundle
  bin=$here/bin commit=$(cat "$here/COMMIT")
else
  cd "$here/.." || exit 1
  bin=$PWD/build-cuda/bin commit=$(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
  if ! tools/bundle.sh --architectures "$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader |
    head -n 1 | tr -d .)"; then
    refuse "the programs of tools/bundle.sh" "a build that broke, see above" "tools/bundle.sh --help"
  fi
fi
# The programs have the last word on whether this GPU serves.
facts=$("$bin/bench_gpu" facts 2>&1) || { printf '%s\n' "$facts" >&2 && exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows=() failed=0

# count WORD LOG: of the summary lines of GoogleTest, "[  PASSED  ] 12 tests."
count() {
  local number
  number=$(sed -n "s/^\[ *$1 *\] \([0-9]*\) test.*/\1/p" "$2" | tail -n 1)
  echo "${number:-0}"
}

# check NAME COMMAND...: runs it, keeps its words, adds a row.
check() {
  local name=$1 log=$work/log status=0 start=$SECONDS
  shift
  echo "== $name"
  "$@" >"$log" 2>&1 || status=$?
  local passed bad skipped verdict=passed
  passed=$(count PASSED "$log") bad=$(count FAILED "$log") skipped=$(count SKIPPED "$log")
  if ((status != 0 || passed == 0 || skipped > 0)); then
    # Nothing may be skipped where there is a GPU.
    verdict="FAILED (exit code $status)"
    failed=1
    cat "$log" && cat "$log" >>"$work/failures"
  fi
  rows+=("| $name | $verdict | $passed passed, $bad failed, $skipped skipped | $((SECONDS - start)) s |")
}

# query FIELD: of the first GPU.
query() {
  nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1
}

check "GPU tests" "$bin/test_gpu"
check "GPU tests, waiting after every launch" env SNUG_SYNC_CHECK=1 "$bin/test_gpu" '--gtest_filter=Gpu*'
if [[ $quick == no ]]; then
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)
  if [[ -n $sanitizer ]]; then
    # RefusesMoreThanIsFree and ReportsAWrongCall make errors on purpose.
    for tool in memcheck initcheck racecheck synccheck; do
      check "compute-sanitizer $tool" "$sanitizer" --tool "$tool" --error-exitcode 9 \
        "$bin/test_gpu" '--gtest_filter=GpuOps.*:GpuGpt2.StepsAreThoseOfTheCpu'
    done
  else
    rows+=("| compute-sanitizer | not run: there is none on this machine | | |")
  fi
  clocks_before="$(query clocks.sm), $(query clocks.mem)"
  echo "== benchmarks"
  if ! "$bin/bench_gpu" cuda >"$work/bench" 2>"$work/bench.errors"; then
    rows+=("| benchmarks | FAILED | | |")
    cat "$work/bench.errors" >&2 && cat "$work/bench.errors" >>"$work/failures"
    failed=1
  fi
fi

{
  printf '# GPU check of %s\n\n' "$(date -u +%Y-%m-%d)"
  printf '| what | value |\n|---|---|\n'
  printf '| device | %s |\n' "$facts"
  printf '| driver | %s |\n' "$(query driver_version)"
  printf '| clocks now (SM, memory) | %s |\n' "$(query clocks.sm), $(query clocks.mem)"
  [[ -z ${clocks_before:-} ]] || printf '| clocks before the benchmarks | %s |\n' "$clocks_before"
  printf '| clocks at most (SM, memory) | %s |\n' "$(query clocks.max.sm), $(query clocks.max.mem)"
  printf '| power limit | %s |\n' "$(query power.limit)"
  printf '| commit | %s |\n' "$commit"
  printf '\n| check | result | tests | time |\n|---|---|---|---|\n'
  printf '%s\n' "${rows[@]}"
  if [[ -s $work/bench ]]; then printf '\n' && cat "$work/bench"; fi
  if [[ -s $work/failures ]]; then
    printf '\n```\n' && tail -n 400 "$work/failures" && printf '```\n'
  fi
} >"$report"
cat "$report"
exit "$failed"
