#!/usr/bin/env bash
# clang-tidy (.clang-tidy says which checks) over every folder, whole folders at once: what they include is read once.
#   scripts/tidy.sh [EXPRESSION]   only targets whose name matches it, e.g. 'plan|train_test'
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset tidy >/dev/null
python3 - "${1:-.}" <<'END' | xargs -0 -n 1 -P "$(nproc)" nice clang-tidy -p build-tidy --quiet \
  --extra-arg=-Wno-unknown-warning-option --checks=-bugprone-suspicious-include 2>/dev/null
import json, re, sys
for entry in json.load(open("build-tidy/compile_commands.json")):
    if re.search(rf"CMakeFiles/\w*(?:{sys.argv[1]})\w*\.dir/", entry["command"]) and "cmake/headers" not in entry["file"]:
        print(entry["file"], end="\0")
END
