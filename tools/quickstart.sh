#!/usr/bin/env bash
# From a bare Debian 12 (root or sudo) to a trained GPT in a few minutes: installs the packages that
# are missing, builds the command, trains a tokenizer and a small GPT inside 256 MiB for 100 seconds
# (tools/quickstart.yaml), and lets it write.
#
#   tools/quickstart.sh                    trains on Snug's own sources and documents
#   tools/quickstart.sh DATA               trains on a text file, or on all text files below a folder
#   tools/quickstart.sh --time 10m [DATA]  trains that long: 90s, 10m, 1h30m
#
# Every run has a folder of its own, runs/quickstart-N. Exit codes are those of snug: 0 done, 1 failed,
# 2 wrong usage, 75 stopped by a signal while it trained, and then the command that goes on is printed.
set -euo pipefail

usage() { sed -n '1d; /^#/!q; s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

# refuse EXPECTED FOUND TRY
refuse() {
  printf 'expected %s\n  found: %s\n  try:   %s\n' "$@" >&2
  exit 2
}

data='' time=''
while (($#)); do
  case $1 in
    --time)
      time=${2:-}
      [[ $time =~ ^([0-9]+(\.[0-9]+)?[smhd])+$ && $time =~ [1-9] ]] ||
        refuse "--time with a time above 0" "'$time'" "--time 90s"
      shift
      ;;
    --help | -h) usage && exit 0 ;;
    -*) refuse "--time TIME, --help or a text" "'$1'" "tools/quickstart.sh --help" ;;
    *)
      [[ -z $data ]] || refuse "one file or folder to train on" "'$data' and '$1'" \
        "a folder that holds both"
      [[ -r $1 ]] || refuse "a file or folder to train on" "nothing readable at '$1'" \
        "tools/quickstart.sh, which trains on the sources of Snug"
      data=$(realpath -- "$1")
      ;;
  esac
  shift
done
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/packages.sh

# 1. A new folder for this run, which stays if a model comes to lie in it, and the text.
mkdir -p runs
number=1
until mkdir "runs/quickstart-$number" 2>/dev/null; do number=$((number + 1)); done
run=$PWD/runs/quickstart-$number
trap '[[ -e $run/model ]] || rm -rf "$run"' EXIT

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
[[ -s $text ]] || refuse "text to train on" "none in '$data'" "a file or folder with text"
echo "text: $(stat -c %s "$text") bytes from ${data:-this repository}"

# 2. The command.
install_missing "${build_packages[@]}"
generator=(-G Ninja)
[[ ! -f build/CMakeCache.txt ]] || generator=() # a folder keeps the generator it has
cmake -S . -B build "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DSNUG_TESTS=OFF \
  -DSNUG_PRECOMPILED=ON
cmake --build build --parallel "$(nproc)" --target snug
snug=$PWD/build/bin/snug

# 3. The tokenizer.
"$snug" tokenizer train --vocab-size 2048 --output "$run/tokenizer.json" "$text"

# 4. The model: 3.8 million parameters.
threads=$(nproc)
((threads <= 16)) || threads=16 # every thread takes some of the 256 MiB
# A word of YAML: train_data may hold spaces, commas and quotes.
yaml() { printf "'%s'" "${1//\'/\'\'}"; }
# A signal is for the run, which ends with a checkpoint; this script then says how to go on.
trap : INT TERM HUP
code=0
"$snug" train --config tools/quickstart.yaml train_data="$(yaml "$text")" \
  tokenizer="$(yaml "$run/tokenizer.json")" output_dir="$(yaml "$run/model")" threads="$threads" \
  ${time:+max_time="$time"} || code=$?
trap - INT TERM HUP
longer=$(printf '%q ' "$snug" train --config "$run/model/config.resolved.yaml")resume=latest
if ((code == 75)); then
  printf '\nstopped; to go on:\n  %s\n' "$longer" >&2
fi
((code == 0)) || exit "$code"

# 5. What it learned.
printf '\n== a sample\n'
"$snug" generate --model "$run/model/final" --prompt "The memory" \
  --max-new-tokens 120 --temperature 0.8 --top-k 50 --seed 42
cat <<TEXT

model:   $run/model/final (opens in Hugging Face transformers too)
report:  $run/model/report.html (open it in a browser)
sample:  $(printf '%q ' "$snug" generate --model "$run/model/final")--prompt "The memory"
longer:  $longer max_time=10m
TEXT
