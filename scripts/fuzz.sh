#!/bin/sh
# 100,000 mutations of each fuzz target under AddressSanitizer and UndefinedBehaviorSanitizer.
#   scripts/fuzz.sh [RUNS] [BUILD_FOLDER] [TARGET…]
# CXX=clang++ in a folder of its own makes them libFuzzer's, which search by the branches that an input takes.
set -eu
cd "$(dirname "$0")/.."
runs=${1:-100000}
build=${2:-build-asan}
[ $# -ge 2 ] && shift 2 || set --
cmake --preset asan-ubsan -B "$build" -DMEGATRON_FUZZ=ON >/dev/null
[ $# -gt 0 ] || set -- $(cd fuzz && ls *_fuzz.cpp | sed 's/_fuzz.cpp//')
for name in "$@"; do
  cmake --build "$build" --target "${name}_fuzz" >"$build/fuzz-build.log" || { cat "$build/fuzz-build.log" >&2; exit 1; }
  printf '%-12s ' "$name"
  corpus=$PWD/fuzz/corpus/$name
  if "$build/${name}_fuzz" -help=1 2>&1 | grep -q libFuzzer; then
    mkdir -p "$build/found/$name"  # its new inputs; the fixed corpus stays as it is
    (cd "$build" && UBSAN_OPTIONS=print_stacktrace=1 "./${name}_fuzz" -runs="$runs" -seed=1 -timeout=60 \
      -print_final_stats=1 "found/$name" "$corpus" >"fuzz-$name.log" 2>&1) || { tail -n 60 "$build/fuzz-$name.log" >&2; exit 1; }
    sed -n 's/^stat::number_of_executed_units: */inputs: /p' "$build/fuzz-$name.log"
    continue
  fi
  UBSAN_OPTIONS=print_stacktrace=1 "$build/${name}_fuzz" --runs "$runs" --keep "$build/$name-input" "$corpus" || {
    echo "the input that failed: $build/$name-input" >&2
    exit 1
  }
done
