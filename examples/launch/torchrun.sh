#!/usr/bin/env bash
# Trains under torchrun. Start it on every host with the same arguments, those of `megatron train`:
#
#   examples/launch/torchrun.sh configs/gpt_tiny.toml --tp 2 --data-path data/corpus_text_document --tokenizer tok
#   NNODES=2 MASTER=node1:29500 examples/launch/torchrun.sh …       on node1 and on the other host
#
#   NNODES           hosts (1)
#   RANKS_PER_NODE   ranks of each host (a host's GPUs; without one, 2)
#   MASTER           where the hosts meet, HOST:PORT; needed with several
#   MEGATRON_RUN_SECRET_FILE   the run's secret, needed with several hosts: a file of mode 0600, the same on each
#   MEGATRON, TORCHRUN         the programs (megatron and torchrun in PATH)
set -euo pipefail
nodes=${NNODES:-1}
gpus=$(nvidia-smi -L 2>/dev/null | wc -l || true)
ranks=${RANKS_PER_NODE:-$((gpus > 0 ? gpus : 2))}
read -r -a torchrun <<<"${TORCHRUN:-torchrun}"

if [ "$nodes" = 1 ]; then
  meet=(--rdzv-backend c10d --rdzv-endpoint "${MASTER:-127.0.0.1:0}")
else
  meet=(--rdzv-backend c10d --rdzv-endpoint "${MASTER:?HOST:PORT of one of the hosts}")
fi
exec "${torchrun[@]}" --nnodes "$nodes" --nproc-per-node "$ranks" "${meet[@]}" --no-python \
  "${MEGATRON:-megatron}" train "$@"
