#!/usr/bin/env bash
# From raw text to generated text with the program in build/: tokenizer, tokens, a small GPT split over two ranks, samples.
#   QUICKSTART_TEXT=file   train on this text (plain, or .jsonl with a "text" field) instead of Debian's fortunes
#   QUICKSTART_SHORT=1     60 steps, to see that everything works
set -euo pipefail

wrong() {  # rule, got, fix
  printf '%s\n  got:  %s\n  fix:  %s\n' "$@" >&2
  exit 2
}

# The user's text is looked at before anything is removed.
text=
if [ -n "${QUICKSTART_TEXT:-}" ]; then
  text=$(realpath -m -- "$QUICKSTART_TEXT")
  [ -f "$text" ] && [ -r "$text" ] || wrong "QUICKSTART_TEXT must be a readable file." "$text" "name a text file; several: join them by cat"
  [ -s "$text" ] || wrong "QUICKSTART_TEXT must hold text." "$text, which is empty" "name another file"
fi
cd "$(dirname "$0")/.."
megatron=build/megatron
out=quickstart
short=${QUICKSTART_SHORT:-0}
case $text in
  "$(realpath -m "$out")"/*) wrong "QUICKSTART_TEXT must lie outside of the folder $out/, which is written again." "$text" "move the file" ;;
esac
rm -rf "$out"
mkdir -p "$out"

say() { printf '\n== %s\n' "$*"; }

# The fortunes as documents, one JSON object each: overstrikes and control characters go, authors move to the left margin.
# Left out: pictures, other languages, and jokes at the cost of others.
fortunes_to_jsonl() {
  local folder=/usr/share/games/fortunes
  find $folder -type f ! -name '*.*' | LC_ALL=C sort |
    grep -vE '/(ascii-art|translate-me|zippy|ethnic|men-women|drugs|love|politics)$' |
    xargs -I{} sh -c 'cat {}; echo %' |
    LC_ALL=C sed -e 's/.\x08//g' -e 's/^[\t ]*-- /-- /' -e 's/\t/    /g' -e 's/[\\"]/\\&/g' | tr -d '\000-\010\013-\037' |
    awk 'function flush() { if (text != "") print "{\"text\": \"" text "\"}"; text = "" }
         $0 == "%" { flush(); next }
         { text = text (text == "" ? "" : "\\n") $0 }
         END { flush() }'
}

if [ -n "$text" ]; then
  prompts=("The ")
else
  text=$out/fortunes.jsonl
  fortunes_to_jsonl >"$text"
  prompts=("The first rule of" "A good programmer" "Life is")
fi

say "text: $text, $(wc -c <"$text") bytes, $(wc -l <"$text") lines"

MEGATRON=$megatron scripts/quickstart_data.sh "$text" "$out"

say "training: tensor-parallel over two ranks"
train=("$megatron" train configs/gpt_tiny.toml --world-size 2 --tp 2 --data-path "$out/tokens_text_document"
  --tokenizer "$out/tokenizer" --train.out "$out/run")
[ "$short" = 0 ] || train+=(--train-iters 60 --eval-interval 0 --log-interval 10)
"${train[@]}"

say "what it writes"
for prompt in "${prompts[@]}"; do
  printf '\n> '
  $megatron generate --load "$out/run" --prompt "$prompt" --max-new-tokens 60 --temperature 0.6 --top-k 40 --seed 7
done

say "result"
goal=2
[ "$short" = 0 ] || goal=1
[ -z "${QUICKSTART_TEXT:-}" ] || goal=  # how far a text of the user's can be learned is not known
awk -v goal=$goal -F'[:,}]' '
  { for (i = 1; i < NF; i++) if ($i ~ /"loss"$/) { last = $(i + 1); if (first == "") first = last } }
  END {
    printf "loss fell from %.2f to %.2f nats per token%s\n", first, last, goal == "" ? "" : " (goal: by more than " goal ")"
    exit goal != "" && first - last <= goal
  }
' "$out/run/metrics.jsonl"
