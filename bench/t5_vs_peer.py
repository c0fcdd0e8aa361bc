#!/usr/bin/env python3
"""A T5 of the shape of v1.1-base (h 768, gated GELU, 32128 tokens) with 4 + 4 layers, ours against transformers in
PyTorch eager, in turns so that a busy machine slows both:

    bench/t5_vs_peer.py [--rounds 3] [--steps 3] [--dtypes fp32 bf16] [--threads 2] [--dropout 0] [--beams 1 4]

Needs torch and transformers. A training step: 4 samples, up to 512 tokens read and 128 written, the last quarter of
each padding as on average in ours, AdamW and clipping; the peer's bf16 is autocast. The first peer makes, as ours does,
the logits of the tokens that count, the second all of them. Generation in float32: what 64 tokens more take, greedily
and with beams, after a prompt of 256."""
import json
import pathlib
import subprocess
import tempfile
import time

import report
from bert_step_vs_peer import add_rows, print_steps, step_options, steps_in_turns

LAYERS, HIDDEN, HEADS, INNER, VOCAB, LENGTH, WRITTEN, BATCH = 4, 768, 12, 2048, 32128, 512, 128, 4
FEW, MANY, PROMPT = 16, 80, 256
RECIPE = f"""[model]
architecture = "t5"
num_layers = {LAYERS}
hidden_size = {HIDDEN}
num_attention_heads = {HEADS}
ffn_hidden_size = {INNER}
vocab_size = {VOCAB}
normalization = "RMSNorm"
activation = "gelu_tanh"
gated_linear_unit = true
add_bias_linear = false
position_embedding_type = "relative"
untie_embeddings_and_output_weights = true
[data]
seq_length = {LENGTH}
decoder_seq_length = {WRITTEN}
"""


def peer_model(dropout=0.0):
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    torch.manual_seed(1)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=VOCAB, d_model=HIDDEN, d_kv=HIDDEN // HEADS, d_ff=INNER, num_layers=LAYERS, num_heads=HEADS,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=dropout, decoder_start_token_id=0))
    model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCAB, HIDDEN) * 0.05)  # one of its own
    return torch, model


def loss_of_scored(model, tokens, present, labels):
    """The model's loss from the logits of the tokens that count alone."""
    from torch.nn import functional
    decoded = model._shift_right(labels)
    read = model.encoder(input_ids=tokens, attention_mask=present).last_hidden_state
    written = model.decoder(input_ids=decoded, encoder_hidden_states=read, encoder_attention_mask=present)
    scored = labels != -100
    logits = model.lm_head(written.last_hidden_state[scored])
    return functional.cross_entropy(logits.float(), labels[scored])


def peer_steps(arguments):
    """Prints what the steps of PyTorch took. A process of its own, so that its peak memory is its own."""
    torch, model = peer_model(arguments.dropout)
    torch.set_num_threads(arguments.threads)
    model.train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01)
    tokens, labels = torch.randint(0, VOCAB, (BATCH, LENGTH)), torch.randint(0, VOCAB, (BATCH, WRITTEN))
    present = torch.ones(BATCH, LENGTH, dtype=torch.long)
    present[:, 3 * LENGTH // 4:] = 0
    labels[:, 3 * WRITTEN // 4:] = -100
    if arguments.peer == "masked":
        print_steps(arguments, parameters, optimizer, BATCH, lambda: loss_of_scored(model, tokens, present, labels))
    else:
        print_steps(arguments, parameters, optimizer, BATCH,
                    lambda: model(input_ids=tokens, attention_mask=present, labels=labels).loss)


def generation(arguments, folder, result):
    torch, model = peer_model()
    torch.set_num_threads(arguments.threads)
    model.eval().save_pretrained(folder / "model")
    words = ["[PAD]", "</s>", "[UNK]"] + [f"w{i}" for i in range(VOCAB - 3)]
    (folder / "model/vocab.txt").write_text("".join(word + "\n" for word in words))
    numbers = [(i * i + 7) % 32000 for i in range(PROMPT - 1)]
    prompt, ids = " ".join(f"w{i}" for i in numbers), torch.tensor([[i + 3 for i in numbers] + [1]])

    def ours(beams, tokens):
        begin = time.perf_counter()
        result = subprocess.run([report.PROGRAM, "generate", "--load", folder / "model", "--prompt", prompt, "--json",
                                 "--ignore-eos", "--num-beams", str(beams), "--max-new-tokens", str(tokens),
                                 "--threads-per-rank", str(arguments.threads)], stdout=subprocess.PIPE, check=True)
        return time.perf_counter() - begin, json.loads(result.stdout)["new_ids"]

    def theirs(beams, tokens):
        with torch.inference_mode():
            begin = time.perf_counter()
            made = model.generate(ids, attention_mask=torch.ones_like(ids), num_beams=beams, do_sample=False,
                                  max_new_tokens=tokens, eos_token_id=None)
        return time.perf_counter() - begin, made[0, 1:].tolist()

    ours(1, FEW)  # the first, which reads files that are not in memory, is not counted
    theirs(1, FEW)
    for beams in arguments.beams:
        pairs, same = [], True
        for _ in range(arguments.rounds):
            (few, _), (many, text) = ours(beams, FEW), ours(beams, MANY)
            (peer_few, _), (peer_many, peer_text) = theirs(beams, FEW), theirs(beams, MANY)
            pairs.append(((MANY - FEW) / (many - few), (MANY - FEW) / (peer_many - peer_few)))
            same = same and text == peer_text
        mine, theirs_rates = zip(*pairs)
        result.add(f"generation, {beams} beams" if beams > 1 else "generation, greedy", mine, "tokens/s", theirs_rates,
                   "transformers", same_tokens=same)


def main():
    parser = step_options(__doc__)
    parser.add_argument("--beams", nargs="*", type=int, default=[1, 4])
    arguments = report.parse(parser)
    report.need_modules("torch", "transformers")
    if arguments.peer:
        peer_steps(arguments)
        return
    report.need_program()
    arguments.steps = 1 if arguments.quick else arguments.steps
    result = report.Report("t5", f"T5 of {LAYERS} + {LAYERS} layers, h {HIDDEN}: a step of {BATCH} x ({LENGTH} + "
                           f"{WRITTEN}) tokens, generation", arguments)
    for dtype in arguments.dtypes:
        add_rows(result, steps_in_turns(arguments, __file__, dtype, RECIPE, BATCH, LENGTH), dtype, "samples", LENGTH,
                 None)
    if arguments.beams:
        with tempfile.TemporaryDirectory() as folder:
            generation(arguments, pathlib.Path(folder), result)
    result.write()


if __name__ == "__main__":
    main()
