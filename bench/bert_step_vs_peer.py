#!/usr/bin/env python3
"""Training step of a BERT of the shape of BERT-large but 6 layers (h 1024, s 512, b 4), ours against PyTorch eager
(transformers' BertForPreTraining: SDPA attention; AdamW, clipping), in turns so that a busy machine slows both:

    bench/bert_step_vs_peer.py [--rounds 3] [--steps 3] [--dtypes fp32 bf16] [--threads 2] [--dropout 0]

Needs torch and transformers. Both mask 15 % of the tokens, tell the order of the sentences and have a quarter of their
samples padded; the peer's bf16 is autocast. Ours makes the logits of the masked tokens alone, as the loss needs no
others. So does the first peer, which is the equal work that the goals are of: the same model, its head given the hidden
states of the masked tokens. The second is the model's own forward pass, which makes the logits of every token."""
import json
import pathlib
import resource
import statistics
import sys
import tempfile
import time

import report

LAYERS, HIDDEN, HEADS, VOCAB, LENGTH, BATCH = 6, 1024, 16, 30522, 512, 4
GOALS = {"fp32": 1.4, "bf16": 2.0}
PEERS = {"masked": "transformers, the same logits", "all": "transformers, all logits"}
RECIPE = f"""[model]
architecture = "bert"
num_layers = {LAYERS}
hidden_size = {HIDDEN}
num_attention_heads = {HEADS}
vocab_size = {VOCAB}
[data]
seq_length = {LENGTH}
"""


def loss_of_masked(model, inputs, labels, order):
    """The loss of BertForPreTraining from the logits of the masked tokens alone."""
    from torch.nn import functional
    read = model.bert(**inputs)
    masked = labels != -100
    logits = model.cls.predictions(read.last_hidden_state[masked])
    pairs = model.cls.seq_relationship(read.pooler_output)
    return functional.cross_entropy(logits.float(), labels[masked]) + functional.cross_entropy(pairs.float(), order)


def peer_model(dropout=0.0, layers=LAYERS, hidden=HIDDEN, heads=HEADS, vocab=VOCAB):
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    torch.manual_seed(1)
    return torch, transformers.BertForPreTraining(transformers.BertConfig(
        vocab_size=vocab, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * hidden, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        attn_implementation="sdpa")).train()


def peer_batch(torch, vocab=VOCAB, length=LENGTH, batch=BATCH):
    tokens = torch.randint(0, vocab, (batch, length))
    labels = torch.where(torch.rand(batch, length) < 0.15, tokens, -100)
    types = (torch.arange(length) >= length // 2).long().expand(batch, length)
    present = torch.ones(batch, length, dtype=torch.long)
    present[:batch // 4, 3 * length // 4:] = 0
    labels[present == 0] = -100
    return {"input_ids": tokens, "attention_mask": present, "token_type_ids": types}, labels, torch.randint(
        0, 2, (batch,))


def peer(arguments):
    """Prints what the steps of PyTorch took. A process of its own, so that its peak memory is its own."""
    torch, model = peer_model(arguments.dropout)
    torch.set_num_threads(arguments.threads)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.01},
                                   {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}], lr=1e-4)
    inputs, labels, order = peer_batch(torch)
    if arguments.peer == "masked":
        print_steps(arguments, parameters, optimizer, BATCH * LENGTH,
                    lambda: loss_of_masked(model, inputs, labels, order))
    else:
        print_steps(arguments, parameters, optimizer, BATCH * LENGTH,
                    lambda: model(**inputs, labels=labels, next_sentence_label=order).loss)


def print_steps(arguments, parameters, optimizer, units, loss_of):
    """Trains for a step that is not counted and arguments.steps more; prints how many `units` of a step a second went
    through, and the peak memory."""
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
    print(json.dumps({"units_per_s": units / statistics.median(times[1:]), "loss": loss.item(),
                      "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def steps_in_turns(arguments, script, dtype, recipe, batch, length, peers=PEERS):
    """Trains by our program and by each peer of `script` in turns: rounds of {"ours": …} and one more of each
    peer."""
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "recipe.toml"
        path.write_text(recipe)
        common = ["--steps", arguments.steps, "--dropout", arguments.dropout]
        for _ in range(arguments.rounds):
            row = {"ours": report.ours("bench", "step", "--model", path, "--micro-batch-size", batch, "--seq-length",
                                       length, "--warmup", 1, "--dtype", dtype, "--threads-per-rank",
                                       arguments.threads, *common)}
            for name in peers:
                row[name] = report.last_line([sys.executable, script, "--peer", name, "--dtypes", dtype, "--threads",
                                              arguments.threads, *common])
            rounds.append(row)
    return rounds


def add_rows(result, rounds, dtype, unit, tokens_of_unit, goal, peers=PEERS, equal="masked"):
    """Rows of a report: `unit`s per second (a unit: tokens_of_unit tokens that are read) and memory, equal work first.
    `equal`: the peer that the goal is against."""
    mine = [row["ours"]["tokens_per_s"] / tokens_of_unit for row in rounds]
    for name, against in peers.items():
        result.add(f"step, {dtype}", mine, f"{unit}/s", [row[name]["units_per_s"] for row in rounds], against,
                   at_least=goal if name == equal else None,
                   bound_fraction=rounds[0]["ours"]["bound_fraction"], kernels=rounds[0]["ours"]["kernels"])
    result.add(f"peak memory, {dtype}", [row["ours"]["peak_memory_bytes"] / 1e6 for row in rounds], "MB",
               [row[equal]["peak_memory_bytes"] / 1e6 for row in rounds], peers[equal])


def step_options(text, peers=PEERS):
    parser = report.options(text)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--dtypes", nargs="*", default=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0)
    parser.add_argument("--peer", choices=sorted(peers), help="print what this peer's steps take, as one JSON object")
    return parser


def main():
    arguments = report.parse(step_options(__doc__))
    report.need_modules("torch", "transformers")
    if arguments.peer:
        peer(arguments)
        return
    report.need_program()
    arguments.steps = 1 if arguments.quick else arguments.steps
    result = report.Report("bert-step", f"Training step of a BERT: {LAYERS} layers, h {HIDDEN}, {BATCH} x {LENGTH} "
                           "tokens, 15 % of them masked", arguments)
    for dtype in arguments.dtypes:
        add_rows(result, steps_in_turns(arguments, __file__, dtype, RECIPE, BATCH, LENGTH), dtype, "tokens", 1,
                 GOALS.get(dtype))
    result.write()


if __name__ == "__main__":
    main()
