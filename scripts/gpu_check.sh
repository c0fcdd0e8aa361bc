#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: builds, runs the tests labelled gpu and the step benchmark, writes bench/results/.
# Elsewhere: names the tests that it skips.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build

if [[ $(nvidia-smi -L 2>/dev/null) != *GPU* ]]; then
  if [ -f $build/CTestTestfile.cmake ]; then
    ctest --test-dir $build -L '^gpu$' -N | sed -n 's/^ *Test *#[0-9]*: \(.*\)/skipped: \1 (no NVIDIA GPU)/p'
  fi
  echo "gpu-check: nothing was run: nvidia-smi finds no GPU on this machine"
  exit 0
fi

make test-programs
[ -e $build/libmegatron_cuda.so ] || {
  printf 'gpu-check needs the CUDA plugin.\n  got:  %s\n  fix:  install nvcc (CUDA 13) and NCCL headers\n' "$(grep 'CUDA plugin' $build/configure.log)" >&2
  exit 1
}
ctest --test-dir $build -L '^gpu$' --output-on-failure

python3 -B bench/program.py gpu-step
