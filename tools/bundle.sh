#!/usr/bin/env bash
# Builds Snug with the place cuda and puts what a machine with a GPU needs to try it into one folder:
# programs, the tests and benchmarks for GPUs, and the libraries they load beyond those of the system
# and of CUDA. Nothing is installed there: copy the folder and run its gpu_check.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: tools/bundle.sh [--architectures LIST] [--jobs N] [--help] [FOLDER]

  FOLDER                where it goes (default: build-cuda/bundle); it must not exist, or be a bundle
  --architectures LIST  compute capabilities to compile for (default: 80;90, which with the code of 90
                        for the driver to compile are all GPUs from the A100 on)
  --jobs N              compile with N processes (default: one per core)

Builds in build-cuda/. Exits with 0, 1 if the build broke or the folder is over 100 MiB, 2 for wrong
usage or without the CUDA Toolkit.
TEXT
}

# refuse CODE EXPECTED FOUND TRY
refuse() {
  printf 'expected %s\n  found: %s\n  try:   %s\n' "$2" "$3" "$4" >&2
  exit "$1"
}

limit=$((100 << 20))
architectures='80;90' jobs=$(nproc) folder=''
while (($#)); do
  case $1 in
    --architectures) architectures=${2:-} && shift ;;
    --jobs) jobs=${2:-} && shift ;;
    --help | -h) usage && exit 0 ;;
    -*) refuse 2 "an option of tools/bundle.sh" "'$1'" "tools/bundle.sh --help" ;;
    *)
      [[ -z $folder ]] || refuse 2 "one folder" "'$folder' and '$1'" "tools/bundle.sh --help"
      folder=$1
      ;;
  esac
  shift
done
folder=${folder:-build-cuda/bundle}
[[ $jobs =~ ^[1-9][0-9]*$ ]] ||
  refuse 2 "--jobs N with N of 1 or more" "'$jobs'" "--jobs $(nproc)"
[[ ! -e $folder || -f $folder/COMMIT ]] ||
  refuse 2 "a folder that does not exist, or a bundle" "something else at $folder" "name another one"
if ! command -v nvcc >/dev/null && [[ ! -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then
  refuse 2 "the CUDA Toolkit (nvcc)" "none on PATH, in \$CUDA_HOME or in /usr/local/cuda" \
    "install the toolkit, or set CUDA_HOME"
fi

programs=(snug test_gpu bench_gpu test_engine_kernels test_quant test_optim test_layers_ops)
generator=(-G Ninja)
[[ ! -f build-cuda/CMakeCache.txt ]] || generator=() # a folder keeps the generator it has
# Programs find the bundle's libraries beside them. The loader's newer kind of path would not reach
# the libraries that these load in turn.
if ! cmake -S . -B build-cuda "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DSNUG_TESTS=ON -DSNUG_CUDA=ON \
  "-DSNUG_CUDA_ARCHITECTURES=$architectures" \
  "-DCMAKE_BUILD_RPATH=\$ORIGIN/../lib" "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags" ||
  ! cmake --build build-cuda --parallel "$jobs" --target "${programs[@]}"; then
  refuse 1 "a build in build-cuda/" "one that broke, see above" "tools/test.sh --quick, without CUDA"
fi

rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib"
for program in "${programs[@]}"; do
  strip -o "$folder/bin/$program" "build-cuda/bin/$program"
done
# The C library must be the machine's own; a driver and CUDA's libraries are its owner's.
own='/(ld-linux|libc|libm|libdl|libpthread|librt|libresolv|libnvidia|libcuda|libcudart|libcublas|libcudnn)[-.a-zA-Z0-9_]*\.so'
mapfile -t libraries < <(for program in "${programs[@]}"; do ldd "build-cuda/bin/$program"; done |
  awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | grep -Ev "$own")
for library in "${libraries[@]}"; do
  strip --strip-unneeded -o "$folder/lib/$(basename "$library")" "$(realpath "$library")"
done
cp tools/gpu_check.sh tests/bench/peers/pytorch_gpt2.py tests/bench/peers/gpt2_run.py "$folder/"
{
  git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown
} >"$folder/COMMIT"

# What is not found is found on no other machine either.
if missing=$(ldd "$folder"/bin/* | grep 'not found' | sort -u); then
  refuse 1 "every library of the programs in $folder/lib or with the system" "$missing" \
    "install what is missing here and run tools/bundle.sh again"
fi
bytes=$(du -sb "$folder" | cut -f1)
printf '%s: %d.%d MiB\n' "$folder" $((bytes >> 20)) $((bytes * 10 / (1 << 20) % 10))
((bytes <= limit)) ||
  refuse 1 "a bundle of at most 100 MiB" "$((bytes >> 20)) MiB" \
    "fewer compute capabilities: --architectures 90 for the machine at hand, or CUDA 13, which packs them"
