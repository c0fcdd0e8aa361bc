#!/usr/bin/env bash
# Trains over several hosts without a launcher: start it on every host, with the same arguments, those of `megatron train`.
#
#   NNODES=2 NODE_RANK=0 MASTER=10.0.0.1:29500 RANKS_PER_NODE=2 examples/launch/hosts.sh RECIPE …     on 10.0.0.1
#   NNODES=2 NODE_RANK=1 MASTER=10.0.0.1:29500 RANKS_PER_NODE=2 examples/launch/hosts.sh RECIPE …     on the other
#
#   NNODES           hosts
#   NODE_RANK        which of them this is, from 0
#   RANKS_PER_NODE   ranks of each host (1)
#   MASTER           an address of host 0 that the others reach, and a free port there: HOST:PORT
#   MEGATRON_RUN_SECRET_FILE   the run's secret: a file of mode 0600, the same on each host
#   MEGATRON         the program (megatron in PATH)
# SIGINT and SIGTERM are passed on to the ranks, which finish the step, save and exit with 3.
set -euo pipefail
: "${NNODES:?the number of hosts}" "${NODE_RANK:?which of them this is, from 0}" "${MASTER:?HOST:PORT of host 0}"
here=${RANKS_PER_NODE:-1}
export WORLD_SIZE=$((NNODES * here)) LOCAL_WORLD_SIZE=$here
export MASTER_ADDR=${MASTER%:*} MASTER_PORT=${MASTER##*:}
ranks=()
trap 'kill -TERM "${ranks[@]}" 2>/dev/null || true' INT TERM
for ((i = 0; i < here; i++)); do
  RANK=$((NODE_RANK * here + i)) LOCAL_RANK=$i "${MEGATRON:-megatron}" train "$@" &
  ranks+=($!)
done
code=0
for rank in "${ranks[@]}"; do
  while true; do  # a signal ends `wait`, not the rank
    status=0
    wait "$rank" || status=$?
    kill -0 "$rank" 2>/dev/null || break
  done
  [ "$status" = 0 ] || code=$status
done
exit "$code"
