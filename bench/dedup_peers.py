#!/usr/bin/env python3
"""megatron data dedup beside datasketch's MinHashLSH on the same documents.

    python3 bench/dedup_peers.py MEGATRON [DOCUMENTS] [PEER_DOCUMENTS] [FOLDER]

Makes a corpus of DOCUMENTS (1,000,000) documents of 100 words, of which a tenth are copies of earlier ones with up to
three words exchanged; from a seed, so always the same. Runs ours on all of them with two threads, the peer on the first
PEER_DOCUMENTS (20,000), in turns with ours on the same; the peer's time is taken to grow as the number of documents.
Both read the same JSON lines, hash the same five-word shingles into 128 places and look for a similarity of 0.7. Ours
also compares each candidate exactly and writes what stays. Needs numpy and datasketch from PyPI, 2 GB of disk. Prints
one JSON object.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import numpy
from datasketch import MinHash, MinHashLSH

WORDS = 100


def make_corpus(path, documents):
    """Writes the corpus; returns (copy, original) of the planted duplicates."""
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


def run_ours(megatron, corpus, folder, threads=2):
    report = pathlib.Path(folder, "report.jsonl")
    words = [megatron, "data", "dedup", "--input", str(corpus), "--output", str(pathlib.Path(folder, "kept.jsonl")),
             "--report", str(report), "--workers", str(threads), "--progress", "off", "--json"]
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    result = json.loads(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    assert status == 0, status
    removed = [json.loads(line) for line in report.read_text().splitlines()]
    return {"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_bytes": usage.ru_maxrss * 1024,
            "duplicates": result["duplicates"]}, removed


def run_peer(corpus, documents):
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
    megatron = sys.argv[1]
    documents = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    peer_documents = min(documents, int(sys.argv[3]) if len(sys.argv) > 3 else 20_000)
    with tempfile.TemporaryDirectory(dir=sys.argv[4] if len(sys.argv) > 4 else None) as folder:
        corpus, part = pathlib.Path(folder, "corpus.jsonl"), pathlib.Path(folder, "part.jsonl")
        planted = make_corpus(corpus, documents)
        with open(corpus, "rb") as lines, open(part, "wb") as out:
            out.writelines(line for _, line in zip(range(peer_documents), lines))
        ours_part, _ = run_ours(megatron, part, folder)
        peer = run_peer(corpus, peer_documents)
        ours, removed = run_ours(megatron, corpus, folder)
        scaled = peer["seconds"] * documents / peer_documents
        print(json.dumps({
            "documents": documents, "bytes": corpus.stat().st_size, "planted": len(planted), "ours": ours,
            **recall_of(corpus, planted, removed), "peer_documents": peer_documents, "ours_on_these": ours_part,
            "peer_on_these": peer, "peer_seconds_scaled": scaled, "ratio": scaled / ours["seconds"],
            "ratio_of_cpu": peer["cpu_seconds"] * documents / peer_documents / ours["cpu_seconds"]}, indent=1))


main()
