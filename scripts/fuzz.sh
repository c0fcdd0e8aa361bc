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
  cmake --build "$build" --target "${name}_fuzz" >/dev/null
  printf '%-12s ' "$name"
  (cd "$build" && UBSAN_OPTIONS=print_stacktrace=1 "./${name}_fuzz" --runs "$runs" --keep "$OLDPWD/fuzz/corpus/$name")
done
