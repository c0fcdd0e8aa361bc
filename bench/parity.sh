#!/bin/sh
# The same training in every layout of ranks, on real text with dropout 0.1: prints, as a Markdown table, how far the
# losses of each layout are from those of one rank at step 20 and at the last step.
set -eu
if [ $# -lt 2 ]; then
  echo "usage: bench/parity.sh DATA_PREFIX TOKENIZER [STEPS]   (MEGATRON=build/megatron, DTYPES='fp32 fp64')" >&2
  exit 2
fi
data=$1 tokenizer=$2 steps=${3:-100}
here=$(cd "$(dirname "$0")" && pwd)
program=${MEGATRON:-$here/../build/megatron}
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

train() { # NAME DTYPE TP DP MICRO_BATCH LAUNCH
  "$program" train "$here/../configs/gpt_tiny.toml" --data.data-path "$data" --data.tokenizer "$tokenizer" \
    --data.data-cache-path "$runs/index" --data.seq-length 64 --model.num-layers 2 --model.hidden-size 64 \
    --model.num-attention-heads 4 --model.hidden-dropout 0.1 --model.attention-dropout 0.1 \
    --train.train-iters "$steps" --train.global-batch-size 16 --train.micro-batch-size "$5" --train.eval-interval 0 \
    --train.dtype "$2" --parallel.world-size "$(($3 * $4))" --parallel.tp "$3" --parallel.launch "$6" \
    --optimizer.bucket-size 100000 --train.out "$runs/$1" --log.progress off >"$runs/$1.log" 2>&1 || {
    cat "$runs/$1.log" >&2
    exit 1
  }
}

loss() { # NAME STEP
  sed -n "s/.*\"iteration\":$2,.*\"loss\":\([^,]*\),.*/\1/p" "$runs/$1/metrics.jsonl"
}

difference() { # NAME DTYPE STEP: relative difference to one rank
  awk -v a="$(loss "$1" "$3")" -v b="$(loss "$2.reference" "$3")" 'BEGIN { d = (a - b) / b; printf "%.1e", d < 0 ? -d : d }'
}

echo "| dtype | tp | dp | micro batch | ranks are | loss at step $steps | difference at step 20 | at step $steps |"
echo "|--|--|--|--|--|--|--|--|"
for dtype in ${DTYPES:-fp32 fp64}; do
  train "$dtype.reference" "$dtype" 1 1 16 threads
  for layout in "1 1 4" "1 2 4" "1 2 8" "1 4 1" "1 4 4" "2 1 4" "2 1 16" "2 2 2" "2 2 8" "2 4 4" "4 1 4" "4 1 16" "4 2 4" "4 4 2" "4 4 4" \
    "1 2 4 processes" "2 1 8 processes" "2 2 4 processes"; do
    # shellcheck disable=SC2086
    set -- $layout
    launch=${4:-threads}
    name=$dtype.tp$1.dp$2.mbs$3.$launch
    train "$name" "$dtype" "$1" "$2" "$3" "$launch"
    echo "| $dtype | $1 | $2 | $3 | $launch | $(loss "$name" "$steps") | $(difference "$name" "$dtype" 20) | $(difference "$name" "$dtype" "$steps") |"
  done
done
