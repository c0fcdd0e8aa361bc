#!/usr/bin/env python3
"""Our tokenizers beside tiktoken and Hugging Face tokenizers, in turns on the same machine.

    python3 bench/tokenizer_peers.py MEGATRON [DATA_FOLDER [SMOLLM2_FOLDER [ROUNDS]]]

DATA_FOLDER has text/english_novels_98.jsonl.zst, gpt2/ and bert/vocab.txt; SMOLLM2_FOLDER a tokenizer.json (left out
where it is not there). Encoding: processor seconds, each document whole. tokenizers takes every 4th novel, as it is
slow, by encode_batch_fast, the call of it that makes no offsets. Training: byte-level BPE, 32,000 tokens, two threads,
wall seconds, all novels. Needs tiktoken, tokenizers and zstandard from PyPI. Prints one JSON object a round, then a
table of the medians, then them as JSON.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "2"  # for training
import tiktoken
import zstandard
from tokenizers import BertWordPieceTokenizer, Tokenizer, decoders, models, pre_tokenizers, trainers

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"  # tiktoken's own form
PART = 4  # tokenizers takes each 4th document


def gpt2_tiktoken(folder):
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    vocabulary = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    vocabulary.pop("<|endoftext|>")
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in vocabulary.items()}
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})


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


def clock_hz():
    lines = [line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("cpu MHz")]
    return float(lines[0].split(":")[1]) * 1e6 if lines else None


def main():
    megatron = sys.argv[1]
    data = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "../shared/data")
    smollm2 = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else "models/smollm2-135m-instruct")
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    corpus = data / "text/english_novels_98.jsonl.zst"
    with open(corpus, "rb") as file:
        lines = zstandard.ZstdDecompressor().stream_reader(file).read().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    part = texts[::PART]

    gpt2 = byte_level(models.BPE.from_file(str(data / "gpt2/encoder.json"), str(data / "gpt2/vocab.bpe")))
    gpt2_by_tiktoken = gpt2_tiktoken(data / "gpt2")
    bert = BertWordPieceTokenizer(str(data / "bert/vocab.txt"))
    # name, goal, our tokenizer, the peer
    rows = [("GPT-2 / tiktoken", 3, data / "gpt2", lambda: rate(
                texts, lambda documents: [gpt2_by_tiktoken.encode_ordinary(text) for text in documents])),
            ("GPT-2 / tokenizers", 25, data / "gpt2", lambda: rate(part, gpt2.encode_batch_fast)),
            ("WordPiece / BertWordPieceTokenizer", 8, data / "bert/vocab.txt", lambda: rate(
                part, lambda documents: bert._tokenizer.encode_batch_fast(documents, add_special_tokens=False)))]
    if smollm2.exists():
        peer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
        rows.append(("SmolLM2 / tokenizers", 20, smollm2, lambda: rate(part, peer.encode_batch_fast)))

    paths = list(dict.fromkeys(str(path) for _, _, path, _ in rows))
    results = []
    for _ in range(rounds):
        words = [megatron, "bench", "tokenizer", "--input", corpus, "--threads", "2", "--repeats", "1", "--json",
                 "--one-character-mb", "10", "--tokenizer", *paths]
        ours = json.loads(subprocess.check_output([str(word) for word in words]))
        by_path = {row["tokenizer"]: row for row in ours["encode"]}
        result = {}
        for name, _, path, peer_rate in rows:
            result[name] = [by_path[str(path)]["encode_mb_per_core_s"], peer_rate()]
        result["training, seconds"] = [ours["train_s"], train(texts)]
        worst = {path: max(row["one_character_s"].items(), key=lambda item: item[1]) for path, row in by_path.items()}
        result["worst 10 MB of one character, seconds"] = {path: f"{name} {s:.2f}" for path, (name, s) in worst.items()}
        results.append(result)
        print(json.dumps(result), flush=True)

    goals = {name: goal for name, goal, _, _ in rows} | {"training, seconds": 3}
    summary, clock = [], clock_hz()
    for name, goal in goals.items():
        mine, theirs = (statistics.median(result[name][i] for result in results) for i in (0, 1))
        ratios = [b / a if "seconds" in name else a / b for a, b in (result[name] for result in results)]
        summary.append({"what": name, "ours": mine, "peer": theirs, "ratio": statistics.median(ratios), "goal": goal,
                        "ratios": ratios})
        if clock and "seconds" not in name:
            summary[-1]["bytes_per_cycle"] = mine * 1e6 / clock
    print(f"\n{'what':36} {'ours':>9} {'peer':>9} {'ratio':>7} {'goal':>5}  rounds")
    for row in summary:
        print(f"{row['what']:36} {row['ours']:9.2f} {row['peer']:9.2f} {row['ratio']:7.1f} {row['goal']:5}  "
              + " ".join(f"{ratio:.1f}" for ratio in row["ratios"]))
    print(json.dumps({"rounds": rounds, "summary": summary}))


main()
