#!/usr/bin/env python3
"""10 MB of one character through every kind of tokenizer: seconds of one core for each, in a table.

    bench/one_character.py MEGATRON [FOLDER_OR_FILE…]

The small tokenizers of tests/golden/tokenizers (every step and model of published files), GPT-2's and BERT's, rank
files like tiktoken's cl100k and o200k, Qwen's and Llama 3's, and those that are named. Fails where one takes 1 s."""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests/testing"))
import rank_files  # noqa: E402

DATA = ROOT.parent / "shared/data"
FORMS = {"cl100k": 100256, "llama3": 128000, "qwen": 151643, "o200k": 199998}


def tokenizers(folder):
    yield from sorted(path for path in (ROOT / "tests/golden/tokenizers").iterdir()
                      if path.suffix in (".json", ".model") and path.stem != "cases")
    yield from (DATA / "gpt2", DATA / "bert/vocab.txt")
    ranks = rank_files.gpt2_ranks(DATA / "gpt2")
    for name, count in FORMS.items():
        rank_files.write(folder / f"{name}.tiktoken", rank_files.joined(ranks, count))
        yield folder / f"{name}.tiktoken"
    yield from map(pathlib.Path, sys.argv[2:])


def seconds(path):
    result = subprocess.run([sys.argv[1], "bench", "tokenizer", "--vocab-size", "0", "--one-character-mb", "10",
                             "--json", "--tokenizer", path], stdout=subprocess.PIPE, check=True)
    return json.loads(result.stdout)["encode"][0]["one_character_s"]


def main():
    slowest = (0, "", "")
    with tempfile.TemporaryDirectory() as folder:
        for path in tokenizers(pathlib.Path(folder)):
            row = seconds(path)
            if not slowest[1]:
                print(" " * 20, *(f"{name[:9]:>9}" for name in row))
            print(f"{path.name[:20]:20}", *(f"{time:9.3f}" for time in row.values()), flush=True)
            slowest = max(slowest, *((time, path.name, name) for name, time in row.items()))
    print("slowest: {:.3f} s, {}, {}".format(*slowest))
    return slowest[0] >= 1


if __name__ == "__main__":
    sys.exit(main())
