#!/usr/bin/env bash
# From a bare Debian 12 (root or sudo) to a trained GPT in a few minutes: installs the packages that
# are missing, builds the command, trains a tokenizer and a small GPT inside 256 MiB for about two
# minutes, and lets it write.
#
#   tools/quickstart.sh         trains on Snug's own sources and documents
#   tools/quickstart.sh DATA    trains on a text file, or on all text files below a folder
set -euo pipefail

if (($# > 1)) || [[ ${1:-} == -* ]]; then
  sed -n '1d; /^#/!q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  [[ ${1:-} == --help || ${1:-} == -h ]] && exit 0
  exit 2
fi
data=""
if (($#)); then
  if [[ ! -r $1 ]]; then
    echo "expected a file or folder to train on; found nothing readable at '$1'" >&2
    exit 2
  fi
  data=$(realpath "$1")
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/packages.sh

# 1. A new folder for this run, and the text.
number=1
while [[ -e runs/quickstart-$number ]]; do number=$((number + 1)); done
run=runs/quickstart-$number
mkdir -p "$run"

text=$run/text.txt
if [[ -z $data ]]; then
  find README.md engine layers optim quant parallel tools tests -type f \
    \( -name '*.md' -o -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \
    -o -name '*.py' -o -name '*.sh' -o -name CMakeLists.txt \) -print0 |
    sort -z | xargs -0 cat >"$text"
elif [[ -d $data ]]; then
  # grep -I takes files without binary content only; hidden files and folders are left out.
  find "$data" -mindepth 1 \( -name '.*' -o -name runs -o -name 'build*' \) -prune -o -type f -print0 | sort -z |
    { xargs -0 -r grep -IlZ . || true; } | xargs -0 -r cat >"$text"
else
  text=$data
fi
if [[ ! -s $text ]]; then
  rm -r "$run"
  echo "expected text to train on; found none in '$data'; name a file or folder with text" >&2
  exit 2
fi
echo "text: $(stat -c %s "$text") bytes from ${data:-this repository}"

# 2. The command.
install_missing "${build_packages[@]}"
generator=(-G Ninja)
[[ ! -f build/CMakeCache.txt ]] || generator=() # a folder keeps the generator it has
cmake -S . -B build "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DSNUG_TESTS=OFF
cmake --build build --parallel "$(nproc)" --target snug
snug=build/bin/snug

# 3. The tokenizer.
"$snug" tokenizer train --vocab-size 2048 --output "$run/tokenizer.json" "$text"

threads=$(nproc)
((threads <= 16)) || threads=16 # every thread takes some of the 256 MiB

# 4. The model: 3.8 million parameters. Every key can be overridden as key=value on the command line.
cat >"$run/config.yaml" <<YAML
model: {type: gpt2, n_layer: 4, n_embd: 256, n_head: 8, n_positions: 256, resid_pdrop: 0, embd_pdrop: 0, attn_pdrop: 0}
init: scratch
tokenizer: $run/tokenizer.json
train_data: '${text//\'/\'\'}'
eval_fraction: 0.05
output_dir: $run/model

memory: 256MiB
precision: fp32
threads: $threads

max_length: 256
global_batch_size: 16
max_time: 2m
learning_rate: 1.0e-3
lr_scheduler_type: cosine
warmup_steps: 20

logging_steps: 10
eval_steps: 50
sample_prompt: "The memory"
seed: 42
YAML
"$snug" train --config "$run/config.yaml"

# 5. What it learned.
echo
echo "== a sample"
"$snug" generate --model "$run/model/final" --prompt "The memory" \
  --max-new-tokens 120 --temperature 0.8 --top-k 50 --seed 42
echo
echo "model folder:  $PWD/$run/model/final (opens in Hugging Face transformers too)"
echo "report:        $PWD/$run/model/report.html"
echo "train longer:  $snug train --config $run/config.yaml resume=latest max_time=10m"
