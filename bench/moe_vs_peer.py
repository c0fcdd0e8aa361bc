#!/usr/bin/env python3
"""A mixture of experts of Mixtral's form (h 512, 4 layers, 8 experts of which a token passes 2, 8192 tokens of
vocabulary), ours against transformers in PyTorch eager, in turns so that a busy machine slows both:

    bench/moe_vs_peer.py [--rounds 3] [--steps 3] [--dtypes fp32 bf16] [--threads 2]

Needs torch and transformers. A training step: 4 samples of 512 tokens, AdamW and clipping, no auxiliary loss; the
peer's bf16 is autocast. The goals are against transformers' default, `grouped_mm`, all experts in one call; its
`eager`, the other peer, goes through the experts one by one. The grouped products alone: `kernels-in-turns`."""
import report
from bert_step_vs_peer import add_rows, print_steps, step_options, steps_in_turns

LAYERS, HIDDEN, HEADS, GROUPS, INNER, EXPERTS, TOP_K, VOCAB, LENGTH, BATCH = 4, 512, 8, 4, 1536, 8, 2, 8192, 512, 4
GOALS = {"fp32": 2.0, "bf16": 3.0}
PEERS = {"eager": "transformers, eager experts", "grouped": "transformers, grouped_mm"}
RECIPE = f"""[model]
num_layers = {LAYERS}
hidden_size = {HIDDEN}
num_attention_heads = {HEADS}
num_query_groups = {GROUPS}
ffn_hidden_size = {INNER}
num_experts = {EXPERTS}
moe_router_topk = {TOP_K}
vocab_size = {VOCAB}
untie_embeddings_and_output_weights = true
normalization = "RMSNorm"
activation = "silu"
gated_linear_unit = true
add_bias_linear = false
position_embedding_type = "rope"
[data]
seq_length = {LENGTH}
"""


def peer_model(experts):
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    torch.manual_seed(1)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=GROUPS, num_local_experts=EXPERTS, num_experts_per_tok=TOP_K,
        max_position_embeddings=LENGTH, attn_implementation="sdpa",
        experts_implementation="grouped_mm" if experts == "grouped" else "eager"))
    return torch, model.train()


def peer_steps(arguments):
    """Prints what the steps of PyTorch took. A process of its own, so that its peak memory is its own."""
    torch, model = peer_model(arguments.peer)
    torch.set_num_threads(arguments.threads)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01)
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH))
    print_steps(arguments, parameters, optimizer, BATCH * LENGTH, lambda: model(input_ids=tokens, labels=tokens).loss)


def main():
    parser = step_options(__doc__, PEERS)
    arguments = report.parse(parser)
    if arguments.dropout:
        parser.error("--dropout: transformers' Mixtral is built without")
    report.need_modules("torch", "transformers")
    if arguments.peer:
        peer_steps(arguments)
        return
    report.need_program()
    arguments.steps = 1 if arguments.quick else arguments.steps
    result = report.Report("moe", f"Mixture of experts: {LAYERS} layers, h {HIDDEN}, {EXPERTS} experts of {INNER}, "
                           f"top {TOP_K}: a step of {BATCH} x {LENGTH} tokens", arguments)
    for dtype in arguments.dtypes:
        add_rows(result, steps_in_turns(arguments, __file__, dtype, RECIPE, BATCH, LENGTH, PEERS), dtype, "tokens", 1,
                 GOALS.get(dtype), PEERS, "grouped")
    result.write()


if __name__ == "__main__":
    main()
