#!/usr/bin/env bash
# Trains under the mpirun of Open MPI, or MPICH's or Intel's. Start it on one host, with the arguments of `megatron train`:
#
#   RANKS=2 examples/launch/mpirun.sh configs/gpt_tiny.toml --tp 2 --data-path data/corpus_text_document --tokenizer tok
#   RANKS=16 HOSTFILE=hosts MASTER=node1:29500 examples/launch/mpirun.sh …
#
#   RANKS      ranks in all (2)
#   HOSTFILE   file with a host per line; without one all ranks are on this host
#   MASTER     where ranks meet, HOST:PORT: the host of rank 0, which is the first of HOSTFILE
#   MPIRUN     the launcher with options of yours ("mpirun")
#   MEGATRON   the program (megatron in PATH)
# With several hosts a secret is made for the run unless MEGATRON_RUN_SECRET has one.
set -euo pipefail
read -r -a mpirun <<<"${MPIRUN:-mpirun}"
words=(-n "${RANKS:-2}")
names=(MASTER_ADDR MASTER_PORT)
master=${MASTER:-127.0.0.1:29500}
export MASTER_ADDR=${master%:*} MASTER_PORT=${master##*:}
if [ -n "${HOSTFILE:-}" ]; then
  : "${MASTER:?HOST:PORT of the first host}"
  export MEGATRON_RUN_SECRET=${MEGATRON_RUN_SECRET:-$(head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n')}
  names+=(MEGATRON_RUN_SECRET)
fi
# Read to its end: a pipe that grep -q leaves early fails, with pipefail, on some days.
version=$("${mpirun[0]}" --version 2>/dev/null) || true
if [[ ${version,,} == *hydra* ]]; then  # of MPICH and Intel MPI: hands the environment on
  [ -z "${HOSTFILE:-}" ] || words+=(-f "$HOSTFILE")
else  # Open MPI
  [ -z "${HOSTFILE:-}" ] || words+=(--hostfile "$HOSTFILE")
  for name in "${names[@]}"; do words+=(-x "$name"); done
fi
exec "${mpirun[@]}" "${words[@]}" "${MEGATRON:-megatron}" train "$@"
