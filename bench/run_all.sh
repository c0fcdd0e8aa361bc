#!/usr/bin/env bash
# Every benchmark in one go, each to its file in bench/results, then the table of docs/performance.md:
#   bench/run_all.sh [--quick] [--only NAME…] [--leave-out NAME…] [--list] [--results FOLDER]
# Installs the peers (bench/setup.sh) and builds the program and the micro-benchmarks first. What this machine does not have (a
# GPU, AMX, a text, a model) is skipped by name. A benchmark that fails stops no other; the exit code is then 1.
# --quick: the shortest form of each, to build/bench, which shows that they work.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.cache/bench/bin/python
case " $* " in
  *" --list "* | *" --help "* | *" -h "*) exec python3 bench/run_all.py "$@" ;;
esac
if [ "${BENCH_SETUP:-1}" = 1 ]; then
  bench/setup.sh
  [ -e build/build.ninja ] || make configure
  cmake -DMEGATRON_BENCH=ON build >/dev/null
  cmake --build build --target megatron data_masked_bench schedule_bench pipeline_bench data_bench kernels_bench \
    kernels_in_turns_bench
fi
[ -x $python ] || python=python3
exec $python -B bench/run_all.py "$@"
