#!/usr/bin/env python3
"""10 MB of one character through every kind of tokenizer: seconds of one core for each, in a table.

    bench/one_character.py [FOLDER_OR_FILE…]

The small tokenizers of tests/golden/tokenizers (every step and model of published files), GPT-2's and BERT's, rank
files like tiktoken's cl100k and o200k, Qwen's and Llama 3's, and those that are named. Fails where one takes 1 s."""
import pathlib
import sys
import tempfile

import report

sys.path.append(str(report.ROOT / "tests/testing"))
import rank_files  # noqa: E402

FORMS = {"cl100k": 100256, "llama3": 128000, "qwen": 151643, "o200k": 199998}


def tokenizers(folder, named, quick):
    yield from sorted(path for path in (report.ROOT / "tests/golden/tokenizers").iterdir()
                      if path.suffix in (".json", ".model") and path.stem != "cases")
    yield from map(pathlib.Path, named)
    if quick:
        return
    gpt2 = report.data("gpt2/encoder.json").parent
    yield from (gpt2, report.data("bert/vocab.txt"))
    ranks = rank_files.gpt2_ranks(gpt2)
    for name, count in FORMS.items():
        rank_files.write(folder / f"{name}.tiktoken", rank_files.joined(ranks, count))
        yield folder / f"{name}.tiktoken"


def main():
    parser = report.options(__doc__, rounds=1)
    parser.add_argument("tokenizers", nargs="*")
    arguments = report.parse(parser)
    report.need_program()
    megabytes = 1 if arguments.quick else 10
    result = report.Report("one-character", f"{megabytes} MB of one character through every kind of tokenizer",
                           arguments)
    slowest = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in tokenizers(pathlib.Path(folder), arguments.tokenizers, arguments.quick):
            rows = [report.ours("bench", "tokenizer", "--vocab-size", 0, "--one-character-mb", megabytes, "--tokenizer",
                                path)["encode"][0]["one_character_s"] for _ in range(arguments.rounds)]
            worst = max(rows[0], key=rows[0].get)
            result.add(f"{path.name}, the slowest character ({worst})", [row[worst] for row in rows], "s", at_most=1)
            slowest = max(slowest, min(row[worst] for row in rows))
    result.write()
    return slowest >= 1


if __name__ == "__main__":
    sys.exit(main())
