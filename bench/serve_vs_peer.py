#!/usr/bin/env python3
"""Tokens per second of `megatron serve` and of llama.cpp's server with the same weights, in turns, with many clients
and with one:

    bench/serve_vs_peer.py --llama-server FILE [MODEL_FOLDER] [--clients 16] [--new-tokens 128] [--rounds 3]

Both serve on two threads and have room for the texts of all clients, which ask as serve_load.py's do. FILE is the
program `llama-server`; without the option the one in PATH is taken. The source package of llama-cpp-python holds its
sources: cmake -S vendor/llama.cpp -B build -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF; cmake --build build --target
llama-server."""
import contextlib
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import blocks_vs_peers
import report
import serve_load

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/testing"))
from server import Server  # noqa: E402

THREADS = 2
# Of a precision: our options, and how the exported file of llama.cpp is held.
PRECISIONS = {"fp32": (["--dtype", "fp32"], "fp32"), "bf16": (["--dtype", "bf16"], "bf16"),
              "q8_0": (["--dtype", "bf16", "--weights", "q8_0"], "Q8_0")}
GOAL = 1.2


class LlamaServer(Server):
    """llama.cpp's server on a free port until close()."""

    def __init__(self, program, file, options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.host, self.port = free.getsockname()
        tokens = options.clients * (options.prompt_tokens + options.new_tokens + 8)
        self.process = subprocess.Popen(
            list(map(str, [program, "--model", file, "--host", self.host, "--port", self.port, "--threads", THREADS,
                           "--threads-batch", THREADS, "--parallel", options.clients, "--ctx-size", tokens])),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://{self.host}:{self.port}/health", timeout=10)
                return
            except OSError:  # it is loading
                if self.process.poll() is not None:
                    raise RuntimeError(f"{program}: exit code {self.process.returncode}") from None
                time.sleep(0.2)
        self.close()
        raise RuntimeError(f"{program} does not answer")

    def close(self, code=0):
        self.process.terminate()
        self.process.wait(timeout=60)


def files_of(folder, precisions, scratch):
    """What llama.cpp serves for each of them."""
    files = {}
    for precision in precisions:
        held = PRECISIONS[precision][1]
        files[precision] = pathlib.Path(scratch) / f"{held}.gguf"
        dtype = "fp32" if held == "Q8_0" else held
        source = files[precision].with_name(f"{dtype}.gguf")
        if not source.exists():
            subprocess.run([report.PROGRAM, "checkpoint", "export", "--load", folder, "--output", source, "--dtype",
                            dtype], check=True, stdout=subprocess.DEVNULL)
        if held == "Q8_0":
            blocks_vs_peers.quantized(source, held)
    return files


def main():
    parser = report.options(__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--llama-server", default=shutil.which("llama-server"))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int)
    parser.add_argument("--texts", type=int, default=2, help="of each client")
    parser.add_argument("--precisions", nargs="+", choices=list(PRECISIONS))
    options = report.parse(parser)
    report.need_program()
    report.need_modules("llama_cpp")
    if not options.llama_server:
        report.skip("no llama-server", "bench/serve_vs_peer.py --help says how to build it; --llama-server FILE")
    options.new_tokens = options.new_tokens or (8 if options.quick else 128)
    folder = options.folder or report.model()
    precisions = options.precisions or (["fp32"] if options.quick else list(PRECISIONS))
    log = blocks_vs_peers.silenced()  # noqa: F841, held until the end
    title = f"Serving texts of {options.new_tokens} tokens, and llama.cpp's server"
    result = report.Report("serve-peer", title, options)
    with tempfile.TemporaryDirectory() as scratch:
        files = files_of(folder, precisions, scratch)
        for precision in precisions:
            with contextlib.ExitStack() as running:
                servers = {"ours": Server(folder, *PRECISIONS[precision][0], "--threads-per-rank", THREADS)}
                running.callback(servers["ours"].close)
                servers["theirs"] = LlamaServer(options.llama_server, files[precision], options)
                running.callback(servers["theirs"].close)
                rates = {(name, clients): [] for name in servers for clients in (1, options.clients)}
                for server in servers.values():
                    serve_load.measure(server, 1, options)  # not counted
                for _ in range(options.rounds):
                    for name, clients in rates:
                        row = serve_load.measure(servers[name], clients, options)
                        rates[name, clients].append(row["tokens_per_s"])
            for clients in (options.clients, 1):
                result.add(f"{pathlib.Path(folder).name}, {precision}, {clients} client{'s' * (clients > 1)}",
                           rates["ours", clients], "tokens/s", rates["theirs", clients], "llama.cpp's server",
                           at_least=GOAL)
    result.write()


if __name__ == "__main__":
    main()
