#!/usr/bin/env bash
# Installs what the build needs on Debian or Ubuntu: the packages of packages.txt, and the wheels of requirements.txt
# in the virtual environment .venv of this repository. Says and does nothing when all of it is there, and then needs no
# network.
#
# pip takes the wheels from wherever it is set up to. The engine computes on CPUs and needs Torch's headers and
# libraries, not its Python dependencies, so a CPU wheel ("2.13.0+cpu", which pip prefers when an index offers it) is
# installed alone. A CUDA wheel is accepted too; its libraries do not load without the packages that it depends on, so
# those are then added.
set -euo pipefail

scripts=$(cd "$(dirname "$0")" && pwd)
venv=$(dirname "$scripts")/.venv

install_packages() {
  local wanted missing as_root=()
  mapfile -t wanted <"$scripts/packages.txt"
  if ! command -v dpkg-query >/dev/null; then
    echo "setup: not Debian or Ubuntu; the build needs the counterparts of: ${wanted[*]}" >&2
    return
  fi
  # dpkg-query prints what it knows and exits 1 when it does not know one of the names.
  mapfile -t missing < <(comm -13 \
    <(dpkg-query --show --showformat='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null |
      sed -n 's/^installed //p' | sort -u) \
    <(sort -u "$scripts/packages.txt"))
  if [[ ${#missing[@]} -eq 0 ]]; then
    return
  fi
  echo "setup: installing ${missing[*]}"
  if [[ $(id -u) -ne 0 ]]; then
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# True when the wheels of requirements.txt are in .venv: the installation's last act is to copy the file there.
wheels_are_installed() {
  cmp -s "$scripts/requirements.txt" "$venv/requirements.txt" && [[ -x $venv/bin/python3 ]]
}

install_wheels() {
  if wheels_are_installed; then
    return
  fi
  echo "setup: installing the wheels of scripts/requirements.txt in .venv"
  rm -rf "$venv"
  python3 -m venv "$venv"
  local pip=("$venv/bin/pip" --disable-pip-version-check --quiet install --requirement "$scripts/requirements.txt")
  "${pip[@]}" --no-deps
  if ldd "$venv"/lib/python3*/site-packages/torch/lib/libtorch_cpu.so | grep -q 'not found'; then
    echo "setup: this Torch wheel is not a CPU build; adding the libraries that it needs"
    "${pip[@]}"
  fi
  cp "$scripts/requirements.txt" "$venv/requirements.txt"
}

install_packages
install_wheels
