#!/usr/bin/env python3
"""The index of a GPT dataset: ours with Megatron-Core's GPTDataset with its compiled helpers, in turns.

    bench/index_peers.py [--documents N] [--rounds N] [--folder DIR]

10 million documents of 1,000 tokens on average, 10 billion tokens, samples of 2,048: one core. Needs megatron-core,
torch and numpy from PyPI in this Python. Only the .idx of the pair has content; its .bin is a hole.
Times: ours is that of the whole process; the peer's begins after its imports. Memory: the most that the process held
(its resident set, files it had mapped included), and how far that grew above the same process before the work. The
three files must have the same bytes.
"""
import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import report

SEQ_LENGTH, SEED = 2048, 1234
FILES = ("document_index", "sample_index", "shuffle_index")


def make_pair(prefix, documents):
    import numpy
    lengths = numpy.random.default_rng(1).integers(1, 2000, size=documents, dtype=numpy.int32)
    pointers = numpy.zeros(documents, dtype=numpy.int64)
    numpy.cumsum(lengths[:-1].astype(numpy.int64) * 2, out=pointers[1:])
    with open(prefix + ".idx", "wb") as idx:
        idx.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, documents, documents + 1))
        lengths.tofile(idx)
        pointers.tofile(idx)
        numpy.arange(documents + 1, dtype=numpy.int64).tofile(idx)
    tokens = int(lengths.sum(dtype=numpy.int64))
    with open(prefix + ".bin", "wb") as file:
        file.truncate(2 * tokens)
    return tokens


def resident_bytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def run_peer(prefix, samples, cache):
    """In a process of its own: builds the training index and prints what that took."""
    import logging
    import warnings
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import numpy
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    class Tokenizer:
        unique_identifiers = {"class": "none"}
        eod, pad, vocab_size = 0, -1, 50000

    config = GPTDatasetConfig(random_seed=SEED, sequence_length=SEQ_LENGTH, blend=([prefix], None), split="1",
                              path_to_cache=cache, tokenizer=Tokenizer(), reset_position_ids=False,
                              reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False)
    before = resident_bytes("VmRSS")
    start = time.perf_counter()
    pair = IndexedDataset(prefix)
    indices = numpy.arange(len(pair), dtype=numpy.int32)
    GPTDataset(pair, prefix, indices, samples, Split.train, config)
    seconds = time.perf_counter() - start
    peak = resident_bytes("VmHWM")
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "grown_bytes": peak - before}))


def measured(words):
    """Wall seconds and peak memory of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{words[0]} failed")
    return time.perf_counter() - start, usage.ru_maxrss * 1024


def run_ours(prefix, samples, output):
    _, before = measured([report.PROGRAM, "data", "index", "--help"])
    seconds, peak = measured([report.PROGRAM, "data", "index", prefix, "--seq-length", str(SEQ_LENGTH), "--seed",
                              str(SEED), "--split", "1", "--samples", f"{samples},0,0", "--output", output, "--json"])
    return {"seconds": seconds, "peak_bytes": peak, "grown_bytes": peak - before}


def digests(paths):
    return [hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest() for path in paths]


def one_round(folder, prefix, samples):
    ours, theirs = folder / "ours", folder / "theirs"
    row = {"ours": run_ours(prefix, samples, str(ours))}
    words = [sys.executable, __file__, "--peer", prefix, str(samples), str(theirs)]
    printed = subprocess.check_output(words, env={**os.environ, "OMP_NUM_THREADS": "1"})
    row["peer"] = json.loads(printed.splitlines()[-1])
    same = digests(ours / f"train_{name}.npy" for name in FILES)
    if same != digests(next(theirs.glob(f"*{name}.npy")) for name in FILES):
        sys.exit("the index files differ")
    shutil.rmtree(ours)
    shutil.rmtree(theirs)
    return row


def main():
    if sys.argv[1:2] == ["--peer"]:
        return run_peer(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    if sys.argv[1:2] == ["--pair"]:
        return print(make_pair(sys.argv[2], int(sys.argv[3])))
    parser = report.options(__doc__, rounds=5)
    parser.add_argument("--documents", type=int)
    parser.add_argument("--folder", help="where the files go; default: a temporary folder")
    arguments = report.parse(parser)
    report.need_program()
    report.need_modules("torch", "megatron", "numpy")
    documents = arguments.documents or (100_000 if arguments.quick else 10_000_000)
    result = report.Report("index", f"Index of a GPT dataset: {documents:,} documents of 1,000 tokens, samples of "
                           f"{SEQ_LENGTH}", arguments)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = pathlib.Path(name)
        prefix = str(folder / "pair")
        # In a process of its own: what this one holds would count as memory of the processes that it starts.
        tokens = int(subprocess.check_output([sys.executable, __file__, "--pair", prefix, str(documents)]))
        samples = tokens // SEQ_LENGTH * 99 // 100
        rows = []
        for _ in range(arguments.rounds):
            rows.append(one_round(folder, prefix, samples))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    goals = {"seconds": {"at_least": 1.5}, "peak_bytes": {"at_most": 0.6, "timed": False}, "grown_bytes": {}}
    for what, unit, scale in (("seconds", "s", 1), ("peak_bytes", "MB", 1e-6), ("grown_bytes", "MB", 1e-6)):
        mine, theirs = ([row[who][what] * scale for row in rows] for who in ("ours", "peer"))
        result.add(f"the same files: {what.split('_')[0]}{' memory' * (unit == 'MB')}", mine, unit, theirs,
                   "Megatron-Core", inverse=unit == "s", **goals[what], tokens=tokens)
    result.write()


if __name__ == "__main__":
    main()
