# Sourced by test.sh and quickstart.sh: installs distribution packages that are missing.
# shellcheck shell=bash

# What a build of the command needs.
# shellcheck disable=SC2034  # used by the scripts that source this file
build_packages=(g++ cmake ninja-build pkg-config libfmt-dev nlohmann-json3-dev libpcre2-dev
  libutf8proc-dev libcli11-dev libyaml-cpp-dev zlib1g-dev libzstd-dev)

# run_as_root COMMAND...: directly if we are root, through sudo if not.
run_as_root() {
  if ((EUID == 0)); then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "expected root or sudo to run: $*" >&2
    echo "found neither; install the packages by hand and start again" >&2
    return 1
  fi
}

# install_missing PACKAGE...: touches nothing, and needs no network, when all are there.
install_missing() {
  if ! command -v dpkg >/dev/null; then
    echo "not Debian or Ubuntu: assuming that the equivalents of these are installed: $*"
    return 0
  fi
  local missing=() package
  for package in "$@"; do
    dpkg -s "$package" 2>/dev/null | grep -q '^Status: install ok installed' || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  echo "installing: ${missing[*]}"
  local attempt
  for attempt in 1 2; do
    if run_as_root apt-get update -q &&
      run_as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
        -o DPkg::Lock::Timeout=300 "${missing[@]}"; then
      return 0
    fi
    ((attempt == 2)) || sleep 5
  done
  echo "expected apt-get to install: ${missing[*]}" >&2
  echo "it failed twice, see above; check the network and the package sources, then start again" >&2
  return 1
}
