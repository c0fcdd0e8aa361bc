#!/usr/bin/env python3
"""Samples of BERT and T5 with Megatron-Core's, in turns on one core, and whether they are the same.

    bench/masked_samples_peers.py [--program build/data_masked_bench] [--rounds 5]

The program is built with -DMEGATRON_BENCH=ON. The sentences are those of the novels, tokenized with BERT base uncased's
vocabulary (`megatron data preprocess --split-sentences`). Needs megatron-core 0.16, torch and numpy from PyPI.
"""
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import report

report.need_modules("numpy", "torch", "megatron")
import numpy  # noqa: E402
import torch  # noqa: E402
from megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.megatron_tokenizer import MegatronLegacyTokenizer
from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
from megatron.core.datasets.utils import Split

SEQ_LENGTH, SAMPLES, OURS, THEIRS = 512, 200_000, 20_000, 300
logging.disable(logging.WARNING)


class WordPieces(MegatronLegacyTokenizer):
    """What the datasets ask of Megatron-LM's tokenizer: vocab.txt, then [BOS], [EOS] and 100 sentinels."""

    def __init__(self, vocab):
        super().__init__(vocab)
        lines = pathlib.Path(vocab).read_text(encoding="utf-8").split("\n")
        lines = lines[:-1] if lines[-1] == "" else lines
        extra = [f"<extra_id_{i}>" for i in range(100)]
        self._spelling = dict(enumerate([*lines, "[BOS]", "[EOS]", *extra]))
        self._id = {spelling: token for token, spelling in self._spelling.items()}
        self.additional_special_tokens_ids = [self._id[spelling] for spelling in extra]
        self.cls, self.sep, self.pad, self.mask, self.bos, self.eos = (
            self._id[f"[{name}]"] for name in ("CLS", "SEP", "PAD", "MASK", "BOS", "EOS"))

    additional_special_tokens_ids = cls = sep = pad = mask = bos = eos = None
    vocab = property(lambda self: self._id)
    inv_vocab = property(lambda self: self._spelling)
    vocab_size = property(lambda self: len(self._spelling))

    def tokenize(self, text):
        raise NotImplementedError


def total(sample, keys):
    return sum(int((numpy.arange(1, len(sample[key]) + 1) * numpy.asarray(sample[key])).sum()) for key in keys)


def theirs(kind, prefix, vocab):
    masking = dict(masking_probability=0.15, short_sequence_probability=0.1, masking_do_full_word=True,
                   masking_do_permutation=False, masking_use_longer_ngrams=False)
    with tempfile.TemporaryDirectory() as cache:
        common = dict(random_seed=1234, sequence_length=SEQ_LENGTH, split="1", path_to_cache=cache,
                      tokenizer=WordPieces(vocab), blend=([prefix], None), **masking)
        if kind == "bert":
            cls, keys = BERTMaskedWordPieceDataset, ("text", "types", "labels")
            config = BERTMaskedWordPieceDatasetConfig(
                classification_head=True, masking_max_ngram=3, masking_use_geometric_distribution=False, **common)
        else:
            cls, keys = T5MaskedWordPieceDataset, ("text_enc", "text_dec", "labels")
            config = T5MaskedWordPieceDatasetConfig(
                sequence_length_decoder=SEQ_LENGTH, masking_max_ngram=10, masking_use_geometric_distribution=True,
                **common)
        pair = IndexedDataset(prefix)
        documents = numpy.arange(len(pair.document_indices) - 1, dtype=numpy.int32)
        start = time.perf_counter()
        dataset = cls(pair, prefix, documents, SAMPLES, Split.train, config)
        index_s = time.perf_counter() - start
        start = time.perf_counter()
        samples = [dataset[i] for i in range(THEIRS)]
        rate = THEIRS / (time.perf_counter() - start)
        return {"index_s": index_s, "samples_per_s": rate, "sum": sum(total(sample, keys) for sample in samples)}


def main():
    parser = report.options(__doc__, rounds=5)
    parser.add_argument("--program", default=str(report.ROOT / "build/data_masked_bench"))
    arguments = report.parse(parser)
    report.need_program()
    if not os.access(arguments.program, os.X_OK):
        report.skip("no program data_masked_bench",
                    "cmake -DMEGATRON_BENCH=ON build && ninja -C build data_masked_bench")
    vocab = str(report.data("bert/vocab.txt"))
    text = report.data("text/tinyshakespeare.input.txt" if arguments.quick else "text/english_novels_98.jsonl.zst")
    result = report.Report("masked-samples", f"Samples of BERT and T5, {SEQ_LENGTH} tokens, one core", arguments)
    if os.access("/dev/shm", os.W_OK):  # only one of the two waits until the index is on the disk
        os.environ["TMPDIR"] = tempfile.tempdir = "/dev/shm"
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        prefix = f"{folder}/sentences"
        report.ours("data", "preprocess", "--input", text, "--tokenizer", vocab, "--split-sentences",
                    "--output-prefix", prefix)
        prefix += "_text_sentence"

        def ours(kind, fetches):
            words = [arguments.program, kind, prefix, vocab, str(SEQ_LENGTH), str(SAMPLES), str(fetches)]
            return json.loads(subprocess.check_output(words))

        for _ in range(arguments.rounds):
            for kind in ("bert", "t5"):
                mine, peer = ours(kind, OURS), theirs(kind, prefix, vocab)
                if ours(kind, THEIRS)["sum"] != peer["sum"]:
                    sys.exit(f"the first {THEIRS} samples of {kind} differ")
                found.setdefault(kind, []).append((mine, peer))
    for kind, pairs in found.items():
        mine, peers = zip(*pairs)
        result.add(f"{kind}, the same samples", [run["samples_per_s"] for run in mine], "samples/s",
                   [run["samples_per_s"] for run in peers], "Megatron-Core")
        result.add(f"{kind}, the index", [run["index_s"] for run in mine], "s", [run["index_s"] for run in peers],
                   "Megatron-Core", inverse=True)
    result.write()


if __name__ == "__main__":
    main()
