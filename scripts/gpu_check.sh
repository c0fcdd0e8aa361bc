#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: builds, runs the tests labelled gpu and the step benchmark, writes bench/results/.
# Elsewhere: names the tests that it skips.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build

if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
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

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
result="bench/results/$(date +%F)_$(tr -c 'A-Za-z0-9\n' '-' <<<"$gpu").md"
bench=("$build/megatron" bench step --model gpt2_124m --micro-batch-size 4 --seq-length 1024 --steps 20 --device cuda --json)
mkdir -p bench/results
json=$("${bench[@]}")
{
  echo "# Training step on $gpu, commit $commit"
  echo
  printf '`%s`\n\n```json\n%s\n```\n' "${bench[*]}" "$json"
} >"$result"
echo "$json"
echo "wrote $result"
