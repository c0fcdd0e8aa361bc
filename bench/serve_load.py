#!/usr/bin/env python3
"""Tokens per second of `megatron serve` with many clients and with one, in turns, and the time to the first token:

    bench/serve_load.py [MODEL_FOLDER] [--clients 16] [--new-tokens 128] [--dtypes fp32 bf16] [--rounds 3]

Each client asks for texts of --new-tokens tokens after a prompt of --prompt-tokens, one after the other, as a stream.
"""
import json
import pathlib
import random
import statistics
import sys
import threading
import time

import report

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/testing"))
from server import Server  # noqa: E402


def one_text(server, prompt, new_tokens):
    """Seconds to the first token, and tokens."""
    connection = server.connection(timeout=600)
    begin = time.perf_counter()
    connection.request("POST", "/v1/completions",
                       json.dumps({"prompt": prompt, "max_tokens": new_tokens, "ignore_eos": True, "stream": True,
                                   "stream_options": {"include_usage": True}}), {"Content-Type": "application/json"})
    response, first, tokens = connection.getresponse(), None, 0
    for line in response:
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - begin
            usage = json.loads(line[6:]).get("usage")
            tokens = usage["completion_tokens"] if usage else tokens
    connection.close()
    return first, tokens


def measure(server, clients, options):
    draw, results, lock = random.Random(clients), [], threading.Lock()
    begin = time.perf_counter()

    def client(prompts):
        for prompt in prompts:
            result = one_text(server, prompt, options.new_tokens)
            with lock:
                results.append(result)
    work = [[[draw.randrange(200, 10000) for _ in range(options.prompt_tokens)] for _ in range(options.texts)]
            for _ in range(clients)]
    threads = [threading.Thread(target=client, args=(prompts,)) for prompts in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    return {"clients": clients, "tokens_per_s": sum(tokens for _, tokens in results) / seconds,
            "first_token_ms": 1000 * statistics.median(first for first, _ in results)}


def main():
    parser = report.options(__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int)
    parser.add_argument("--texts", type=int, default=2, help="of each client")
    parser.add_argument("--dtypes", nargs="+")
    options = report.parse(parser)
    report.need_program()
    options.new_tokens = options.new_tokens or (8 if options.quick else 128)
    folder = options.folder or report.model()
    result = report.Report("serve", f"Serving texts of {options.new_tokens} tokens", options)
    for dtype in options.dtypes or (["fp32"] if options.quick else ["fp32", "bf16"]):
        server = Server(folder, "--dtype", dtype)
        try:
            measure(server, 1, options)  # not counted
            one, many = zip(*((measure(server, 1, options), measure(server, options.clients, options))
                              for _ in range(options.rounds)))
        finally:
            server.close()
        what = f"{pathlib.Path(folder).name}, {dtype}, {options.clients} clients"
        result.add(what, [row["tokens_per_s"] for row in many], "tokens/s", [row["tokens_per_s"] for row in one],
                   "one client", at_least=4)
        result.add(f"{what}: the first token after", [row["first_token_ms"] for row in many], "ms",
                   [row["first_token_ms"] for row in one], "one client")
    result.write()


if __name__ == "__main__":
    main()
