#!/usr/bin/env bash
# Installs what the tests need, builds Snug, runs its tests, then the fast ones again under
# AddressSanitizer and UndefinedBehaviorSanitizer, and those that start threads of our own under
# ThreadSanitizer. The last line counts all runs together.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/packages.sh

usage() {
  cat <<'TEXT'
usage: tools/test.sh [--quick] [--jobs N] [--help]

  --quick    leave out the sanitizer builds and their runs
  --jobs N   compile with N processes (default: one per core)
  --help     print this

Builds in build/, build-asan/ and build-tsan/. Exits with 0 if every test passed, 1 if one failed or
a build broke, 2 for wrong usage. The last line reads 'N passed, N failed'.
TEXT
}

quick=no
jobs=$(nproc)
while (($#)); do
  case $1 in
    --quick) quick=yes ;;
    --jobs)
      jobs=${2:-}
      if ! [[ $jobs =~ ^[1-9][0-9]*$ ]]; then
        echo "expected --jobs N with N of 1 or more; found '$jobs'; try --jobs $(nproc)" >&2
        exit 2
      fi
      shift
      ;;
    --help | -h)
      usage
      exit 0
      ;;
    *)
      echo "expected --quick, --jobs N or --help; found '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
passed=0 failed=0 skipped=0
summaries=()
if [[ -n ${SNUG_DOOR:-} ]]; then # what tests/door.sh came to, of .ci/run
  ((SNUG_DOOR)) && failed=1 || passed=1
  summaries+=("the door: exit code $SNUG_DOOR")
fi

# What ThreadSanitizer looks at: test programs, each of which costs the time to compile what it
# links, and a pattern of those of their tests that start threads of our own.
thread_programs=(test_engine_core test_engine_text test_engine_device test_engine_memory test_tools_saving
  test_parallel)
thread_tests='Threads|Batch|SaveRing|^Group[.]|^LocalTransport[.]'

around=()  # what build() and run_tests() run under
targets=() # what build() compiles; nothing: all

# build FOLDER OPTIONS...: configures and compiles; a broken build counts as one failure.
build() {
  local folder=$1
  shift
  local generator=(-G Ninja)
  [[ ! -f $folder/CMakeCache.txt ]] || generator=() # a folder keeps the generator it has
  local start=$SECONDS
  echo "== build $folder"
  if cmake -S . -B "$folder" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DSNUG_TESTS=ON \
    -DSNUG_PRECOMPILED=ON "$@" &&
    "${around[@]}" cmake --build "$folder" --parallel "$jobs" \
      ${targets[@]:+--target "${targets[@]}"}; then
    summaries+=("$folder, build, $((SECONDS - start)) s")
    return 0
  fi
  echo "the build in $folder broke, see above" >&2
  failed=$((failed + 1))
  summaries+=("$folder: the build broke")
  return 1
}

# count ATTRIBUTE FILE: a number of the <testsuite> line of a JUnit file, 0 if there is none.
count() {
  local number
  number=$(sed -n "/<testsuite/,/>/s/.*[[:space:]]$1=\"\([0-9]*\)\".*/\1/p" "$2" | head -n 1)
  echo "${number:-0}"
}

# run_tests FOLDER LABEL [PATTERN]: runs one label or several, fast|long, or what of them fits, and adds to
# the counts.
run_tests() {
  local folder=$1 label=$2 pattern=${3:-.} status=0 start=$SECONDS
  local junit=$results/tests.xml log=$results/tests.log
  rm -f "$junit"
  echo "== ctest -L $label in $folder"
  "${around[@]}" ctest --test-dir "$folder" -L "^($label)\$" -R "$pattern" --output-on-failure -j2 \
    --no-tests=error --output-junit "$junit" 2>&1 | tee "$log" || status=$?
  local line all=0 good=0 bad=0
  line=$(grep 'tests passed' "$log" | tail -n 1) || line="no test was run"
  if [[ -f $junit ]]; then
    all=$(count tests "$junit")
    good=$((all - $(count failures "$junit") - $(count skipped "$junit") - $(count disabled "$junit")))
    # The file counts a test whose program is missing as skipped; the summary knows it failed.
    bad=$(sed -n 's/.*[^0-9]\([0-9][0-9]*\) tests* failed out of.*/\1/p' <<<"$line")
    bad=${bad:-$(count failures "$junit")}
  fi
  ((status == 0 || bad > 0)) || bad=1 # ctest's verdict is the last word
  passed=$((passed + good))
  failed=$((failed + bad))
  ((all <= good + bad)) || skipped=$((skipped + all - good - bad))
  summaries+=("$folder, $label, $((SECONDS - start)) s: $line")
  # Their names come last too: a long log may reach a reader by its end alone.
  local name
  while read -r name; do summaries+=("  failed: $name"); done < <(
    sed -n '/^The following tests FAILED/,$s/^[[:space:]]*[0-9][0-9]* - \(.*\)/\1/p' "$log"
  )
}

# thread_sanitizer_starts: false, with `why`, if a program built with it ends before its main. One
# that cannot be built is left for the build to complain about.
thread_sanitizer_starts() {
  local probe=$results/tsan
  echo 'int main() { return 0; }' >"$probe.cpp"
  "${CXX:-c++}" -fsanitize=thread "$probe.cpp" -o "$probe" 2>/dev/null || return 0
  why=$("${around[@]}" "$probe" 2>&1) && return 0
  why=${why%%$'\n'*}
  return 1
}

export ASAN_OPTIONS=detect_leaks=1
export TSAN_OPTIONS=halt_on_error=1

install_missing "${build_packages[@]}" libgtest-dev clang-format git \
  qemu-user # shows a test a processor that Snug refuses
# Whose mpirun starts ranks; it is loaded when a run wants it, and no build does.
install_missing openmpi-bin || echo "going on without: tests with the label mpi are skipped"

if build build; then
  run_tests build fast
  run_tests build 'slow|long'
  run_tests build mpi
  run_tests build gpu # skipped, with the reason, where there is no GPU
fi
if [[ $quick == no ]]; then
  # -Og compiles in half the time of -O1 and keeps assertions and readable stacks. Warnings are errors
  # here, and files include what they need, as in a build without precompiled headers.
  if build build-asan -DSNUG_CUDA=OFF -DSNUG_SANITIZE=ON -DSNUG_PRECOMPILED=OFF \
    "-DCMAKE_CXX_FLAGS_RELEASE=-Og"; then
    run_tests build-asan 'fast|long'
    # Built once, without sanitizers, and pointed at the program that has them.
    SNUG_PROGRAM=$PWD/build-asan/bin/snug run_tests build/tests/tools/e2e 'fast|long'
  fi
fi

if [[ $quick == no ]]; then
  # ThreadSanitizer wants memory where it expects it, which newer kernels' address randomisation does
  # not always give; where that may not be turned off, it is tried as it is.
  if setarch "$(uname -m)" -R true 2>/dev/null; then around=(setarch "$(uname -m)" -R); fi
  targets=("${thread_programs[@]}")
  if ! thread_sanitizer_starts; then
    echo "== skipped: no program with ThreadSanitizer starts on this machine: $why"
    skipped=$((skipped + 1))
    summaries+=("build-tsan, fast: skipped, no program with ThreadSanitizer starts here: $why")
  elif build build-tsan -DSNUG_CUDA=OFF -DSNUG_SANITIZE=thread "-DCMAKE_CXX_FLAGS_RELEASE=-O1"; then
    run_tests build-tsan 'fast|long' "$thread_tests"
  fi
fi

echo "== summary after $((SECONDS / 60)) min $((SECONDS % 60)) s"
printf '%s\n' "${summaries[@]}"
if ((skipped)); then
  echo "$passed passed, $failed failed, $skipped skipped"
else
  echo "$passed passed, $failed failed"
fi
((failed == 0))
