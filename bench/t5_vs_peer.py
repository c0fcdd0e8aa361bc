#!/usr/bin/env python3
"""A T5 of the shape of v1.1-base (h 768, gated GELU, 32128 tokens) with 4 + 4 layers, ours against transformers in
PyTorch eager, in turns so that a busy machine slows both:

    bench/t5_vs_peer.py [--rounds 3] [--steps 3] [--dtypes fp32 bf16] [--threads 2] [--dropout 0] [--beams 1 4]

Needs torch and transformers. A training step: 4 samples, 512 tokens read and 128 written, AdamW and clipping; the
peer's bf16 is autocast. Generation in float32: what 64 tokens more take, greedily and with beams, after a prompt of
256. Prints one JSON object for each: tokens/s of both (medians) and their ratio."""
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

from bert_step_vs_peer import PROGRAM, print_steps, step_options, steps_in_turns

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


def peer_steps(arguments):
    """Prints what the steps of PyTorch took. A process of its own, so that its peak memory is its own."""
    torch, model = peer_model(arguments.dropout)
    torch.set_num_threads(arguments.threads)
    model.train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01)
    tokens, labels = torch.randint(0, VOCAB, (BATCH, LENGTH)), torch.randint(0, VOCAB, (BATCH, WRITTEN))
    print_steps(arguments, parameters, optimizer, BATCH, "samples_per_s",
                lambda: model(input_ids=tokens, labels=labels).loss)


def generation(arguments, folder):
    torch, model = peer_model()
    torch.set_num_threads(arguments.threads)
    model.eval().save_pretrained(folder / "model")
    words = ["[PAD]", "</s>", "[UNK]"] + [f"w{i}" for i in range(VOCAB - 3)]
    (folder / "model/vocab.txt").write_text("".join(word + "\n" for word in words))
    numbers = [(i * i + 7) % 32000 for i in range(PROMPT - 1)]
    prompt, ids = " ".join(f"w{i}" for i in numbers), torch.tensor([[i + 3 for i in numbers] + [1]])

    def ours(beams, tokens):
        begin = time.perf_counter()
        result = subprocess.run([PROGRAM, "generate", "--load", folder / "model", "--prompt", prompt, "--json",
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
        print(json.dumps({"what": "generation", "beams": beams, "same_tokens": same,
                          "tokens_per_s": statistics.median(pair[0] for pair in pairs),
                          "peer_tokens_per_s": statistics.median(pair[1] for pair in pairs),
                          "ratio": statistics.median(pair[0] / pair[1] for pair in pairs)}), flush=True)


def main():
    parser = step_options(__doc__)
    parser.add_argument("--beams", nargs="*", type=int, default=[1, 4])
    arguments = parser.parse_args()
    if arguments.peer:
        peer_steps(arguments)
        return
    for dtype in arguments.dtypes:
        print(json.dumps({"what": "step", **steps_in_turns(arguments, __file__, dtype, RECIPE, BATCH, LENGTH, "samples",
                                                           LENGTH)}), flush=True)
    if arguments.beams:
        with tempfile.TemporaryDirectory() as folder:
            generation(arguments, pathlib.Path(folder))


if __name__ == "__main__":
    main()
