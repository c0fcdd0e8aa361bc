#!/usr/bin/env python3
"""`megatron data preprocess` with what Megatron-LM's tools/preprocess_data.py does, in turns on the same machine: one
pass of each over the same corpus, of 76 MB and of 1 GB.

    bench/preprocess_peers.py [--sizes 76 1000] [--rounds 3] [--workers 2] [--peers tiktoken tokenizers]

The corpus: 98 English novels (76 MB of text) in documents of about 20 kB; 1 GB is 14 copies of them, in each of which
the documents are cut elsewhere and a twentieth of the words, others in each copy, are spelled otherwise, as new texts
bring new words; always the same. It is made in .cache/bench once.

The script is not in Megatron-Core's package, so its plain copy is here: a pool of processes that parse a line with
json.loads and encode it, while the parent writes with Megatron-Core's IndexedDatasetBuilder in the order of the input.
Tokens are GPT-2's, through `tokenizers` (as --tokenizer-type HuggingFaceTokenizer) and through `tiktoken`, the faster
of the two. All read the same unpacked file, and must write the same bytes. Our time is that of the whole process, from
its start; the peer's begins when its processes have loaded their tokenizer and ends when the files are written. The
peer through `tokenizers` takes six minutes for 1 GB: one round of it.

Needs megatron-core, numpy, torch, tokenizers, tiktoken and zstandard from PyPI."""
import filecmp
import itertools
import json
import logging
import multiprocessing
import os
import pathlib
import random
import re
import sys
import tempfile
import time

import report

sys.path.append(str(report.ROOT / "tests/testing"))
import rank_files  # noqa: E402

os.environ["TOKENIZERS_PARALLELISM"] = "false"
logging.disable(logging.WARNING)
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"  # tiktoken's own form
END, DOCUMENT = 50256, 20_000
GOALS = {"tokenizers": 20, "tiktoken": None}
NOVELS = "text/english_novels_98.jsonl.zst"


def tokenizers_encoder(folder):
    from tokenizers import ByteLevelBPETokenizer
    tokenizer = ByteLevelBPETokenizer(f"{folder}/encoder.json", f"{folder}/vocab.bpe")
    return lambda text: tokenizer.encode(text).ids


def tiktoken_encoder(folder):
    import tiktoken
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=rank_files.gpt2_ranks(folder),
                             special_tokens={}).encode_ordinary


ENCODERS = {"tokenizers": tokenizers_encoder, "tiktoken": tiktoken_encoder}


class Worker:
    """One process of the pool: the script's Encoder."""
    encode = None

    @classmethod
    def start(cls, kind, folder, ready):
        cls.encode = staticmethod(ENCODERS[kind](folder))
        cls.encode("ready")
        ready.wait()

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
    """Seconds from the moment when all processes are ready."""
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
    ready = multiprocessing.Barrier(workers + 1)
    with multiprocessing.Pool(workers, Worker.start, (kind, folder, ready)) as pool:
        ready.wait(timeout=120)
        start = time.perf_counter()
        builder = IndexedDatasetBuilder(prefix + ".bin", dtype=DType.optimal_dtype(50257))
        with open(path, encoding="utf-8") as lines:
            for ids, lengths in pool.imap(Worker.line, lines, 32):
                builder.add_document(ids, lengths)
        builder.finalize(prefix + ".idx")
        return time.perf_counter() - start


def ours(folder, path, prefix, workers):
    """Seconds of the process, and of its work alone."""
    start = time.perf_counter()
    found = report.ours("data", "preprocess", "--input", path, "--tokenizer", folder, "--output-prefix", prefix,
                        "--append-eod", "--workers", workers, "--progress", "off")
    return time.perf_counter() - start, found["seconds"]


def other_words(words, copy):
    """A twentieth of these words, and how copy number `copy` spells them: two neighbouring letters change places."""
    draw = random.Random(copy)
    respelled = {}
    for word in draw.sample(words, len(words) // 20):
        at = draw.randrange(len(word) - 1)
        respelled[word] = word[:at] + word[at + 1] + word[at] + word[at + 2:]
    return respelled


def documents(novels, megabytes):
    """Texts of about DOCUMENT characters until there are so many megabytes."""
    words = sorted({word for text in novels for word in re.findall(r"(?<= )[a-z]{4,}(?= )", text)})
    left = megabytes * 1e6
    for copy in itertools.count():
        respelled = other_words(words, copy) if copy else {}
        for text in novels:
            if respelled:
                text = " ".join([respelled.get(word, word) for word in text.split(" ")])
            first = DOCUMENT * copy // 16 or DOCUMENT
            for begin, end in itertools.pairwise([0, *range(first, len(text), DOCUMENT), len(text)]):
                if left <= 0:
                    return
                yield text[begin:end]
                left -= len(text[begin:end].encode())


def corpus(megabytes):
    """The file of so many megabytes, made once, and the megabytes of text in it."""
    import zstandard
    path = report.ROOT / f".cache/bench/corpus-1-{megabytes}mb.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(report.data(NOVELS), "rb") as file:
            novels = [json.loads(line)["text"]
                      for line in zstandard.ZstdDecompressor().stream_reader(file).read().splitlines()]
        part = path.with_suffix(".part")
        with open(part, "w", encoding="utf-8") as out:
            size = 0
            for text in documents(novels, megabytes):
                out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                size += len(text.encode())
        path.with_suffix(".size").write_text(str(size))
        part.replace(path)
    return path, int(path.with_suffix(".size").read_text()) / 1e6


def main():
    parser = report.options(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", help="megabytes of text (76 1000)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--peers", nargs="+", choices=sorted(ENCODERS), default=["tiktoken", "tokenizers"])
    arguments = report.parse(parser)
    report.need_program()
    report.need_modules("torch", "megatron", "tokenizers", "tiktoken", "zstandard")
    gpt2 = str(report.data("gpt2/encoder.json").parent)
    sizes = arguments.sizes or ([4] if arguments.quick else [76, 1000])
    files = {size: corpus(size) for size in sizes}
    result = report.Report("preprocess", f"Text to tokens: one pass over one corpus, {arguments.workers} workers",
                           arguments)
    with tempfile.TemporaryDirectory(prefix="megatron-bench-", dir=report.ROOT / ".cache/bench") as folder:
        for size, (path, megabytes) in files.items():
            mine, work, theirs = [], [], {kind: ([], []) for kind in arguments.peers}
            for number in range(arguments.rounds):
                for kind in arguments.peers:
                    if number > 0 and kind == "tokenizers" and size > 200:
                        continue
                    whole, working = ours(gpt2, path, f"{folder}/ours", arguments.workers)
                    seconds = peer(kind, gpt2, path, f"{folder}/peer", arguments.workers)
                    for ending in (".bin", ".idx"):
                        if not filecmp.cmp(f"{folder}/ours_text_document{ending}", f"{folder}/peer{ending}", False):
                            sys.exit(f"{kind}: other bytes in {ending}")
                    mine.append(megabytes / whole)
                    work.append(megabytes / working)
                    theirs[kind][0].append(megabytes / whole)
                    theirs[kind][1].append(megabytes / seconds)
                    print(f"{size} MB, {kind}: {mine[-1]:.1f} and {theirs[kind][1][-1]:.1f} MB/s", file=sys.stderr)
            for kind, (ours_rate, peer_rate) in theirs.items():
                result.add(f"{size} MB of text, the process", ours_rate, "MB/s", peer_rate, f"Megatron-LM's, {kind}",
                           at_least=GOALS[kind] if size >= 1000 else None)
            result.add(f"{size} MB of text, the process", mine, "MB/s", at_least=100 if size >= 1000 else None)
            result.add(f"{size} MB of text, without loading the program and the tokenizer", work, "MB/s")
    result.write()


if __name__ == "__main__":
    main()
