#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs what a fresh Debian 12 or Ubuntu 24.04 needs to build; with --tests also what the tests need, with --ci also
# what .ci/run needs besides: a second compiler, clang-tidy and the formatter.
# Does nothing, and needs no network, when everything is there. Usage: scripts/setup.sh [--tests|--ci]
set -euo pipefail

packages=(g++ cmake ninja-build libcli11-dev nlohmann-json3-dev libfmt-dev libgtest-dev libopenblas-dev)
test_packages=(libopenmpi-dev openmpi-bin python3-jsonschema python3-mpmath python3-numpy python3-pytest python3-pytest-xdist
               dpkg-dev file)
# The tests of the Python package over torch run where it is, and Debian has it.
if grep -qs '^ID=debian$' /etc/os-release; then test_packages+=(python3-torch); fi
# The formatter's version is pinned, because versions format differently.
ci_packages=(clang-19 libclang-rt-19-dev clang-format-14 clang-tidy)

case "${1:-}" in
  "") ;;
  --tests) packages+=("${test_packages[@]}") ;;
  --ci) packages+=("${test_packages[@]}" "${ci_packages[@]}") ;;
  *) echo "setup.sh: unknown argument '$1'; usage: scripts/setup.sh [--tests|--ci]" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup.sh: no apt-get here; on other systems than Debian 12 and Ubuntu 24.04 install by hand:" >&2
  echo "  ${packages[*]}" >&2
  exit 5
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  echo "set-up: all ${#packages[@]} packages are present"
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "setup.sh: ${#missing[@]} packages are missing, and this is neither root nor a machine with sudo; as root, run:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 5
  fi
  as_root=(sudo)
fi
echo "set-up: installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
