#!/usr/bin/env python3
"""Training step of a BERT of the shape of BERT-large but 6 layers (h 1024, s 512, b 4), ours against PyTorch eager
(transformers' BertForPreTraining: SDPA attention, its own loss; AdamW, clipping), in turns so that a busy machine
slows both:

    bench/bert_step_vs_peer.py [--rounds 3] [--steps 3] [--dtypes fp32 bf16] [--threads 2] [--dropout 0]

Needs torch and transformers. Both mask 15 % of the tokens, tell the order of the sentences and have a quarter of their
samples padded; the peer's bf16 is autocast. Prints one JSON object a dtype: tokens/s and peak memory of each (medians)
and their ratios."""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAM = os.environ.get("MEGATRON", str(pathlib.Path(__file__).resolve().parents[1] / "build/megatron"))
LAYERS, HIDDEN, HEADS, VOCAB, LENGTH, BATCH = 6, 1024, 16, 30522, 512, 4
RECIPE = f"""[model]
architecture = "bert"
num_layers = {LAYERS}
hidden_size = {HIDDEN}
num_attention_heads = {HEADS}
vocab_size = {VOCAB}
[data]
seq_length = {LENGTH}
"""


def peer(arguments):
    """Prints what the steps of PyTorch took. A process of its own, so that its peak memory is its own."""
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    torch.manual_seed(1)
    torch.set_num_threads(arguments.threads)
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN, hidden_dropout_prob=arguments.dropout,
        attention_probs_dropout_prob=arguments.dropout, attn_implementation="sdpa")
    model = transformers.BertForPreTraining(config).train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.01},
                                   {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}], lr=1e-4)
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH))
    labels = torch.where(torch.rand(BATCH, LENGTH) < 0.15, tokens, -100)
    types = (torch.arange(LENGTH) >= LENGTH // 2).long().expand(BATCH, LENGTH)
    order = torch.randint(0, 2, (BATCH,))
    present = torch.ones(BATCH, LENGTH, dtype=torch.long)
    present[:BATCH // 4, 3 * LENGTH // 4:] = 0
    labels[present == 0] = -100
    print_steps(arguments, parameters, optimizer, BATCH * LENGTH, "tokens_per_s",
                lambda: model(tokens, attention_mask=present, token_type_ids=types, labels=labels,
                              next_sentence_label=order).loss)


def print_steps(arguments, parameters, optimizer, units, name, loss_of):
    """Trains for a step that is not counted and arguments.steps more; prints how many `units` of a step a second went
    through, as `name`, and the peak memory."""
    import torch
    times = []
    for _ in range(1 + arguments.steps):
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.dtypes[0] == "bf16"):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - begin)
    print(json.dumps({name: units / statistics.median(times[1:]),
                      "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def last_line(words):
    result = subprocess.run(list(map(str, words)), stdout=subprocess.PIPE, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def steps_in_turns(arguments, script, dtype, recipe, batch, length, unit, tokens_of_unit):
    """Trains by our program and by `script --peer` in turns; `unit`_per_s of both (a unit: tokens_of_unit tokens that
    are read), their ratio and that of the peaks of memory, as medians."""
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "recipe.toml"
        path.write_text(recipe)
        common = ["--steps", arguments.steps, "--dropout", arguments.dropout]
        for _ in range(arguments.rounds):
            ours = last_line([PROGRAM, "bench", "step", "--model", path, "--micro-batch-size", batch, "--seq-length",
                              length, "--warmup", 1, "--dtype", dtype, "--threads-per-rank", arguments.threads,
                              "--json", *common])
            pairs.append((ours, last_line([sys.executable, script, "--peer", "--dtypes", dtype, "--threads",
                                           arguments.threads, *common])))

    def middle(value):
        return statistics.median(value(*pair) for pair in pairs)

    ratios = [ours["tokens_per_s"] / tokens_of_unit / theirs[f"{unit}_per_s"] for ours, theirs in pairs]
    return {"dtype": dtype, "threads": arguments.threads, "dropout": arguments.dropout,
            f"{unit}_per_s": middle(lambda ours, _: ours["tokens_per_s"]) / tokens_of_unit,
            f"peer_{unit}_per_s": middle(lambda _, theirs: theirs[f"{unit}_per_s"]),
            "ratio": statistics.median(ratios), "ratio_range": [min(ratios), max(ratios)],
            "memory_ratio": middle(lambda ours, theirs: ours["peak_memory_bytes"] / theirs["peak_memory_bytes"]),
            "bound_fraction": middle(lambda ours, _: ours["bound_fraction"])}


def step_options(text):
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--dtypes", nargs="*", default=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    return parser


def main():
    arguments = step_options(__doc__).parse_args()
    if arguments.peer:
        peer(arguments)
        return
    for dtype in arguments.dtypes:
        print(json.dumps(steps_in_turns(arguments, __file__, dtype, RECIPE, BATCH, LENGTH, "tokens", 1)), flush=True)


if __name__ == "__main__":
    main()
