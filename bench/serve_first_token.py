#!/usr/bin/env python3
"""Time to the first token of `megatron serve`, against the bare reading of a prompt as long, in turns:

    bench/serve_first_token.py [MODEL_FOLDER] [--prompt-tokens 512] [--dtypes bf16] [--rounds 5] [--texts 8]

A client sends --texts prompts, one after the other, none of which begins like another, and stops the clock when its
stream has the first token. The peer is `bench generate --prefill-tokens`: the model alone, by as many threads, without
HTTP, queue or draw. Both are medians. --prefill-tokens of the server is its default unless --pieces says otherwise."""
import pathlib
import random
import statistics
import sys

import report
from serve_load import one_text

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/testing"))
from server import Server  # noqa: E402


def first_token_ms(server, draw, options):
    def prompt():
        return [draw.randrange(200, 10000) for _ in range(options.prompt_tokens)]
    return 1000 * statistics.median(one_text(server, prompt(), 1)[0] for _ in range(options.texts))


def prefill_ms(folder, dtype, options):
    return report.ours("bench", "generate", "--load", folder, "--dtype", dtype, "--repeats", options.texts,
                       "--new-tokens", 1, "--prompt-tokens", 16, "--prefill-tokens",
                       options.prompt_tokens)["prefill_ms"]


def main():
    parser = report.options(__doc__, rounds=5)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--dtypes", nargs="+", default=["bf16"])
    parser.add_argument("--texts", type=int, help="of each round")
    parser.add_argument("--pieces", type=int, help="the server's --prefill-tokens")
    options = report.parse(parser)
    report.need_program()
    options.texts = options.texts or (2 if options.quick else 8)
    folder = options.folder or report.model()
    result = report.Report("serve-first-token", f"The first token behind a prompt of {options.prompt_tokens}", options)
    draw = random.Random(1)
    for dtype in options.dtypes:
        server = Server(folder, "--dtype", dtype,
                        *(["--prefill-tokens", options.pieces] if options.pieces else []))
        try:
            first_token_ms(server, draw, options)  # not counted
            served, bare = zip(*((first_token_ms(server, draw, options), prefill_ms(folder, dtype, options))
                                 for _ in range(options.rounds)))
        finally:
            server.close()
        result.add(f"{pathlib.Path(folder).name}, {dtype}", served, "ms", bare, "the prompt read, nothing else",
                   at_most=1.2)
    result.write()


if __name__ == "__main__":
    main()
