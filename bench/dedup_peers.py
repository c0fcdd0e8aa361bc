#!/usr/bin/env python3
"""megatron data dedup with datasketch's MinHashLSH on the same documents.

    bench/dedup_peers.py [--documents N] [--peer-documents N] [--folder DIR] [--rounds 3]

Makes a corpus of 1,000,000 documents of 100 words, of which a tenth are copies of earlier ones with up to three words
exchanged; from a seed, so always the same. Runs ours and the peer on the first 20,000 in turns, which is equal work,
and ours on all of them with two threads; the peer's time for all is taken to grow as the number of documents. Both read
the same JSON lines, hash the same five-word shingles into 128 places and look for a similarity of 0.7. Ours also
compares each candidate exactly and writes what stays. Needs numpy and datasketch from PyPI, 2 GB of disk.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import report

WORDS = 100


def make_corpus(path, documents):
    """Writes the corpus; returns (copy, original) of the planted duplicates."""
    import numpy
    source = numpy.random.default_rng(20240501)
    letters = numpy.frombuffer(b"etaoinshrdlucmfwypvbgk", dtype=numpy.uint8)
    words = {source.choice(letters, size=n).tobytes(): None for n in source.integers(3, 9, size=60000)}
    vocabulary = numpy.array(list(words)[:50000], dtype=object)
    planted = []
    with open(path, "wb") as out:
        for first in range(0, documents, 10000):
            count = min(10000, documents - first)
            # Frequent words come more often, as in text: the square of a uniform number.
            ids = (source.random((count, WORDS)) ** 2 * len(vocabulary)).astype(numpy.int64)
            for i in numpy.flatnonzero(source.random(count) < 0.1):
                if i == 0:
                    continue
                original = int(source.integers(0, i))
                ids[i] = ids[original]
                for place in source.integers(0, WORDS, size=int(source.integers(0, 4))):
                    ids[i, place] = source.integers(0, len(vocabulary))
                planted.append((first + int(i), first + original))
            out.write(b"".join(b'{"id": %d, "text": "%s"}\n' % (first + i, b" ".join(row))
                               for i, row in enumerate(vocabulary[ids].tolist())))
    return planted


def run_ours(corpus, folder, threads=2):
    listing = pathlib.Path(folder, "report.jsonl")
    words = [report.PROGRAM, "data", "dedup", "--input", str(corpus), "--output",
             str(pathlib.Path(folder, "kept.jsonl")), "--report", str(listing),
             "--workers", str(threads), "--progress", "off", "--json"]
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    result = json.loads(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status != 0:
        sys.exit("megatron data dedup failed")
    removed = [json.loads(line) for line in listing.read_text().splitlines()]
    return {"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_bytes": usage.ru_maxrss * 1024,
            "duplicates": result["duplicates"]}, removed


def run_peer(corpus, documents):
    from datasketch import MinHash, MinHashLSH
    start, cpu = time.perf_counter(), time.process_time()
    index = MinHashLSH(threshold=0.7, num_perm=128)
    duplicates = 0
    with open(corpus, "rb") as lines:
        for i, line in zip(range(documents), lines):
            words = json.loads(line)["text"].encode().split(b" ")
            signature = MinHash(num_perm=128)
            signature.update_batch({b" ".join(words[at:at + 5]) for at in range(len(words) - 4)})
            if index.query(signature):
                duplicates += 1
            else:
                index.insert(i, signature)
    return {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu, "duplicates": duplicates}


def recall_of(corpus, planted, removed):
    """Share of planted copies (a sample) that went, of those with a Jaccard similarity of 0.8 and of 0.7 or more."""
    sample = random.Random(1).sample(planted, min(len(planted), 5000))
    wanted = {i for pair in sample for i in pair}
    shingles = {}
    with open(corpus, "rb") as lines:
        for i, line in enumerate(lines):
            if i in wanted:
                words = json.loads(line)["text"].split(" ")
                shingles[i] = {tuple(words[at:at + 5]) for at in range(len(words) - 4)}
    gone = {row["document"] for row in removed}
    counts = {0.8: [0, 0], 0.7: [0, 0]}
    for copy, original in sample:
        a, b = shingles[copy], shingles[original]
        similarity = len(a & b) / len(a | b)
        for least, count in counts.items():
            if similarity >= least:
                count[0] += 1
                count[1] += copy in gone
    return {f"recall_at_{least}": found / all_ for least, (all_, found) in counts.items() if all_}


def main():
    parser = report.options(__doc__)
    parser.add_argument("--documents", type=int)
    parser.add_argument("--peer-documents", type=int)
    parser.add_argument("--folder", help="where the files go; default: a temporary folder")
    arguments = report.parse(parser)
    report.need_program()
    report.need_modules("numpy", "datasketch")
    documents = arguments.documents or (10_000 if arguments.quick else 1_000_000)
    few = min(documents, arguments.peer_documents or (1_000 if arguments.quick else 20_000))
    result = report.Report("dedup", "Near-duplicates of documents of 100 words", arguments)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        corpus, part = pathlib.Path(folder, "corpus.jsonl"), pathlib.Path(folder, "part.jsonl")
        planted = make_corpus(corpus, documents)
        with open(corpus, "rb") as lines, open(part, "wb") as out:
            out.writelines(line for _, line in zip(range(few), lines))
        rounds = []
        for _ in range(arguments.rounds):
            ours_few, peer = run_ours(part, folder)[0], run_peer(corpus, few)
            whole, removed = run_ours(corpus, folder)
            rounds.append((whole, ours_few, peer))
        recall = recall_of(corpus, planted, removed)
    wholes, fews, peers = zip(*rounds)
    result.add(f"{few:,} documents, the process", [run["seconds"] for run in fews], "s",
               [run["seconds"] for run in peers], "datasketch", inverse=True)
    scale = documents / few
    result.add(f"{documents:,} documents (the peer's: {scale:g} times its {few:,})", [run["seconds"] for run in wholes],
               "s", [run["seconds"] * scale for run in peers], "datasketch", inverse=True, at_least=30)
    result.add(f"{documents:,} documents", [run["seconds"] for run in wholes], "s", at_most=60)
    result.add(f"{documents:,} documents, processor time", [run["cpu_seconds"] for run in wholes], "s",
               [run["cpu_seconds"] * scale for run in peers], "datasketch", inverse=True)
    result.add("peak memory", [run["peak_bytes"] / 1e6 for run in wholes], "MB", at_most=2000,
               timed=False)
    for name, share in recall.items():
        result.add(name.replace("_", " "), share)
    result.write()


if __name__ == "__main__":
    main()
