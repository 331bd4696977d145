#!/usr/bin/env bash
# The front door as a newcomer opens it: a fresh clone of this tree in build-door/, tools/quickstart.sh in
# it for ten seconds, with a build folder of its own, and what the script promises; then the same run
# stopped by a signal and continued by the command it prints. .ci/run calls this before the tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

clone=$PWD/build-door/snug
rm -rf build-door
mkdir build-door
if git rev-parse --git-dir >/dev/null 2>&1; then
  [[ -z $(git status --porcelain) ]] || echo "note: the clone is of the last commit, without what was changed since"
  git clone -q . "$clone"
else
  mkdir "$clone"
  tar --exclude='./build*' --exclude=./runs -cf - . | tar -xf - -C "$clone"
fi
cd "$clone"

# fault EXPECTED LOG
fault() {
  tail -n 40 "$2" >&2
  printf 'the door: expected %s\n  found: see above and %s\n' "$1" "$2" >&2
  exit 1
}

# finds LOG TEXT...: every text stands in the log.
finds() {
  local log=$1 text
  for text in "${@:2}"; do
    grep -qF -- "$text" "$log" || fault "the words '$text'" "$log"
  done
}

echo "== the door: tools/quickstart.sh --time 10s in a fresh clone"
log=$PWD/quickstart.log
tools/quickstart.sh --time 10s >"$log" 2>&1 || fault "exit code 0 of tools/quickstart.sh; it was $?" "$log"
finds "$log" 'planned = measured: ' 'difference 0 B' '== a sample' '/report.html'
run=runs/quickstart-1/model
for file in final/model.safetensors final/config.json report.html; do
  [[ -s $run/$file ]] || fault "$run/$file" "$log"
done

# The commands of the last lines, as they are printed, from another folder.
said() { sed -n "s/^$1: *//p" "$log"; }
(cd / && sh -c "$(said sample) --max-new-tokens 8 --seed 1") >generate.log 2>&1 ||
  fault "the command behind 'sample:' to write" generate.log
finds generate.log 'The memory'
(cd / && sh -c "$(said longer | sed 's/max_time=10m$/max_time=20s/')") >longer.log 2>&1 ||
  fault "the command behind 'longer:' to go on" longer.log
finds longer.log 'planned = measured: ' 'difference 0 B'

# A signal to the script and all it started: a checkpoint, exit code 75 and the command that goes on.
set -m # a process group for each
for signal in INT TERM; do
  echo "== the door: SIG$signal while it trains"
  log=$PWD/$signal.log
  tools/quickstart.sh --time 15s engine >"$log" 2>&1 &
  script=$!
  for ((tries = 0; tries < 600; ++tries)); do
    if grep -q '^started in ' "$log" || ! kill -0 "$script" 2>/dev/null; then break; fi
    sleep 0.5
  done
  kill -s "$signal" -- -"$script" || fault "a run that trains when SIG$signal comes" "$log"
  code=0
  wait "$script" || code=$?
  ((code == 75)) || fault "exit code 75 after SIG$signal; it was $code" "$log"
  finds "$log" 'stopped; to go on:'
  (cd / && sh -c "$(sed -n '/^stopped; to go on:/{n;p}' "$log")") >resumed.log 2>&1 </dev/null ||
    fault "the command printed after SIG$signal to go on" resumed.log
  finds resumed.log 'planned = measured: ' 'difference 0 B'
done
echo "the door opens: $SECONDS s"
