#!/usr/bin/env bash
# A million mutations of each fuzz target under AddressSanitizer and UndefinedBehaviorSanitizer, a target on each core.
#   [SEED=1] scripts/fuzz.sh [RUNS] [BUILD_FOLDER] [TARGET…]
# CXX=clang++ in a folder of its own makes them libFuzzer's, which search by the branches that an input takes. Prints a
# line for each target; an input that fails is kept as BUILD_FOLDER/TARGET-input. Another SEED draws other mutations.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-1000000}
build=${2:-build-asan}
shift $(($# < 2 ? $# : 2))
cmake --preset asan-ubsan -B "$build" -DTORCH_DIR="${TORCH_DIR:-}" >/dev/null
targets=("$@")
if [ $# = 0 ]; then
  mapfile -t targets < <(cd fuzz && ls ./*_fuzz.cpp | sed 's/^..//; s/_fuzz.cpp//')
fi
cmake --build "$build" -j "$(nproc)" --target "${targets[@]/%/_fuzz}" >"$build/fuzz-build.log" ||
  { cat "$build/fuzz-build.log" >&2; exit 1; }

one() {  # runs, build folder, target
  local runs=$1 build=$2 name=$3 corpus=$PWD/fuzz/corpus/$3 log=$2/fuzz-$3.log seed=${SEED:-1}
  export UBSAN_OPTIONS=print_stacktrace=1
  # Freed memory stays out of use for 16 MB, many inputs; of an allocation four calls are kept. The defaults, 256 MB and
  # 30 calls, take up to half as long again; an input that fails says more when it is run alone.
  export ASAN_OPTIONS=quarantine_size_mb=16:malloc_context_size=4
  if [[ $("$build/${name}_fuzz" -help=1 2>&1) == *libFuzzer* ]]; then
    mkdir -p "$build/found/$name"  # its new inputs; the fixed corpus stays as it is
    (cd "$build" && "./${name}_fuzz" -runs="$runs" -seed="$seed" -timeout=60 -print_final_stats=1 "found/$name" \
      "$corpus") >"$log" 2>&1 || { tail -n 60 "$log" >&2; return 1; }
    printf '%-16s %s\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: */inputs: /p' "$log")"
  else
    "$build/${name}_fuzz" --runs "$runs" --seed "$seed" --keep "$build/$name-input" "$corpus" >"$log" 2>&1 ||
      { tail -n 60 "$log" >&2; echo "$name: the input that failed: $build/$name-input" >&2; return 1; }
    printf '%-16s %s\n' "$name" "$(tail -n 1 "$log")"
  fi
}
export -f one
printf '%s\n' "${targets[@]}" | xargs -I{} -P "$(nproc)" bash -c 'one "$@" || exit 255' _ "$runs" "$build" {}
