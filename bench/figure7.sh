#!/bin/sh
# Figure 7 of the 2019 paper in small: a deep, narrow BERT in the original order of norms (after each residual sum) and
# in the rearranged one (before each branch), on the same samples with the same seed. Prints both losses as a table,
# what happens meanwhile to standard error, and draws OUT/figure7.svg.
set -eu
if [ $# -lt 2 ]; then
  echo "usage: bench/figure7.sh TEXT OUT [STEPS]   (MEGATRON=build/megatron, LAYERS=32, HIDDEN=64, LR=2e-3)" >&2
  echo "TEXT: .txt, or .jsonl with a field text; also .gz, .zst or .xz" >&2
  exit 2
fi
text=$1 out=$2 steps=${3:-600}
here=$(cd "$(dirname "$0")" && pwd)
program=${MEGATRON:-$here/../build/megatron}
mkdir -p "$out"

[ -e "$out/tokenizer" ] || "$program" tokenizer train --kind wordpiece --input "$text" --vocab-size 4096 --output "$out/tokenizer" >&2
[ -e "$out/tokens_text_sentence.idx" ] ||
  "$program" data preprocess --input "$text" --tokenizer "$out/tokenizer" --output-prefix "$out/tokens" --split-sentences >&2

run() { # NAME [OPTION]…
  name=$1
  shift
  "$program" train "$here/../configs/bert_tiny.toml" --data-path "$out/tokens_text_sentence" \
    --tokenizer "$out/tokenizer" --num-layers "${LAYERS:-32}" --hidden-size "${HIDDEN:-64}" --num-attention-heads 4 \
    --seq-length 64 --micro-batch-size 16 --global-batch-size 16 --train-iters "$steps" --lr "${LR:-2e-3}" \
    --eval-interval 0 --train.out "$out/$name" "$@" >&2
}

run rearranged
run original --apply-residual-connection-post-layernorm
"$program" plot "$out/original" "$out/rearranged" --field lm_loss --smooth 20 --title "Figure 7 in small" \
  --output "$out/figure7.svg"
