#!/usr/bin/env python3
"""Our tokenizers with tiktoken and Hugging Face tokenizers, in turns on the same machine.

    bench/tokenizer_peers.py [--rounds 3]

BENCH_DATA has text/english_novels_98.jsonl.zst, gpt2/ and bert/vocab.txt; SmolLM2's tokenizer.json is left out where
MEGATRON_MODELS has none. Encoding: processor seconds, each document whole. tokenizers takes every 4th novel, as it is
slow, by encode_batch_fast, the call of it that makes no offsets. Training: byte-level BPE, 32,000 tokens, two threads,
wall seconds, all novels. Needs tiktoken, tokenizers and zstandard from PyPI.
"""
import json
import os
import pathlib
import sys
import tempfile
import time

import report

os.environ["RAYON_NUM_THREADS"] = "2"  # for training
report.need_modules("tiktoken", "zstandard", "tokenizers")
import tiktoken  # noqa: E402
import zstandard  # noqa: E402
from tokenizers import BertWordPieceTokenizer, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

sys.path.append(str(report.ROOT / "tests/testing"))
import rank_files  # noqa: E402

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"  # tiktoken's own form
PART = 4  # tokenizers takes each 4th document


def byte_level(model):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def rate(texts, encode):
    """MB of text a processor second."""
    start = time.process_time()
    encode(texts)
    return sum(len(text.encode()) for text in texts) * 1e-6 / (time.process_time() - start)


def train(texts):
    theirs = byte_level(models.BPE())
    start = time.perf_counter()
    theirs.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=32000, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return time.perf_counter() - start


def main():
    arguments = report.parse(report.options(__doc__))
    report.need_program()
    data = report.data("gpt2/encoder.json").parents[1]
    with open(report.data("text/english_novels_98.jsonl.zst"), "rb") as file:
        lines = zstandard.ZstdDecompressor().stream_reader(file).read().splitlines()
    texts = [json.loads(line)["text"] for line in lines][:8 if arguments.quick else None]
    part = texts[::PART]

    gpt2 = byte_level(models.BPE.from_file(str(data / "gpt2/encoder.json"), str(data / "gpt2/vocab.bpe")))
    tiktoken_gpt2 = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=rank_files.gpt2_ranks(data / "gpt2"),
                                      special_tokens={})
    bert = BertWordPieceTokenizer(str(data / "bert/vocab.txt"))
    # name, peer, goal, our tokenizer, the peer's rate
    rows = [("GPT-2", "tiktoken", 3, data / "gpt2", lambda: rate(
                texts, lambda documents: [tiktoken_gpt2.encode_ordinary(text) for text in documents])),
            ("GPT-2", "tokenizers", 25, data / "gpt2", lambda: rate(part, gpt2.encode_batch_fast)),
            ("WordPiece", "tokenizers", 8, data / "bert/vocab.txt", lambda: rate(
                part, lambda documents: bert._tokenizer.encode_batch_fast(documents, add_special_tokens=False)))]
    smollm2 = report.MODELS / "smollm2-135m-instruct"
    if (smollm2 / "tokenizer.json").exists():
        peer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
        rows.append(("SmolLM2", "tokenizers", 20, smollm2, lambda: rate(part, peer.encode_batch_fast)))

    paths = list(dict.fromkeys(str(path) for _, _, _, path, _ in rows))
    result = report.Report("tokenizer", f"Tokenizers, {sum(map(len, texts)) / 1e6:.1f} MB of novels",
                           arguments)
    found, worst = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        corpus = pathlib.Path(folder, "text.jsonl")
        corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        for _ in range(arguments.rounds):
            ours = report.ours("bench", "tokenizer", "--input", corpus, "--threads", 2, "--repeats", 1,
                               "--one-character-mb", 1 if arguments.quick else 10, "--tokenizer", *paths)
            by_path = {row["tokenizer"]: row for row in ours["encode"]}
            for name, against, _, path, peer_rate in rows:
                pair = (by_path[str(path)]["encode_mb_per_core_s"], peer_rate())
                found.setdefault((name, against), []).append(pair)
            for path in paths:
                worst.setdefault(path, []).append(max(by_path[path]["one_character_s"].values()))
            found.setdefault("training", []).append((ours["train_s"], train(texts)))
    for name, against, goal, _, _ in rows:
        mine, theirs = zip(*found[name, against])
        result.add(f"{name}, encoding", mine, "MB/s", theirs, against, at_least=goal)
    mine, theirs = zip(*found["training"])
    result.add("learning 32,000 tokens of BPE, 2 threads", mine, "s", theirs, "tokenizers", inverse=True, at_least=3)
    for path, seconds in worst.items():
        name = next(row[0] for row in rows if str(row[3]) == path)
        result.add(f"{name}, {1 if arguments.quick else 10} MB of one character, the worst", seconds, "s", at_most=1)
    result.write()


if __name__ == "__main__":
    main()
