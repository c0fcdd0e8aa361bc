#!/usr/bin/env python3
"""Evaluation of a text in windows moved by a stride, ours against transformers, in turns so that a busy machine slows
both:

    bench/eval_peers.py [MODEL_FOLDER [TEXT]] [--strides 32] [--dtypes fp32 bf16] [--rounds 3] [--threads 2]

Needs torch and transformers; SmolLM2-135M and WikiText-103's test unless named. Both compute the first windows of 1024
tokens, as many at once, with as many threads; reading the weights is not counted. Each window is read whole, its new
tokens are scored, the first window's all. The peer makes, as ours does, the logits of the tokens that are scored and no
others: that is the equal work that the goal is of. The second peer is what its users do, `labels=` with all but the
new tokens ignored, which makes the logits of every position. The sums of the losses must agree to 1e-4 in fp32."""
import pathlib
import sys
import time

import report

WINDOW, GOALS = 1024, {"fp32": 1.5, "bf16": 1.5}


class Peer:
    def __init__(self, model, ids, window=WINDOW):
        import torch
        self.torch, self.model, self.ids, self.window = torch, model, ids, window
        with torch.inference_mode():
            model(ids[None, :64])  # the first is not counted

    @staticmethod
    def read(folder, dtype, text):
        import torch
        import transformers
        transformers.logging.set_verbosity_error()
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]).eval()
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(pathlib.Path(folder) / "tokenizer.json"))
        return Peer(model, torch.tensor(tokenizer(text, add_special_tokens=False).input_ids))

    def measure(self, windows, stride, batch, few):
        """Tokens/s, and the sum of the losses. `few`: makes the logits of the scored tokens alone."""
        torch, total = self.torch, 0.0
        rows = [self.ids[i * stride:i * stride + self.window] for i in range(windows)]
        begin = time.perf_counter()
        with torch.inference_mode():
            for at in range(0, windows, batch):
                tokens = torch.stack(rows[at:at + batch])
                wanted = tokens.clone()
                for row in range(len(wanted)):
                    wanted[row, :1 if at + row == 0 else self.window - stride] = -100
                scored = wanted[:, 1:] != -100
                if few:
                    hidden = self.model.base_model(tokens).last_hidden_state[:, :-1][scored]
                    total += float(torch.nn.functional.cross_entropy(
                        self.model.get_output_embeddings()(hidden).float(), wanted[:, 1:][scored], reduction="sum"))
                else:
                    total += float(self.model(tokens, labels=wanted).loss) * int(scored.sum())
        return windows * self.window / (time.perf_counter() - begin), total


def ours(folder, text, dtype, threads, windows, stride, batch):
    found = report.ours("eval", "wikitext", "--load", folder, "--data", text, "--dtype", dtype, "--threads-per-rank",
                        threads, "--window", WINDOW, "--stride", stride, "--limit", windows, "--batch-size", batch)
    return found["tokens_per_s"], found["nll_sum"]


def main():
    parser = report.options(__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("text", nargs="?")
    parser.add_argument("--strides", nargs="+", type=int, default=[32])
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--windows", type=int)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    arguments = report.parse(parser)
    report.need_program()
    report.need_modules("torch", "transformers")
    folder = arguments.folder or report.model()
    path = arguments.text or report.data("wikitext/wikitext-103.wiki.test.tokens")
    windows = arguments.windows or (arguments.batch if arguments.quick else 8)
    import torch
    torch.set_num_threads(arguments.threads)
    text = pathlib.Path(path).read_text(encoding="utf-8")[:200_000]
    result = report.Report("eval-wikitext", f"Evaluation of a text in windows of {WINDOW} tokens", arguments)
    for dtype in arguments.dtypes:
        peer = Peer.read(folder, dtype, text)
        for stride in arguments.strides:
            rounds = [(ours(folder, path, dtype, arguments.threads, windows, stride, arguments.batch),
                       peer.measure(windows, stride, arguments.batch, True),
                       peer.measure(windows, stride, arguments.batch, False)) for _ in range(arguments.rounds)]
            mine, few, every = ([run[i][0] for run in rounds] for i in range(3))
            losses = [run[1] for run in rounds[0]]
            if dtype == "fp32" and abs(losses[0] - losses[1]) > 1e-4 * abs(losses[1]):
                sys.exit(f"the sums of the losses differ: {losses}")
            for theirs, against, goal in ((few, "transformers, the same logits", GOALS.get(dtype)),
                                          (every, "transformers, all logits", None)):
                result.add(f"{pathlib.Path(folder).name}, stride {stride}, batch {arguments.batch}, {dtype}", mine,
                           "tokens/s", theirs, against, at_least=goal, nll_sums=losses, windows=windows)
    result.write()


if __name__ == "__main__":
    main()
