#!/usr/bin/env python3
"""The peer of a GPT's training step: GPT-2 124M in plain PyTorch, forward, backward, clipping, AdamW on random tokens.

    bench/peers/gpt_step.py [--mode eager|tuned|compile] [--dtype fp32|bf16] [--steps 5] [--threads 0] [--layers 12]

eager: what a user gets who writes the model down: nn.Module, scaled_dot_product_attention, AdamW as it is. tuned: fused
AdamW, and jemalloc made to keep its memory (environment()), so that no page faults are left. compile: that and
torch.compile. bf16 is autocast over float32 weights. Prints one JSON object: tokens/s and the peak of memory."""
import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time

HIDDEN, HEADS, VOCAB, LENGTH = 768, 12, 50304, 1024


def environment(mode):
    """What the environment of the peer adds to ours, None where jemalloc is absent."""
    if mode == "eager":
        return {}
    libraries = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout.splitlines()
    jemalloc = [line.split()[-1] for line in libraries if "libjemalloc.so.2 " in line]
    own = pathlib.Path(__file__).resolve().parents[2] / ".cache/bench/jemalloc"  # see bench/setup.sh
    jemalloc += map(str, own.glob("usr/lib/*/libjemalloc.so.2"))
    return {"LD_PRELOAD": jemalloc[0], "MALLOC_CONF": "oversize_threshold:1,background_thread:true,metadata_thp:auto,"
                                                      "dirty_decay_ms:-1,muzzy_decay_ms:-1"} if jemalloc else None


def make_model(layers):
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
            self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
            self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

        def forward(self, x):
            batch, length, _ = x.shape
            heads = self.qkv(self.norms[0](x)).view(batch, length, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, HIDDEN))
            return x + self.down(functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
            self.layers, self.norm = nn.ModuleList(Layer() for _ in range(layers)), nn.LayerNorm(HIDDEN)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens, labels):
            x = self.words(tokens) + self.places.weight[:tokens.shape[1]]
            for layer in self.layers:
                x = layer(x)
            logits = functional.linear(self.norm(x), self.words.weight).float()
            return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    torch.manual_seed(1)
    return torch, Model()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["eager", "tuned", "compile"], default="eager")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--layers", type=int, default=12)
    arguments = parser.parse_args()
    torch, model = make_model(arguments.layers)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.01},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, **({} if arguments.mode == "eager" else {"fused": True}))
    forward = torch.compile(model) if arguments.mode == "compile" else model
    data = torch.randint(0, VOCAB, (1, LENGTH + 1))
    tokens, labels = data[:, :-1].contiguous(), data[:, 1:].contiguous()
    times = []
    for _ in range(arguments.warmup + arguments.steps):
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.dtype == "bf16"):
            loss = forward(tokens, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - begin)
    print(json.dumps({"mode": arguments.mode, "dtype": arguments.dtype, "torch": torch.__version__,
                      "tokens_per_s": LENGTH / statistics.median(times[arguments.warmup:]), "loss": loss.item(),
                      "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    sys.exit(main())
