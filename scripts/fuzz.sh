#!/bin/sh
# 100,000 mutations of each fuzz target under AddressSanitizer and UndefinedBehaviorSanitizer.
#   scripts/fuzz.sh [RUNS] [BUILD_FOLDER] [TARGET…]
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
  # Inputs follow from the seed: only a run that fails is made again to keep its last one.
  (cd "$build" && UBSAN_OPTIONS=print_stacktrace=1 "./${name}_fuzz" --runs "$runs" "$corpus") || {
    (cd "$build" && "./${name}_fuzz" --runs "$runs" --keep "$corpus" >/dev/null 2>&1) || true
    echo "the input that failed: $build/crash-input" >&2
    exit 1
  }
done
