#!/usr/bin/env bash
# The first thing to run on a machine with a GPU: tests, compute-sanitizer where there is one,
# benchmarks of ops, and `snug train` on GPT-2 beside PyTorch where a Python has it, as one Markdown
# report. Runs from a bundle (tools/bundle.sh) or from the repository,
# where it builds what is missing.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT'
usage: gpu_check.sh [--quick] [--only PART] [--report FILE] [--python PYTHON] [--help]

  --quick          leave out compute-sanitizer and the benchmarks
  --only PART      tests, sanitizer, ops (benchmarks and a calibration) or train alone
  --report FILE    where the Markdown goes (default: gpu_check.md)
  --python PYTHON  with PyTorch, for its figures beside ours (default: python3)

Exits with 0 if all that ran passed, 1 if something failed, 2 for wrong usage or without a GPU.
TEXT
}

# refuse EXPECTED FOUND TRY
refuse() {
  printf 'expected %s\n  found: %s\n  try:   %s\n' "$1" "$2" "$3" >&2
  exit 2
}

quick=no report=gpu_check.md only='' python=python3
while (($#)); do
  case $1 in
    --quick) quick=yes ;;
    --report)
      [[ -n ${2:-} ]] || refuse "--report FILE" "no file" "--report gpu_check.md"
      report=$2 && shift
      ;;
    --only)
      [[ ${2:-} =~ ^(tests|sanitizer|ops|train)$ ]] ||
        refuse "--only tests, sanitizer, ops or train" "'${2:-}'" "--only train"
      only=$2 && shift
      ;;
    --python)
      [[ -n ${2:-} ]] || refuse "--python PYTHON" "no program" "--python python3"
      python=$2 && shift
      ;;
    --help | -h) usage && exit 0 ;;
    *) refuse "an option of gpu_check.sh" "'$1'" "gpu_check.sh --help" ;;
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
  bin=$here/bin commit=$(cat "$here/COMMIT") peer=$here/pytorch_gpt2.py
else
  cd "$here/.." || exit 1
  peer=$PWD/tests/bench/peers/pytorch_gpt2.py
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
# What a calibration finds holds for the plans of this check and leaves nothing behind.
export XDG_CACHE_HOME=$work/cache
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

# wanted PART: whether it is to run.
wanted() {
  [[ -z $only || $only == "$1" ]] && [[ $quick == no || $1 == tests ]]
}

# number KEY FILE: the value of a key in JSON that Snug or the peer wrote; empty if there is none.
number() {
  sed -n "s/.*\"$1\": *\([^,} ]*\).*/\1/p" "$2" | tail -n 1
}

# rate FILE: the median of tokens_per_second in metrics.jsonl, the first two steps left out.
rate() {
  grep '"loss"' "$1" | sed 1,2d | sed -n 's/.*"tokens_per_second":\([0-9.]*\).*/\1/p' | sort -g |
    awk '{ v[NR] = $1 } END { if (NR) printf "%.0f", v[int((NR + 1) / 2)] }'
}

# train NAME LAYERS WIDTH HEADS STEPS: `snug train` in bf16, 524,288 tokens a step. With graphs, so
# nothing is left to the host, whose memory a plan may take for a gain too small to see.
train() {
  local name=$1 run="$work/run" log="$work/log" tokens start=$SECONDS
  echo "== snug train, GPT-2 $name"
  rm -rf "$run"
  if ! "$bin/snug" train "model={type: gpt2, n_layer: $2, n_embd: $3, n_head: $4, n_positions: 1024, vocab_size: 50257, resid_pdrop: 0, embd_pdrop: 0, attn_pdrop: 0}" \
    init=scratch "train_data=$work/tokens.bin" "output_dir=$run" device=cuda precision=bf16 \
    max_length=1024 global_batch_size=512 "max_steps=$5" learning_rate=1e-4 logging_steps=1 \
    eval_fraction=0 save_steps=0 cuda_graphs=on >"$log" 2>&1; then
    cat "$log" && cat "$log" >>"$work/failures"
    rows+=("| \`snug train\` GPT-2 $name | FAILED | | $((SECONDS - start)) s |")
    failed=1
    return
  fi
  tokens=$(rate "$run/metrics.jsonl")
  local memory=$run/memory.json planned measured constant verdict=passed
  planned=$(number planned_engine_bytes "$memory") measured=$(number measured_engine_bytes "$memory")
  constant=$(number constant "$memory")
  if [[ -z $planned || $planned != "$measured" || $constant != true ]]; then
    verdict="FAILED (planned $planned B, reserved $measured B, free memory constant: $constant)"
    failed=1
  fi
  rows+=("| \`snug train\` GPT-2 $name | $verdict | planned = reserved = $planned B; free memory constant: $constant | $((SECONDS - start)) s |")
  figures+=("| GPT-2 $name | Snug | $tokens | $(number micro_batch "$run/plan.json") | $planned |")
  rm -rf "$run"
}

# ranks PRECISION: `snug train` on two GPUs, whose tensors NCCL moves: at every stage the losses are the same, the
# arena is as planned on both, and what the driver says of the rest is within what the plan declares.
ranks() {
  local start=$SECONDS zero log="$work/log" verdict=passed first='' losses rank memory runtime=0 most=0
  echo "== snug train, two ranks, $1"
  for zero in 0 1 2 3; do
    rm -rf "$work/run"
    if ! "$bin/snug" train "model={type: gpt2, n_layer: 4, n_embd: 512, n_head: 8, n_positions: 512, vocab_size: 50257, resid_pdrop: 0, embd_pdrop: 0, attn_pdrop: 0}" \
      init=scratch "train_data=$work/tokens.bin" "output_dir=$work/run" device=cuda ranks=2 "zero=$zero" \
      "precision=$1" max_length=512 global_batch_size=16 per_device_train_batch_size=8 max_steps=12 \
      learning_rate=1e-4 logging_steps=1 eval_fraction=0 save_steps=0 ddp_timeout=120s >"$log" 2>&1; then
      verdict="FAILED (zero $zero)" failed=1
      cat "$log" && cat "$log" >>"$work/failures"
      continue
    fi
    losses=$(sed -n 's/.*"loss":\([0-9.e+-]*\).*/\1/p' "$work/run/metrics.jsonl" | tr '\n' ' ')
    [[ -n $first ]] || first=$losses
    if [[ $losses != "$first" ]]; then
      verdict="FAILED (zero $zero: losses $losses, not $first)" failed=1
    fi
    for rank in "$work/run" "$work/run/ranks/1"; do
      memory=$rank/memory.json
      runtime=$(number measured_runtime_bytes "$memory") most=$(number planned_runtime_bytes "$memory")
      if [[ $(number planned_engine_bytes "$memory") != "$(number measured_engine_bytes "$memory")" ]] ||
        ((${runtime:-0} > ${most:-0})); then
        verdict="FAILED (zero $zero: $(tr -d '\n' <"$memory" | cut -c1-300))" failed=1
      fi
    done
  done
  rows+=("| \`snug train\` on two GPUs, $1, stages 0 to 3 | $verdict | losses alike; runtime $runtime B of $most B | $((SECONDS - start)) s |")
  rm -rf "$work/run"
}

# by_host: GPT-2 124M in bf16, 16 Ki tokens a step, updated by the device, by the host, and by the host one step
# late. The host's loops have the bits of the kernels, so the losses of the first two are the same; those of
# the third begin with the same one. What each takes is a figure.
by_host() {
  local start=$SECONDS log="$work/log" verdict=passed name losses first='' memory rates='' run="$work/run"
  echo "== snug train, updates by the host"
  for name in device host late; do
    local keys=()
    [[ $name == device ]] || keys+=(offload_update=cpu)
    [[ $name != late ]] || keys+=('allow=[stale_update]')
    rm -rf "$run"
    if ! "$bin/snug" train "model={type: gpt2, n_layer: 12, n_embd: 768, n_head: 12, n_positions: 1024, vocab_size: 50257, resid_pdrop: 0, embd_pdrop: 0, attn_pdrop: 0}" \
      init=scratch "train_data=$work/tokens.bin" "output_dir=$run" device=cuda precision=bf16 max_length=1024 \
      global_batch_size=16 per_device_train_batch_size=16 recompute=none offload=none offload_params=none \
      max_steps=12 learning_rate=1e-4 logging_steps=1 eval_fraction=0 save_steps=0 "${keys[@]}" >"$log" 2>&1; then
      verdict="FAILED ($name)" failed=1
      cat "$log" && cat "$log" >>"$work/failures"
      continue
    fi
    losses=$(sed -n 's/.*"loss":\([0-9.e+-]*\).*/\1/p' "$run/metrics.jsonl" | tr '\n' ' ')
    [[ -n $first ]] || first=$losses
    if [[ $name == host && $losses != "$first" ]]; then
      verdict="FAILED ($name: losses $losses, not $first)" failed=1
    fi
    if [[ $name == late && $(cut -d ' ' -f 1,2 <<<"$losses") != "$(cut -d ' ' -f 1 <<<"$first") "* ]]; then
      verdict="FAILED ($name: begins with losses $losses, not as $first)" failed=1
    fi
    memory=$run/memory.json
    if [[ $(number planned_engine_bytes "$memory") != "$(number measured_engine_bytes "$memory")" ||
      $(number planned_host_bytes "$memory") != "$(number measured_host_bytes "$memory")" ]]; then
      verdict="FAILED ($name: $(tr -d '\n' <"$memory" | cut -c1-300))" failed=1
    fi
    rates+="${rates:+, }$name $(rate "$run/metrics.jsonl")"
  done
  rows+=("| \`snug train\` updated by the host, 16 Ki tokens a step | $verdict | tokens/s: $rates | $((SECONDS - start)) s |")
  rm -rf "$run"
}

# beside NAME LAYERS WIDTH HEADS BATCH MODE...: PyTorch on the same shapes.
beside() {
  local name=$1 layers=$2 width=$3 heads=$4 batch=$5 what=eager out="$work/peer"
  shift 5
  if [[ " $* " == *" --compile "* ]]; then what=compiled; fi
  echo "== PyTorch $what, GPT-2 $name"
  if "$python" "$peer" --device cuda --precision bf16 --layers "$layers" --width "$width" \
    --heads "$heads" --vocab 50304 --length 1024 --batch "$batch" --accumulate $((512 / batch)) \
    --warmup 2 --steps 3 "$@" >"$out" 2>"$out.errors"; then
    figures+=("| GPT-2 $name | PyTorch $(sed -n 's/.*"torch": "\([^"]*\)".*/\1/p' "$out") $what | $(printf '%.0f' "$(number tokens_per_second "$out")") | $batch | $(number peak_device_bytes "$out") |")
  else
    figures+=("| GPT-2 $name | PyTorch $what | failed: $(tail -n 1 "$out.errors" | cut -c1-120) | $batch | |")
  fi
}

figures=()
# Tests that hold emulated kernels to the CPU, on the GPU instead (tests/support/emu.h).
kernel_tests=(
  'test_engine_kernels SumsSimt.Ops*:ElementwiseSimt.Ops*'
  'test_quant Quantise.KernelsHave*:Quantise.HidesNo*'
  'test_optim Factored.HasTheSameBits*:*RestingStates.HaveTheSameBits*:UpdateSimt.Same*:UpdateSimt.Many*:UpdateSimt.TensorsThat*:ClipSimt.TheNext*'
  'test_layers_ops AttentionSimt.AnyScale:AttentionSimt.Cached*:CacheRows.EveryRow*:DocumentEnd.*:PairLoss.*Place*'
)
if wanted tests; then
  check "GPU tests" "$bin/test_gpu"
  check "GPU tests, waiting after every launch" env SNUG_SYNC_CHECK=1 "$bin/test_gpu" '--gtest_filter=Gpu*'
  for line in "${kernel_tests[@]}"; do
    program=${line%% *}
    check "kernels of $program on the GPU" env SNUG_TEST_KERNELS_ON=cuda "$bin/$program" "--gtest_filter=${line#* }"
  done
fi
if wanted sanitizer; then
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
fi
clocks_before="$(query clocks.sm), $(query clocks.mem)"
if wanted ops; then
  echo "== benchmarks"
  if ! "$bin/bench_gpu" cuda >"$work/bench" 2>"$work/bench.errors"; then
    rows+=("| benchmarks | FAILED | | |")
    cat "$work/bench.errors" >&2 && cat "$work/bench.errors" >>"$work/failures"
    failed=1
  fi
  echo "== calibration"
  if ! "$bin/snug" calibrate device=cuda --force >"$work/calibration" 2>"$work/calibration.errors"; then
    rows+=("| \`snug calibrate device=cuda\` | FAILED | | |")
    cat "$work/calibration.errors" >&2 && cat "$work/calibration.errors" >>"$work/failures"
    failed=1
  fi
fi
if wanted train; then
  # Tokens of 16 bits, all below 32768: what they say does not matter for the time of a step.
  head -c 8388608 /dev/urandom | LC_ALL=C tr '\200-\377' '\000-\177' >"$work/tokens.bin"
  if (($(grep -c '^GPU ' <<<"$gpus") > 1)); then
    for precision in fp32 bf16 fp16; do ranks "$precision"; done
  else
    rows+=("| ranks on GPUs, by NCCL | not run: one GPU | | |")
  fi
  by_host
  torch=no
  if "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null && [[ -f $peer ]]; then
    torch=yes
  fi
  train 124M 12 768 12 25
  if [[ $torch == yes ]]; then
    beside 124M 12 768 12 32
    beside 124M 12 768 12 32 --compile
  fi
  train 1558M 48 1600 25 6
  if [[ $torch == yes ]]; then
    beside 1558M 48 1600 25 8
    beside 1558M 48 1600 25 8 --compile
  else
    figures+=("| | PyTorch: not run, $python has none that sees the GPU | | | |")
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
  if ((${#figures[@]})); then
    printf '\n524,288 tokens a step, T = 1024, bf16, medians.\n\n'
    printf '| model | program | tokens/s | micro-batch | bytes of the device |\n|---|---|---|---|---|\n'
    printf '%s\n' "${figures[@]}"
  fi
  if [[ -s $work/bench ]]; then printf '\n' && cat "$work/bench"; fi
  if [[ -s $work/calibration ]]; then
    # shellcheck disable=SC2016  # Markdown
    printf '\n`snug calibrate device=cuda`:\n\n```\n' && cat "$work/calibration" && printf '```\n'
  fi
  if [[ -s $work/failures ]]; then
    printf '\n```\n' && tail -n 400 "$work/failures" && printf '```\n'
  fi
} >"$report"
cat "$report"
exit "$failed"
