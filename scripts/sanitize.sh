#!/usr/bin/env bash
# Tests under the sanitizers, as CI runs them: AddressSanitizer and UndefinedBehaviorSanitizer over the folders without
# libtorch, comm, checkpoint and interchange, with 2,000 inputs of each fuzz target; ThreadSanitizer over comm, pipeline
# and checkpoint, which saves in a thread of its own. The presets asan-ubsan and tsan say which folders are instrumented.
#   scripts/sanitize.sh [asan-ubsan|tsan]   one of them; build/ must be built (make test)
#   scripts/sanitize.sh tsan-models         ThreadSanitizer over models and what trains and runs them: half an hour, not in CI
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)

# g++ 12's ThreadSanitizer knows no addresses as random as newer kernels make them.
fixed_addresses=()
if setarch -R true 2>/dev/null; then fixed_addresses=(setarch -R); fi
ulimit -s 262144 2>/dev/null || true  # tests match pictures with std::regex, which takes a frame a character

for preset in ${1:-asan-ubsan tsan}; do
  build=build-${preset%-ubsan}
  cmake --preset "$preset" -DTORCH_DIR="${TORCH_DIR:-}" >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
  rm "$build.log"
  cmake --build "$build" -j "$jobs"
  "${fixed_addresses[@]}" ctest --test-dir "$build" -j $((jobs + 1)) --no-tests=error --output-on-failure --output-junit tests.xml \
    --test-output-size-passed 10000000 && status=0 || status=$?
  scripts/check_tests.py "$build"
  [ $status = 0 ] || exit $status
done
