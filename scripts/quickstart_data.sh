#!/usr/bin/env bash
# The quick start's tokenizer and tokens: quickstart_data.sh TEXT FOLDER writes FOLDER/tokenizer and
# FOLDER/tokens_text_document.{bin,idx}. TEXT is JSONL with a "text" field by its name; any other text, of any length, is
# cut into documents so small that some are left for validation.
set -euo pipefail
text=$1
out=$2
megatron=${MEGATRON:-build/megatron}

case ${text%.gz} in
  *.jsonl | *.ndjson | *.json | *.jsonl.zst | *.ndjson.zst | *.json.zst) format=(--format jsonl) ;;
  *)
    piece=$(($(wc -c <"$text") / 256))
    format=(--format pieces --piece-bytes $((piece < 16 ? 16 : piece > 8192 ? 8192 : piece)))
    ;;
esac

printf '\n== tokenizer: byte-level BPE\n'
"$megatron" tokenizer train --input "$text" "${format[@]:0:2}" --vocab-size 4096 --output "$out/tokenizer"

printf '\n== tokens\n'
"$megatron" data preprocess --input "$text" "${format[@]}" --tokenizer "$out/tokenizer" --output-prefix "$out/tokens" --append-eod
