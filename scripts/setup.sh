#!/usr/bin/env bash
# Installs what the build needs and is not there yet: the Debian packages of packages.txt, and libtorch into .venv.
# With --tests also those of test_packages.txt and clang-tidy; with --peers what the interop tests compare with, and
# trained models, which a build does not have to wait for.
# TORCH_DIR=… (a folder with include/ and lib/ of libtorch 2.11.0) is used instead of .venv.
# Again with everything there: < 1 s.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.11.0
tidy_version=23.1.4
cuda_runtime="nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85"  # the two that libtorch_cpu itself is linked to

stop() {  # rule, got, fix
  printf '%s\n  got:  %s\n  fix:  %s\n' "$1" "$2" "$3" >&2
  exit 1
}

install_packages() {
  local wanted installed missing line
  wanted=$(sed 's/#.*//' "$@" | tr -s ' \n' ' ')
  command -v dpkg-query >/dev/null ||
    stop "setup installs Debian packages." "no dpkg-query: this is not Debian" "install your system's equivalents of:$wanted"
  # shellcheck disable=SC2086
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $wanted 2>/dev/null || true)
  missing=""
  for package in $wanted; do
    grep -qx "installed $package" <<<"$installed" || missing+=" $package"
  done
  [ -z "$missing" ] && return
  line="apt-get update && apt-get install -y --no-install-recommends$missing"
  if [ "$(id -u)" = 0 ]; then
    echo "installing Debian packages:$missing"
    DEBIAN_FRONTEND=noninteractive sh -c "$line"
  elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    echo "installing Debian packages by sudo:$missing"
    sudo DEBIAN_FRONTEND=noninteractive sh -c "$line"
  else
    stop "setup needs Debian packages and may not install them." "not root, and no sudo that works here" "as root, run:  $line"
  fi
}

has_gpu() { compgen -G "/dev/nvidia[0-9]*" >/dev/null || { command -v nvidia-smi >/dev/null && [[ $(nvidia-smi -L 2>/dev/null) == *GPU* ]]; }; }

# A python that pip's libtorch wheels exist for and that can make a virtual environment. Debian's own first.
find_python() {
  for python in /usr/bin/python3 python3 python3.{14,13,12,11,10}; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  stop "setup needs a python3 of 3.10 to 3.14 with venv: pip carries libtorch." "none found" "apt-get install python3-venv"
}

install_libtorch() {
  if [ -n "${TORCH_DIR:-}" ]; then
    [ -e "$TORCH_DIR/lib/libtorch_cpu.so" ] ||
      stop "TORCH_DIR must hold include/ and lib/ of libtorch $torch_version." "no $TORCH_DIR/lib/libtorch_cpu.so" "unset TORCH_DIR to let setup install it"
    grep -qs "\"$torch_version\"" "$TORCH_DIR/include/torch/headeronly/version.h" ||
      stop "TORCH_DIR must hold libtorch $torch_version." "another version in $TORCH_DIR" "unset TORCH_DIR to let setup install it"
    return
  fi
  local kind=cpu python
  if has_gpu; then kind=gpu; fi
  local stamp=".venv/libtorch-$torch_version-$kind"  # written last: an interrupted installation is taken up again
  [ -e "$stamp" ] && return
  echo "installing libtorch $torch_version ($kind) into .venv"
  if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python)  # by itself, so that its stop ends this script too
    "$python" -m venv --clear .venv
  fi
  local pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore)
  if [ $kind = gpu ]; then
    "${pip[@]}" "torch==$torch_version"
  else
    # shellcheck disable=SC2086
    "${pip[@]}" --no-deps "torch==$torch_version" $cuda_runtime
  fi || stop "libtorch could not be installed." "pip failed (see above)" "again with a network, or point TORCH_DIR at a copy of libtorch $torch_version"
  touch "$stamp"
}

# The Python packages that tests/interop compares with, torch of .venv among them, and trained models.
install_interop() {
  local requirements=tests/interop/requirements.txt without_torch=tests/interop/requirements_without_torch.txt stamp python packages
  stamp=.cache/interop/$(cat $requirements $without_torch tests/interop/torch_on_cpu.py | cksum | tr ' ' -)
  [ -e "$stamp" ] && return
  echo "installing the Python packages of the interop tests into .cache/interop"
  python=$(find_python)
  packages=$(echo .venv/lib/python3*/site-packages)
  # A version of Python that .venv's torch is not made for would not load it.
  if [ -x .venv/bin/python ]; then python=$(readlink -f .venv/bin/python); fi
  "$python" -m venv --clear .cache/interop &&
    .cache/interop/bin/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
      -r $requirements &&
    .cache/interop/bin/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
      --no-deps -r $without_torch ||
    stop "the Python packages of the interop tests could not be installed." "pip failed (see above)" "again with a network"
  if [ -n "${TORCH_DIR:-}" ]; then
    echo "TORCH_DIR is set: tests that need Python's torch are skipped" >&2
  elif [ -e "$packages/torch/lib/libtorch_python.so" ]; then
    .cache/interop/bin/python tests/interop/torch_on_cpu.py "$packages" .cache/interop
  fi
  touch "$stamp"
}

# Of the Python package index: Debian's is so old that it checks libtorch's headers for minutes.
install_tidy() {
  local stamp=.cache/tidy/$tidy_version
  [ -e "$stamp" ] && return
  echo "installing clang-tidy $tidy_version into .cache/tidy"
  "$(find_python)" -m venv --clear .cache/tidy &&
    .cache/tidy/bin/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
      "clang-tidy==$tidy_version" || stop "clang-tidy could not be installed." "pip failed (see above)" "again with a network"
  touch "$stamp"
}

fetch_models() {
  [ -n "${MEGATRON_MODELS:-}" ] && return
  if [ -e .cache/models/fetched-1 ]; then
    [ -e .cache/models/smollm2-135m-instruct.gguf ] || "$(find_python)" scripts/fetch_models.py .cache/models --gguf ||
      stop "the trained models could not be fetched." "see above" "again with a network, or name their folder by MEGATRON_MODELS"
    return
  fi
  echo "fetching trained models into .cache/models (250 MB)"
  .cache/interop/bin/python scripts/fetch_models.py .cache/models --rxn-bert ||
    stop "the trained models could not be fetched." "see above" "again with a network, or name their folder by MEGATRON_MODELS"
  touch .cache/models/fetched-1
}

install_packages scripts/packages.txt
install_libtorch
if [ "${1:-}" = --tests ]; then
  install_packages scripts/test_packages.txt
  install_tidy
fi
if [ "${1:-}" = --peers ]; then
  install_interop
  fetch_models
fi
