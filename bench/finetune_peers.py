#!/usr/bin/env python3
"""Fine-tunes all-MiniLM-L6-v2 on 10,000 pairs of MNLI or QQP, ours and PyTorch with transformers by one recipe, and
compares what they reach on the development set:

    bench/finetune_peers.py [--model minilm-l6] [--data glue] [--task mnli] [--epochs 1] [--limit N] [--only ours|peer]

--model is the Hugging Face folder (MEGATRON_MODELS has it), --data the one (in BENCH_DATA) with {mnli_train_10k,
mnli_dev_matched,qqp_train_10k,qqp_dev_10k}.derived.tsv; --limit takes the first N examples of both files. The recipe:
AdamW, learning rate 1e-4 with linear warm-up over a tenth and decay to 0, weight decay 0.01 but for biases and norms,
dropout 0.1, gradient norm 1, 32 pairs of at most 128 tokens, padded to the longest of a step. Each program tells its
progress on stderr. The two are trained one after the other, once: how many points they differ by counts, and how many
times faster the steps of ours are."""
import csv
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import report

FILES = {"mnli": ("mnli_train_10k.derived.tsv", "mnli_dev_matched.derived.tsv"),
         "qqp": ("qqp_train_10k.derived.tsv", "qqp_dev_10k.derived.tsv")}
COLUMNS = {"mnli": ("sentence1", "sentence2", "gold_label"), "qqp": ("question1", "question2", "is_duplicate")}
LABELS = {"mnli": ["contradiction", "entailment", "neutral"], "qqp": ["0", "1"]}
RATE, WARMUP, BATCH, LENGTH, DECAY = 1e-4, 0.1, 32, 128, 0.01
RECIPE = f"""[data]
seq_length = {LENGTH}
[optimizer]
weight_decay = {DECAY}
[schedule]
lr = {RATE}
lr_decay_style = "linear"
lr_warmup_fraction = {WARMUP}
[train]
micro_batch_size = {BATCH}
[log]
interval = 20
"""


def examples_of(path, task, limit):
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        first, second, label = COLUMNS[task]
        examples = [(row[first], row[second], LABELS[task].index(row[label])) for row in rows
                    if row[label] in LABELS[task]]
    return examples[:limit] if limit else examples


def ours(arguments, train, valid):
    with tempfile.TemporaryDirectory(prefix="finetune-") as folder:
        recipe = pathlib.Path(folder) / "recipe.toml"
        recipe.write_text(RECIPE)
        command = [report.PROGRAM, "finetune", recipe, "--task", arguments.task, "--train-data", train,
                   "--valid-data", valid, "--task.train_limit", arguments.limit, "--task.valid_limit", arguments.limit,
                   "--epochs", arguments.epochs, "--load", arguments.model, "--seed", arguments.seed, "--train.out",
                   pathlib.Path(folder) / "out", "--parallel.threads_per_rank", arguments.threads, "--json"]
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=True)
        metrics = (pathlib.Path(folder) / f"out/seed_{arguments.seed}/metrics.jsonl").read_text().splitlines()
        steps = [object["step_ms"] for object in map(json.loads, metrics) if "step_ms" in object]
        return json.loads(done.stdout)["median"]["accuracy"], sum(steps) / 1e3


def peer(arguments, train, valid):
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        arguments.model, num_labels=len(LABELS[arguments.task]))

    def batch_of(examples):
        inputs = tokenizer([e[0] for e in examples], [e[1] for e in examples], truncation="longest_first",
                           max_length=LENGTH, padding="longest", return_tensors="pt")
        return inputs, torch.tensor([e[2] for e in examples])

    learn, check = (examples_of(path, arguments.task, arguments.limit) for path in (train, valid))
    total = int(len(learn) * arguments.epochs)
    steps = -(-total // BATCH)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
                                  lr=RATE)
    warm = int(WARMUP * steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: s / max(1, warm) if s < warm else max(0.0, (steps - s) / max(1, steps - warm)))
    places = torch.cat([torch.randperm(len(learn)) for _ in range(-(-total // len(learn)))])[:total]
    model.train()
    begin = time.perf_counter()
    for step in range(steps):
        inputs, labels = batch_of([learn[i] for i in places[step * BATCH:(step + 1) * BATCH].tolist()])
        loss = model(**inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 19:
            passed = time.perf_counter() - begin
            print(f"peer: step {step + 1} of {steps}, loss {loss.item():.4f}, {passed:.0f} s, "
                  f"{passed / (step + 1) * (steps - step - 1):.0f} s left", file=sys.stderr)
    train_s = time.perf_counter() - begin
    model.eval()
    right = 0
    check.sort(key=lambda e: -len(e[0]) - len(e[1]))
    with torch.no_grad():
        for begin in range(0, len(check), BATCH):
            inputs, labels = batch_of(check[begin:begin + BATCH])
            right += (model(**inputs).logits.argmax(-1) == labels).sum().item()
    return 100 * right / len(check), train_s


def main():
    parser = report.options(__doc__, rounds=1)
    parser.add_argument("--model")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--task", choices=sorted(FILES), default="mnli")
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["ours", "peer"])
    arguments = report.parse(parser)
    report.need_program()
    report.need_modules("torch", "transformers")
    arguments.model = arguments.model or str(report.model("minilm-l6"))
    arguments.epochs = arguments.epochs or 1
    if arguments.limit is None:
        arguments.limit = 64 if arguments.quick else 0
    train, valid = (arguments.data / name if arguments.data else report.data(f"glue/{name}")
                    for name in FILES[arguments.task])
    result = report.Report(f"finetune-{arguments.task}", f"MiniLM-L6 fine-tuned on {arguments.task.upper()}, "
                           f"{arguments.epochs:g} epochs", arguments)
    accuracies, times = {}, {}
    for name, run in (("ours", ours), ("peer", peer)):
        if arguments.only in (None, name):
            begin = time.perf_counter()
            accuracies[name], times[name] = run(arguments, train, valid)
            print(json.dumps({"program": name, "task": arguments.task, "epochs": arguments.epochs,
                              "accuracy": round(accuracies[name], 2), "train_s": round(times[name], 1),
                              "seconds": round(time.perf_counter() - begin, 1)}), file=sys.stderr, flush=True)
    if len(accuracies) == 2:
        result.add("accuracy", accuracies["ours"], "%", accuracies["peer"], "transformers")
        result.add("points below the peer", accuracies["peer"] - accuracies["ours"], "points", at_most=1.5,
                   timed=False)
        result.add("training steps", times["ours"], "s", times["peer"], "transformers", inverse=True)
        result.write()


if __name__ == "__main__":
    sys.exit(main())
