#!/usr/bin/env bash
# Trains as a job of Slurm. The arguments are those of `megatron train`; paths are those of a disk that all hosts see:
#
#   sbatch --nodes 2 --ntasks-per-node 8 --gpus-per-task 1 examples/launch/slurm.sh configs/gpt_1.3b.toml --tp 8 …
#
#   MEGATRON   the program (megatron in PATH)
#SBATCH --job-name=megatron
#SBATCH --output=megatron-%j.log
#SBATCH --signal=TERM@120
# Two minutes before the time limit Slurm ends the step by SIGTERM: the run saves and exits with 3, and the same
# command resumes it.
set -euo pipefail
# A secret of this job alone, which srun hands to each task. Where ranks meet they learn from Slurm.
export MEGATRON_RUN_SECRET=${MEGATRON_RUN_SECRET:-$(head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n')}
srun "${MEGATRON:-megatron}" train "$@"
