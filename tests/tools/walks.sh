#!/usr/bin/env bash
# walks.sh SNUG [FOLDER]: five people's walks through the program, as they would type them, with what
# they would see in FOLDER/N-name.txt (default: a folder that is removed). Each ends where the person
# has what they came for; what a stranger must be able to read off the screen is looked for.
set -euo pipefail
snug=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${2:-$work/out}
mkdir -p "$out"
out=$(realpath "$out")
export XDG_CACHE_HOME=$work/cache OMP_WAIT_POLICY=passive
unset COLUMNS CI NO_COLOR
walk='' failures=0

# What is typed, its outcome, and what is seen.
type_in() {
  local expected=$1 code=0
  shift
  printf '$ %s\n' "${*//$snug/snug}" >> "$walk"
  "$@" >> "$walk" 2>&1 || code=$?
  ((code == expected)) || complain "exit code $code, not $expected: ${*//$snug/snug}"
}
sees() {
  grep -qE -- "$1" "$walk" || complain "is not to be seen: $1"
}
complain() {
  echo "$(basename "$walk"): $1"
  failures=$((failures + 1))
}
begin() {
  walk=$out/$1.txt
  : > "$walk"
  mkdir -p "$work/$1"
  cd "$work/$1"
  # shellcheck disable=SC2034
  for i in $(seq 300); do
    echo "The cat $((i % 17)) sat on the mat and saw $((i * 7 % 13)) birds. A dog ran over the hill for stick $((i % 5))."
  done > corpus.txt
}
tiny='model={type: gpt2, n_layer: 2, n_embd: 32, n_head: 2, n_positions: 64}'
common=("$tiny" tokenizer=tok.json train_data=corpus.txt max_length=64 global_batch_size=4 threads=1)

# Somebody has a text and wants a model of it.
begin 1-new-model
type_in 0 "$snug" train --example pretrain
type_in 0 "$snug" tokenizer train --vocab-size 300 --output tok.json corpus.txt
type_in 0 "$snug" plan "${common[@]}" memory=64MiB
type_in 0 "$snug" train "${common[@]}" memory=64MiB eval_fraction=0.1 eval_steps=10 max_steps=20 output_dir=run1 'sample_prompt=The cat'
sees 'predicted: [0-9.]+ ms a step'
sees 'planned = measured'
sees 'difference 0 B'
sees 'Model folder: run1/final'
type_in 0 "$snug" report run1
type_in 0 "$snug" inspect run1
type_in 0 "$snug" generate --model run1/final --prompt 'The cat' --max-new-tokens 8 --seed 1
type_in 0 "$snug" eval --model run1/final --data corpus.txt
sees 'perplexity'
grep -q '"model_max_length": 64' run1/final/tokenizer_config.json || complain 'no model_max_length'

# A run that was stopped, its folder moved, its tokenizer and first folder gone.
begin 2-a-month-later
"$snug" tokenizer train --vocab-size 300 --output tok.json corpus.txt > log
(timeout --foreground -s INT 2 "$snug" train "${common[@]}" memory=64MiB max_steps=1000000 logging_steps=1000 output_dir=run1 || true) > log 2>&1
grep -q '^To go on: snug train run1$' log || complain "does not say how to go on: $(tail -1 log)"
mv run1 march
rm tok.json
step=$(sed -n 's/^Stopped at step \([0-9]*\);.*/\1/p' log)
type_in 0 "$snug" train march max_steps=$((step + 5))
sees 'resumed from march/checkpoint-'
type_in 0 "$snug" train march max_steps=$((step + 5))
sees 'Nothing is left to train'
sees "To train on: max_steps="
type_in 2 "$snug" train run1
sees 'did you mean|snug train march'
type_in 0 "$snug" report march

# Two learning rates.
begin 3-two-runs
"$snug" tokenizer train --vocab-size 300 --output tok.json corpus.txt > log
for rate in 1e-3 3e-4; do
  type_in 0 "$snug" train "${common[@]}" memory=64MiB eval_fraction=0.1 eval_steps=5 max_steps=10 learning_rate=$rate output_dir=lr-$rate
done
type_in 2 "$snug" report lr-1e-3 ./lr-1e-3
type_in 0 "$snug" report lr-1e-3 lr-3e-4
for word in 'lr-1e-3' 'lr-3e-4' '<th scope="row">learning_rate</th>' 'Validation loss'; do
  grep -q -- "$word" runs.html || complain "runs.html has no $word"
done

# A card that is too small.
begin 4-small-card
type_in 3 "$snug" plan model=gpt2-xl max_length=1024 global_batch_size=8 target=rtx3060 offload=none offload_optimizer=none offload_params=none offload_gradients=none
sees 'try:'
type_in 0 "$snug" plan model=gpt2-medium max_length=1024 global_batch_size=8 precision=bf16 target=rtx3060
sees 'tokens/s'
type_in 0 "$snug" plan model=gpt2 max_length=512 global_batch_size=8 precision=bf16 target=rtx3060 --sweep 2..12GiB/6 --svg ladder.svg
grep -q '>12.00 GiB<' ladder.svg || complain 'the axis of ladder.svg ends before 12 GiB'

# A class whose terminals are 40 columns wide: no line is longer but for words that are.
begin 5-a-class
"$snug" tokenizer train --vocab-size 300 --output tok.json corpus.txt > log
export COLUMNS=40
type_in 0 "$snug" --help
type_in 0 "$snug" train --help
type_in 0 "$snug" plan "${common[@]}" memory=64MiB
type_in 0 "$snug" plan "${common[@]}" --sweep 24..64MiB/4
unset COLUMNS
grep -v '^\$' "$walk" | awk '{ while (match($0, /[\300-\367][\200-\277]+/)) $0 = substr($0, 1, RSTART - 1) "x" substr($0, RSTART + RLENGTH); n = split($0, w, " "); long = 0; for (i = 1; i <= n; ++i) if (length(w[i]) > 26) long = 1; if (length($0) > 40 && !long) print }' > long-lines
grep -E -- '^ *-{39,}' "$walk" >> long-lines || true
[[ ! -s long-lines ]] || complain "longer than 40 columns: $(head -1 long-lines)"

((failures == 0)) || exit 1
echo "five walks, nothing missing"
