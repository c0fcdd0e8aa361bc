#!/usr/bin/env python3
"""How long training steps wait for their samples: `data_wait_ms` of metrics.jsonl, of runs by each kind of samples.

    bench/data_wait.py [--text TEXT] [--steps 100]

TEXT (Shakespeare's plays of BENCH_DATA) is plain text or JSONL, also compressed. Trains the tiny recipes of configs/
(GPT, packed, fill-in-the-middle, BERT, T5; 100 steps) and GPT-2's 124 M parameters (a tenth of the steps) for a moment
each, and prints a row each: the wait of the first step, for which the reader has had least time, then the most and the
mean of the others, and what share of the step that is. Fails where a later step waits."""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import report

CONFIGS = pathlib.Path(__file__).resolve().parents[1] / "configs"
MASKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOS]", *(f"<extra_id_{i}>" for i in range(100))]
FILLS = ["<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<|endoftext|>"]
ONE_RANK = ["--world-size", 1, "--tp", 1]


def megatron(*words):
    result = subprocess.run([report.PROGRAM, *map(str, words)], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"megatron {' '.join(map(str, words))}: {result.returncode}\n{result.stderr[-2000:]}")


def waits(folder, name, recipe, tokenizer, data, steps, *options):
    megatron("train", CONFIGS / f"{recipe}.toml", "--data-path", folder / data, "--tokenizer", tokenizer, "--train.out",
             folder / name, "--train-iters", steps, "--eval-interval", 0, *options)
    lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    lines = [line for line in lines if "data_wait_ms" in line]
    first, later = lines[0], lines[1:]
    most, mean = (of(line["data_wait_ms"] for line in later) for of in (max, statistics.mean))
    step = statistics.median(line["step_ms"] for line in later)
    print(f"{name:24} {len(lines):6} {step:10.1f} {first['data_wait_ms']:10.3f} {most:10.3f} {mean:10.3f} "
          f"{mean / step:9.2%}", file=sys.stderr, flush=True)
    return name, len(lines), first["data_wait_ms"], most


def main():
    parser = report.options(__doc__, rounds=1)
    parser.add_argument("--text")
    parser.add_argument("--steps", type=int)
    arguments = report.parse(parser)
    report.need_program()
    gpt2, text = report.data("gpt2/encoder.json").parent, arguments.text or report.data(
        "text/tinyshakespeare.input.txt")
    steps = arguments.steps or (5 if arguments.quick else 100)
    result = report.Report("data-wait", "How long training steps wait for their samples", arguments)
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        for kind, options in (("bpe", FILLS), ("wordpiece", MASKS)):
            megatron("tokenizer", "train", "--kind", kind, "--input", text, "--vocab-size", 4096, "--special-tokens",
                     *options, "--output", folder / kind)
        for name, tokenizer, options in (("small", folder / "bpe", ["--append-eod"]), ("gpt2", gpt2, ["--append-eod"]),
                                         ("words", folder / "wordpiece", ["--split-sentences"])):
            megatron("data", "preprocess", "--input", text, "--tokenizer", tokenizer, "--output-prefix", folder / name,
                     *options)
        print(f"{'ms':24} {'steps':>6} {'step':>10} {'1st waits':>10} {'most':>10} {'mean':>10} {'of step':>9}",
              file=sys.stderr)
        small, words = "small_text_document", "words_text_sentence"
        bpe, pieces = folder / "bpe", folder / "wordpiece"
        most = [waits(folder, "GPT 2.6M", "gpt_tiny", bpe, small, steps, *ONE_RANK),
                waits(folder, "GPT 2.6M, 2 ranks", "gpt_tiny", bpe, small, steps),
                waits(folder, "GPT 2.6M packed", "gpt_tiny", bpe, small, steps, *ONE_RANK, "--data.packed"),
                waits(folder, "GPT 2.6M fill-in", "gpt_tiny", bpe, small, steps, *ONE_RANK, "--fim-data"),
                waits(folder, "BERT 2.8M", "bert_tiny", pieces, words, steps),
                waits(folder, "T5 3.9M", "t5_tiny", pieces, words, steps),
                waits(folder, "GPT-2 124M", "gpt2_124m", gpt2, "gpt2_text_document", max(steps // 10, 3),
                      "--global-batch-size", 1, "--lr-warmup-samples", 0, "--save-interval", 0)]
    for name, counted, first, longest in most:
        result.add(f"{name}, {counted} steps: the longest wait but the first step's", longest, "ms", at_most=0,
                   first_ms=first)
    result.write()
    return max(longest for *_, longest in most) > 0


if __name__ == "__main__":
    sys.exit(main())
