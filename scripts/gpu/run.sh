#!/usr/bin/env bash
# Proves the program on a machine with an NVIDIA GPU, in one command and less than ten minutes: needs python3 with torch
# 2.11.0, nothing else is installed or built. `make gpu-bundle` puts this file and what it runs into .gpu/.
#   .gpu/run.sh            everything; results.json and results.md in .gpu/results ($OUT, where that is set)
#   .gpu/run.sh --dry      a short form on the CPU, by the host drivers of the kernels: seconds
#   REQUIRE_GPU=1          fails where no GPU was found
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ -d "$here/bin" ] || tar -C "$here" -xzf "$here/bin.tar.gz"
if [ -z "${TORCH:-}" ]; then
  TORCH=$(python3 -c 'import importlib.util as u; print(next(iter(u.find_spec("torch").submodule_search_locations)))' 2>/dev/null) || {
    printf '%s\n' 'run.sh needs torch 2.11.0 in python3.' '  got:  python3 finds no torch' '  fix:  TORCH=FOLDER .gpu/run.sh, the folder that holds lib/libtorch_cpu.so' >&2
    exit 2
  }
fi
export TORCH
# First the libraries of the bundle: those of Debian that the program is linked to. C++'s own only where this system's is
# older than what the program was compiled with.
libraries=$here/lib:$TORCH/lib
if ! LD_LIBRARY_PATH=$libraries "$here/bin/megatron" --version >/dev/null 2>&1; then libraries=$libraries:$here/lib/c++; fi
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec python3 -B "$here/checks.py" "$@"
