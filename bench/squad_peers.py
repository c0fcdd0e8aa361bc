#!/usr/bin/env python3
"""Rows of BERT out of a SQuAD with Hugging Face's fast pipeline, in turns on one core of the same machine.

    bench/squad_peers.py [SQUAD_JSON [VOCAB_TXT]] [--rounds 5]

From the file to padded rows of 384 tokens: reading, tokens with the places they have in the context, windows. Ours:
megatron data features, processor seconds of its own report. Theirs: json.load, and what the question answering example
of transformers does with its fast tokenizer for evaluation: batches of 1000 questions, truncation of the context alone,
overflowing windows, offsets, those outside of the context set to None; processor seconds. Both strides are 128: theirs
is what two windows share, ours, as BERT's own code has it, what their beginnings lie apart, which makes more rows.
Needs transformers from PyPI.
"""
import json
import os
import pathlib
import time

import report

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
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


def ours(path, vocabulary):
    found = report.ours("data", "features", "--task", "squad1", "--input", path, "--tokenizer", vocabulary,
                        "--seq-length", SEQ_LENGTH, "--doc-stride", APART, "--threads", 1)
    return {"seconds": found["cpu_s"], "rows": found["rows"], "tokens": found["tokens"]}


def main():
    parser = report.options(__doc__, rounds=5)
    parser.add_argument("squad", nargs="?")
    parser.add_argument("vocabulary", nargs="?")
    arguments = report.parse(parser)
    report.need_program()
    report.need_modules("transformers")
    path = pathlib.Path(arguments.squad or report.data("squad/dev-v1.1.json"))
    vocabulary = arguments.vocabulary or report.data("bert/vocab.txt")
    from transformers import BertTokenizerFast
    tokenizer = BertTokenizerFast(vocab=str(vocabulary))
    result = report.Report("squad-rows", f"{path.name} into rows of {SEQ_LENGTH} tokens, one core", arguments)
    mine, peers = zip(*((ours(path, vocabulary), theirs(tokenizer, path)) for _ in range(arguments.rounds)))
    result.add("from the file to rows", [run["seconds"] for run in mine], "s", [run["seconds"] for run in peers],
               "transformers", inverse=True, at_least=GOAL, rows=[mine[0]["rows"], peers[0]["rows"]])
    result.write()


if __name__ == "__main__":
    main()
