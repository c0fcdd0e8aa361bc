#!/usr/bin/env python3
"""Writing and reading with a trained model, ours against transformers, in turns so that a busy machine slows both:

    bench/generate_vs_peer.py MODEL_FOLDER [--threads 2] [--dtypes fp32 bf16] [--rounds 3]

Needs torch and transformers. Both write 128 greedy tokens after 16, and read a prompt of 1024, with as many threads.
Prints one JSON object a dtype: tokens/s of each (medians over rounds) and their ratios."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

PROGRAM = os.environ.get("MEGATRON", str(pathlib.Path(__file__).resolve().parents[1] / "build/megatron"))
NEW, PROMPT, PREFILL = 128, 16, 1024


class Peer:
    def __init__(self, folder, dtype):
        import torch
        import transformers
        transformers.logging.set_verbosity_error()
        self.torch = torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]).eval()
        self.ids = torch.randint(0, self.model.config.vocab_size, (1, PREFILL))
        self.measure()  # the first is not counted

    def measure(self):
        with self.torch.inference_mode():
            begin = time.perf_counter()
            self.model(self.ids, logits_to_keep=1)
            prefill = time.perf_counter() - begin
            prompt = self.ids[:, :PROMPT]
            begin = time.perf_counter()
            self.model.generate(prompt, attention_mask=self.torch.ones_like(prompt), max_new_tokens=NEW,
                                min_new_tokens=NEW, do_sample=False, pad_token_id=0)
            return NEW / (time.perf_counter() - begin), PREFILL / prefill


def ours(folder, dtype, threads):
    words = [PROGRAM, "bench", "generate", "--load", folder, "--dtype", dtype, "--threads-per-rank", threads,
             "--repeats", 2, "--new-tokens", NEW, "--prompt-tokens", PROMPT, "--prefill-tokens", PREFILL, "--json"]
    report = json.loads(subprocess.run(list(map(str, words)), capture_output=True, check=True).stdout)
    return report["tokens_per_s"], report["prefill_tokens_per_s"], report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    import torch
    torch.set_num_threads(arguments.threads)
    for dtype in arguments.dtypes:
        peer, pairs = Peer(arguments.folder, dtype), []
        for _ in range(arguments.rounds):
            pairs.append((*ours(arguments.folder, dtype, arguments.threads), *peer.measure()))
        middle = [statistics.median(pair[i] for pair in pairs) for i in (0, 1, 3, 4)]
        print(json.dumps({"dtype": dtype, "threads": arguments.threads,
                          "tokens_per_s": middle[0], "peer_tokens_per_s": middle[2],
                          "ratio": statistics.median(pair[0] / pair[3] for pair in pairs),
                          "prefill_tokens_per_s": middle[1], "peer_prefill_tokens_per_s": middle[3],
                          "prefill_ratio": statistics.median(pair[1] / pair[4] for pair in pairs),
                          "bound_fraction": pairs[-1][2].get("bound_fraction"),
                          "instruction_set": pairs[-1][2]["instruction_set"]}))


if __name__ == "__main__":
    main()
