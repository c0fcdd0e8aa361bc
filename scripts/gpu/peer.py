"""The training step of a GPT in PyTorch, for comparison: flash attention, fused AdamW, autocast to bf16.
peer.py RECIPE BATCH SEQUENCE eager|compile; peer.py --product: the rate of one bf16 product."""
import json
import sys
import time
import tomllib

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, hidden, heads, ffn):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.fc1, self.fc2 = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, h))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, model, sequence):
        super().__init__()
        hidden, vocab = model["hidden_size"], -(-model["vocab_size"] // 128) * 128
        ffn = model.get("ffn_hidden_size") or 4 * hidden
        self.tokens, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(sequence, hidden)
        self.blocks = nn.ModuleList(Block(hidden, model["num_attention_heads"], ffn)
                                    for _ in range(model["num_layers"]))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens, labels):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.T
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def seconds(step, warmup, steps):
    for _ in range(warmup):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def product():
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return {"flops": 2 * size**3 / min(seconds(lambda: a @ b, 3, 20) for _ in range(3))}


def training(recipe, batch, sequence, kind):
    with open(recipe, "rb") as file:
        model = Gpt(tomllib.load(file)["model"], sequence).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    call = torch.compile(model) if kind == "compile" else model
    tokens = torch.randint(0, 1000, (batch, sequence + 1), device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = call(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return {"tokens_per_s": batch * sequence / seconds(step, 5, 10),
            "peak_memory_bytes": torch.cuda.max_memory_allocated()}


if __name__ == "__main__":
    found = product() if sys.argv[1] == "--product" else training(sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4])
    print(json.dumps(found))
