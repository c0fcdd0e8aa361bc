#!/bin/sh
# Training step of GPT-2 124M, one sequence of 1024 tokens: ours against plain PyTorch, interleaved. DTYPE is fp32 or
# bf16; MODES names the peers: eager, tuned, compile.
# PEERS holds pytorch_gpt.py and tuned.sh; PYTHON has torch 2.11.0 and numpy.
set -eu
if [ $# -lt 2 ]; then
  echo "usage: bench/step_vs_peers.sh PEERS PYTHON [ROUNDS]   (MEGATRON=build/megatron, STEPS=5, DTYPE=fp32, MODES=\"eager tuned\")" >&2
  exit 2
fi
peers=$1 python=$2 rounds=${3:-3} steps=${STEPS:-5} dtype=${DTYPE:-fp32}
modes=${MODES:-eager tuned}
program=${MEGATRON:-$(dirname "$0")/../build/megatron}
results=$(mktemp)
trap 'rm -f "$results"' EXIT

measure() { # NAME COMMAND…: one line "NAME JSON"
  name=$1
  shift
  echo "$name $("$@" | tail -n 1)" | tee -a "$results" >&2
}

for _ in $(seq "$rounds"); do
  for mode in $modes; do
    measure ours "$program" bench step --model gpt2_124m --micro-batch-size 1 --seq-length 1024 --steps "$steps" \
      --dtype "$dtype" --json
    if [ "$mode" = eager ]; then
      measure eager "$python" "$peers/pytorch_gpt.py" --mode eager --dtype "$dtype" --steps "$steps"
    else
      measure "$mode" sh "$peers/tuned.sh" "$python" "$peers/pytorch_gpt.py" --mode "$mode" --dtype "$dtype" --steps "$steps"
    fi
  done
done

"$python" - "$results" "$modes" <<'PY'
import json
import statistics
import sys

runs = [line.split(" ", 1) for line in open(sys.argv[1])]
runs = [(name, json.loads(text)) for name, text in runs]


def memory(name, run):
    return run["peak_memory_bytes"] / 2**20 if name == "ours" else run["peak_mb"]


def summary(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


print("| against | tokens/s, ours / theirs, median (range) | peak memory, ours / theirs |")
print("|--|--|--|")
for mode in sys.argv[2].split():
    pairs = [(runs[i - 1][1], run) for i, (name, run) in enumerate(runs) if name == mode]
    speed = [ours["tokens_per_s"] / theirs["tokens_per_s"] for ours, theirs in pairs]
    space = [memory("ours", ours) / memory(mode, theirs) for ours, theirs in pairs]
    print(f"| {mode} | {summary(speed)} | {summary(space)} |")
ours = [run for name, run in runs if name == "ours"]
print()
print("Ours:", summary([run["tokens_per_s"] for run in ours]), "tokens/s,", summary([run["bound_fraction"] for run in ours]),
      "of the bound,", summary([run["peak_memory_bytes"] / 2**20 for run in ours]), "MiB, start-up",
      summary([run["startup_s"] for run in ours]), "s")
PY
