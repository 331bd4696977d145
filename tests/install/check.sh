#!/usr/bin/env bash
# check.sh BUILD: installs the build into a folder, moves that, builds the project beside this script
# against it and runs it, and compiles installed headers alone.
set -euo pipefail
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" > "$work/install.log"
mv "$work/first" "$work/prefix"
if grep -rl "$build" "$work/prefix" --include='*.cmake' --include='*.h'; then
  echo "files of the installation name the build folder"
  exit 1
fi
mkdir "$work/project"
cp "$here/CMakeLists.txt" "$here/train.cpp" "$work/project"
lines=$(wc -l < "$here/train.cpp")
((lines <= 60)) || { echo "train.cpp has $lines lines, more than 60"; exit 1; }
cmake -S "$work/project" -B "$work/out" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON > "$work/configure.log"
cmake --build "$work/out" > "$work/build.log" || { cat "$work/build.log"; exit 1; }

"$work/out/train" | tee "$work/lines"
read -r planned resident < <(sed -n 's/^planned \([0-9]*\) B, resident \([0-9]*\) B$/\1 \2/p' "$work/lines")
[[ -n $planned && $planned == "$resident" ]] || { echo "planned is not resident"; exit 1; }
# From the loss of 50 equal chances, 3.91, to a sure answer.
awk '/^step/ { loss = $4; if ($2 == 0) first = loss } END { exit !(first > 3.5 && loss < 0.5) }' \
  "$work/lines" || { echo "it does not learn"; exit 1; }
"$work/prefix/bin/snug" --version > /dev/null

# With the flags that the package gave the project, and no other.
flags=$(sed -n 's/.*"command": "[^ ]* \(.*\) -o .*/\1/p' "$work/out/compile_commands.json" | head -1)
[[ -n $flags ]] || { echo "no flags in compile_commands.json"; exit 1; }
# But for what engine/simt/simt.h takes in where a CUDA compiler reads it.
(cd "$work/prefix/include/snug" && find . -name '*.h' | sed 's|^\./||' |
  grep -vE '^engine/simt/(math|pack|simt_cuda)\.h$' | sort) > "$work/headers"
(($(wc -l < "$work/headers") > 100)) || { echo "few headers are installed"; exit 1; }
# What they name is there. Those with a .cpp of their own are read by it before all else; the others
# compile alone here.
(cd "$work/prefix/include/snug" && xargs sed -n 's/^ *#include "\(.*\)".*/\1/p' < "$work/headers" |
  sort -u | while read -r name; do [[ -e $name ]] || echo "$name"; done) > "$work/missing"
[[ ! -s $work/missing ]] || { echo "headers that are named and not installed:"; cat "$work/missing"; exit 1; }
while read -r name; do [[ -e $here/../../${name%.h}.cpp ]] || echo "$name"; done \
  < "$work/headers" > "$work/alone"
# shellcheck disable=SC2016
xargs -P 2 -I{} sh -c 'printf "#include \"%s\"\n" {} | c++ '"$flags"' -Wall -Wextra -fsyntax-only -x c++ - ||
  { echo "{} does not compile alone"; exit 255; }' < "$work/alone"
echo "$(wc -l < "$work/alone") of $(wc -l < "$work/headers") headers compiled alone"
