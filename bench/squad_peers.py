#!/usr/bin/env python3
"""Rows of BERT out of a SQuAD beside Hugging Face's fast pipeline, in turns on one core of the same machine.

    python3 bench/squad_peers.py MEGATRON [SQUAD_JSON [VOCAB_TXT [ROUNDS]]]

From the file to padded rows of 384 tokens: reading, tokens with the places they have in the context, windows. Ours:
megatron data features, processor seconds of its own report. Theirs: json.load, and what the question answering example
of transformers does with its fast tokenizer for evaluation: batches of 1000 questions, truncation of the context alone,
overflowing windows, offsets, those outside of the context set to None; processor seconds. Both strides are 128: theirs
is what two windows share, ours, as BERT's own code has it, what their beginnings lie apart, which makes more rows.
Needs transformers from PyPI. Prints one JSON object a round, then their medians.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from transformers import BertTokenizerFast

SEQ_LENGTH, SHARED, APART, BATCH, GOAL = 384, 128, 128, 1000, 5


def theirs(tokenizer, path):
    start = time.process_time()
    with open(path, encoding="utf-8") as file:
        articles = json.load(file)["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    pairs = [(question, paragraph["context"]) for paragraph in paragraphs for question in paragraph["qas"]]
    rows = tokens = 0
    for begin in range(0, len(pairs), BATCH):
        part = pairs[begin:begin + BATCH]
        batch = tokenizer([question["question"].lstrip() for question, _ in part], [context for _, context in part],
                          truncation="only_second", max_length=SEQ_LENGTH, stride=SHARED, padding="max_length",
                          return_overflowing_tokens=True, return_offsets_mapping=True)
        samples = batch.pop("overflow_to_sample_mapping")
        batch["example_id"] = [part[sample][0]["id"] for sample in samples]
        for i in range(len(samples)):
            sequence = batch.sequence_ids(i)
            batch["offset_mapping"][i] = [place if sequence[k] == 1 else None
                                          for k, place in enumerate(batch["offset_mapping"][i])]
            tokens += sum(batch["attention_mask"][i])
        rows += len(samples)
    return {"seconds": time.process_time() - start, "rows": rows, "tokens": tokens}


def ours(megatron, path, vocabulary):
    words = [megatron, "data", "features", "--task", "squad1", "--input", path, "--tokenizer", vocabulary,
             "--seq-length", SEQ_LENGTH, "--doc-stride", APART, "--threads", 1, "--json"]
    report = json.loads(subprocess.check_output([str(word) for word in words]))
    return {"seconds": report["cpu_s"], "rows": report["rows"], "tokens": report["tokens"]}


def main():
    megatron = sys.argv[1]
    data = pathlib.Path("../shared/data")
    path = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else data / "squad/dev-v1.1.json"
    vocabulary = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else data / "bert/vocab.txt"
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    tokenizer = BertTokenizerFast(vocab=str(vocabulary))
    results = []
    for _ in range(rounds):
        results.append({"ours": ours(megatron, path, vocabulary), "theirs": theirs(tokenizer, path)})
        print(json.dumps(results[-1]), flush=True)
    mine, peer = (statistics.median(result[who]["seconds"] for result in results) for who in ("ours", "theirs"))
    ratios = [result["theirs"]["seconds"] / result["ours"]["seconds"] for result in results]
    print(json.dumps({"what": "SQuAD featurization, one core", "file": path.name, "ours_s": mine, "peer_s": peer,
                      "ratio": statistics.median(ratios), "goal": GOAL, "ratios": ratios}))


main()
