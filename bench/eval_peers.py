#!/usr/bin/env python3
"""Evaluation of a text in windows moved by a stride, ours against transformers, in turns so that a busy machine slows
both:

    bench/eval_peers.py MODEL_FOLDER TEXT [--strides 32 512] [--dtypes fp32 bf16] [--rounds 2] [--threads 2]

Needs torch and transformers. Both compute the first windows of 1024 tokens, as many at once, with as many threads;
reading the weights is not counted. The peer twice: as its users do it, with the labels of all but the new tokens
ignored (`labels=`, logits of every position), and with logits of the new tokens alone (`logits_to_keep`). Prints one
JSON object a dtype and stride: tokens read a second (medians over rounds), ratios, and the losses, which must agree."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

PROGRAM = os.environ.get("MEGATRON", str(pathlib.Path(__file__).resolve().parents[1] / "build/megatron"))
WINDOW = 1024


class Peer:
    def __init__(self, folder, dtype, text):
        import torch
        import transformers
        transformers.logging.set_verbosity_error()
        self.torch = torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]).eval()
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(pathlib.Path(folder) / "tokenizer.json"))
        self.ids = torch.tensor(tokenizer(text, add_special_tokens=False).input_ids)
        with torch.inference_mode():
            self.model(self.ids[None, :64])  # the first is not counted

    def measure(self, windows, stride, batch, labels):
        """Tokens/s, and the sum of the losses."""
        torch, total = self.torch, 0.0
        rows = [self.ids[i * stride:i * stride + WINDOW] for i in range(windows)]
        begin = time.perf_counter()
        with torch.inference_mode():
            for at in range(0, windows, batch):
                tokens = torch.stack(rows[at:at + batch])
                keep = WINDOW - 1 if at == 0 else stride  # the first window is scored whole
                if labels:
                    wanted = tokens.clone()
                    for row in range(len(wanted)):
                        wanted[row, :1 if at + row == 0 else WINDOW - stride] = -100
                    count = int((wanted != -100).sum())
                    total += float(self.model(tokens, labels=wanted).loss) * count
                else:
                    logits = self.model(tokens, logits_to_keep=keep + 1).logits[:, :-1]
                    for row in range(len(tokens)):
                        n = WINDOW - 1 if at + row == 0 else stride
                        total += float(torch.nn.functional.cross_entropy(logits[row, -n:].float(), tokens[row, -n:],
                                                                         reduction="sum"))
        return windows * WINDOW / (time.perf_counter() - begin), total


def ours(folder, text, dtype, threads, windows, stride, batch):
    words = [PROGRAM, "eval", "wikitext", "--load", folder, "--data", text, "--dtype", dtype,
             "--threads-per-rank", threads, "--window", WINDOW, "--stride", stride, "--limit", windows,
             "--batch-size", batch, "--json"]
    report = json.loads(subprocess.run(list(map(str, words)), capture_output=True, check=True).stdout)
    return report["tokens_per_s"], report["nll_sum"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("text")
    parser.add_argument("--strides", nargs="+", type=int, default=[32])
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    import torch
    torch.set_num_threads(arguments.threads)
    text = pathlib.Path(arguments.text).read_text(encoding="utf-8")[:200_000]
    for dtype in arguments.dtypes:
        peer = Peer(arguments.folder, dtype, text)
        for stride in arguments.strides:
            rounds = []
            for _ in range(arguments.rounds):
                rounds.append((ours(arguments.folder, arguments.text, dtype, arguments.threads, arguments.windows,
                                    stride, arguments.batch),
                               peer.measure(arguments.windows, stride, arguments.batch, True),
                               peer.measure(arguments.windows, stride, arguments.batch, False)))
            speed = [statistics.median(r[i][0] for r in rounds) for i in range(3)]
            print(json.dumps({"dtype": dtype, "stride": stride, "batch": arguments.batch, "threads": arguments.threads,
                              "tokens_per_s": speed[0], "peer_tokens_per_s": speed[1],
                              "peer_few_logits_tokens_per_s": speed[2],
                              "ratio": statistics.median(r[0][0] / r[1][0] for r in rounds),
                              "ratio_few_logits": statistics.median(r[0][0] / r[2][0] for r in rounds),
                              "nll_sum": rounds[0][0][1], "peer_nll_sum": rounds[0][2][1]}), flush=True)


if __name__ == "__main__":
    main()
