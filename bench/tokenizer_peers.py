#!/usr/bin/env python3
"""Our tokenizer beside tiktoken and Hugging Face tokenizers, in turns on the same machine.

    python3 bench/tokenizer_peers.py MEGATRON GPT2_FOLDER TEXT.jsonl.zst [ROUNDS]

Encoding: one thread, processor seconds. Training: 32,000 tokens, two threads, wall seconds. Needs tiktoken, tokenizers
and zstandard from PyPI. Prints one JSON object a round, then the medians and what they are to ours.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "2"
import tiktoken
import zstandard
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"  # tiktoken's own form


def gpt2_tiktoken(folder):
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    vocabulary = json.loads(pathlib.Path(folder, "encoder.json").read_text(encoding="utf-8"))
    vocabulary.pop("<|endoftext|>")
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in vocabulary.items()}
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})


def main():
    megatron, gpt2, corpus = sys.argv[1:4]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    with open(corpus, "rb") as file:
        lines = zstandard.ZstdDecompressor().stream_reader(file).read().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    megabytes = sum(len(text.encode()) for text in texts) * 1e-6
    peer = gpt2_tiktoken(gpt2)
    rows = []
    for _ in range(rounds):
        words = [megatron, "bench", "tokenizer", "--tokenizer", gpt2, "--input", corpus]
        ours = json.loads(subprocess.check_output([*words, "--threads", "2", "--repeats", "1", "--json"]))
        start = time.process_time()
        for text in texts:
            peer.encode_ordinary(text)
        tiktoken_rate = megabytes / (time.process_time() - start)
        theirs = Tokenizer(models.BPE())
        theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        start = time.perf_counter()
        theirs.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=32000, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        rows.append({"encode_mb_per_core_s": ours["encode_mb_per_core_s"], "tiktoken_mb_per_core_s": tiktoken_rate,
                     "train_s": ours["train_s"], "tokenizers_train_s": time.perf_counter() - start})
        print(json.dumps(rows[-1]), flush=True)
    median = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    median["encode_ratio"] = median["encode_mb_per_core_s"] / median["tiktoken_mb_per_core_s"]
    median["train_ratio"] = median["tokenizers_train_s"] / median["train_s"]
    print(json.dumps(median))


main()
