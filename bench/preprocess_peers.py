#!/usr/bin/env python3
"""`megatron data preprocess` beside what Megatron-LM's tools/preprocess_data.py does, in turns on the same machine.

    python3 bench/preprocess_peers.py MEGATRON GPT2_FOLDER TEXT.jsonl.zst [ROUNDS [WORKERS]]

The script is not in Megatron-Core's package, so its plain copy is here: a pool of processes that parse a line with
json.loads and encode it, while the parent writes with Megatron-Core's IndexedDatasetBuilder in the order of the input.
It reads the text unpacked, as it cannot read .zst; ours unpacks it too. The tokenizer is GPT-2's through `tokenizers`
(as --tokenizer-type HuggingFaceTokenizer) and through `tiktoken`. Each peer takes a part of the text, cut at lines,
that keeps the whole within minutes, and the files of both must be equal; the speed of ours is that of all of the text,
four times over. Times are of whole processes, from their start. Needs megatron-core, numpy, torch, tokenizers,
tiktoken and zstandard from PyPI. Prints a table and one JSON object.
"""
import filecmp
import importlib
import json
import logging
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
logging.disable(logging.WARNING)
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"  # tiktoken's own form
END = 50256
PEER_BYTES = {"tokenizers": 16 << 20, "tiktoken": 64 << 20}
REPEATS = 4  # of the novels in the text that ours takes: as a corpus, longer than what a process costs to start


def tokenizers_encoder(folder):
    from tokenizers import ByteLevelBPETokenizer
    tokenizer = ByteLevelBPETokenizer(f"{folder}/encoder.json", f"{folder}/vocab.bpe")
    return lambda text: tokenizer.encode(text).ids


def tiktoken_encoder(folder):
    import tiktoken
    from tokenizers import pre_tokenizers
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    assert set(byte_of) == set(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = json.loads(pathlib.Path(folder, "encoder.json").read_text(encoding="utf-8"))
    vocabulary.pop("<|endoftext|>")
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in vocabulary.items()}
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}).encode_ordinary


ENCODERS = {"tokenizers": tokenizers_encoder, "tiktoken": tiktoken_encoder}


class Worker:
    """One process of the pool: the script's Encoder."""
    encode = None

    @classmethod
    def start(cls, kind, folder):
        cls.encode = staticmethod(ENCODERS[kind](folder))

    @classmethod
    def line(cls, line):
        text = json.loads(line)["text"]
        ids, lengths = [], []
        for sentence in text if isinstance(text, list) else [text]:
            piece = cls.encode(sentence)
            if piece:
                ids.extend(piece)
                lengths.append(len(piece))
        if ids:
            ids.append(END)
            lengths[-1] += 1
        return ids, lengths


def peer(kind, folder, path, prefix, workers):
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
    start = time.perf_counter()
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=DType.optimal_dtype(50257))
    with multiprocessing.Pool(workers, Worker.start, (kind, folder)) as pool, open(path, encoding="utf-8") as lines:
        for ids, lengths in pool.imap(Worker.line, lines, 32):
            builder.add_document(ids, lengths)
    builder.finalize(prefix + ".idx")
    return time.perf_counter() - start


def ours(megatron, folder, path, prefix, workers):
    start = time.perf_counter()
    subprocess.run([megatron, "data", "preprocess", "--input", path, "--tokenizer", folder, "--output-prefix", prefix,
                    "--append-eod", "--workers", str(workers), "--progress", "off"], check=True,
                   stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def cut(source, limit, path, repeats=1):
    """The first lines of at most `limit` bytes, `repeats` times, as text and packed; the megabytes of their texts.
    Novels are cut into documents of about 20 kB, so that every process has work."""
    import zstandard
    lines, size, text_bytes = [], 0, 0
    with open(source, "rb") as file:
        for line in zstandard.ZstdDecompressor().stream_reader(file).read().splitlines():
            text = json.loads(line)["text"]
            for begin in range(0, len(text), 20000):
                part = text[begin:begin + 20000]
                if size >= limit:
                    break
                lines.append(json.dumps({"text": part}, ensure_ascii=False))
                size += len(lines[-1].encode())
                text_bytes += len(part.encode())
    data = ("\n".join(lines) + "\n").encode() * repeats
    pathlib.Path(path + ".jsonl").write_bytes(data)
    pathlib.Path(path + ".jsonl.zst").write_bytes(zstandard.ZstdCompressor(3).compress(data))
    return text_bytes * repeats * 1e-6


def main():
    megatron, gpt2, source = sys.argv[1:4]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    workers = int(sys.argv[5]) if len(sys.argv) > 5 else 2
    importlib.import_module("megatron.core.datasets.indexed_dataset")  # not part of the time
    report = {"benchmark": "preprocess", "workers": workers}
    with tempfile.TemporaryDirectory(prefix="megatron-bench-") as folder:
        whole = cut(source, 1 << 40, f"{folder}/whole", REPEATS)
        megabytes = {kind: cut(source, limit, f"{folder}/{kind}") for kind, limit in PEER_BYTES.items()}
        rows = []
        for _ in range(rounds):
            seconds = ours(megatron, gpt2, f"{folder}/whole.jsonl.zst", f"{folder}/ours", workers)
            row = {"ours_mb_per_s": whole / seconds}
            for kind, size in megabytes.items():
                ours(megatron, gpt2, f"{folder}/{kind}.jsonl.zst", f"{folder}/part", workers)
                row[f"{kind}_mb_per_s"] = size / peer(kind, gpt2, f"{folder}/{kind}.jsonl", f"{folder}/peer", workers)
                for ending in (".bin", ".idx"):
                    same = filecmp.cmp(f"{folder}/part_text_document{ending}", f"{folder}/peer{ending}", shallow=False)
                    assert same, f"{kind}: other bytes in {ending}"
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
        report |= {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    print("| what | MB/s of text | ours is |\n|--|--|--|")
    print(f"| ours, .jsonl.zst, {workers} workers | {report['ours_mb_per_s']:.1f} | |")
    for kind in PEER_BYTES:
        report[f"{kind}_ratio"] = statistics.median(row["ours_mb_per_s"] / row[f"{kind}_mb_per_s"] for row in rows)
        print(f"| Megatron's way with {kind} | {report[kind + '_mb_per_s']:.2f} | {report[kind + '_ratio']:.1f} x |")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
