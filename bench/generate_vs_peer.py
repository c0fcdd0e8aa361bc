#!/usr/bin/env python3
"""Writing and reading with a trained model, ours against transformers, in turns so that a busy machine slows both:

    bench/generate_vs_peer.py [MODEL_FOLDER] [--threads 2 1] [--dtypes fp32 bf16] [--rounds 3]

Needs torch and transformers; SmolLM2-135M unless another is named. Both write 128 greedy tokens after 16, and read a
prompt of 1024, of which both make the last logits alone, with as many threads."""
import pathlib
import time

import report

NEW, PROMPT, PREFILL = 128, 16, 1024
GOALS = {"fp32": (1.6, 1.4), "bf16": (3, 2)}  # writing, reading


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


def ours(folder, threads, *options):
    found = report.ours("bench", "generate", "--load", folder, "--threads-per-rank", threads, "--repeats", 2,
                        "--new-tokens", NEW, "--prompt-tokens", PROMPT, "--prefill-tokens", PREFILL, *options)
    return found["tokens_per_s"], found["prefill_tokens_per_s"], found


def main():
    parser = report.options(__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--threads", type=int, nargs="+")
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    arguments = report.parse(parser)
    report.need_program()
    report.need_modules("torch", "transformers")
    folder = arguments.folder or report.model()
    import torch
    name = pathlib.Path(folder).name
    result = report.Report("generate", f"Writing {NEW} tokens and reading a prompt of {PREFILL}", arguments)
    for threads in arguments.threads or ([2] if arguments.quick else [2, 1]):
        torch.set_num_threads(threads)
        for dtype in arguments.dtypes:
            peer = Peer(folder, dtype)
            mine, theirs = zip(*((ours(folder, threads, "--dtype", dtype), peer.measure())
                                 for _ in range(arguments.rounds)))
            for i, what in enumerate(("writing", "reading")):
                result.add(f"{name}, {what}, {dtype}, {threads} thread{'s' * (threads > 1)}",
                           [run[i] for run in mine], "tokens/s", [run[i] for run in theirs], "transformers",
                           at_least=GOALS[dtype][i], bound_fraction=mine[0][2].get("bound_fraction"),
                           kernels=mine[0][2]["instruction_set"])
    result.write()


if __name__ == "__main__":
    main()
