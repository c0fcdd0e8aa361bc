#!/usr/bin/env python3
"""Tokens per second of `megatron serve` by the number of clients that ask at once, and the time to the first token.

    bench/serve_load.py .cache/models/smollm2-135m-instruct --clients 1 4 16 --json

Each client asks for texts of --new-tokens tokens after a prompt of --prompt-tokens, one after the other, as a stream.
"""
import argparse
import json
import pathlib
import random
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/testing"))
from server import Server  # noqa: E402


def one_text(server, prompt, new_tokens):
    """Seconds to the first token, tokens, and seconds between tokens."""
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--texts", type=int, default=2, help="of each client")
    parser.add_argument("--json", action="store_true")
    options, others = parser.parse_known_args()  # the rest is the server's
    server = Server(options.model, *others)
    try:
        measure(server, 1, options)  # not counted
        rows = [measure(server, clients, options) for clients in options.clients]
    finally:
        server.close()
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['clients']:4} clients  {row['tokens_per_s']:8.1f} tokens/s  first token after "
              f"{row['first_token_ms']:8.1f} ms")


if __name__ == "__main__":
    main()
