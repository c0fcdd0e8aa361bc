#!/usr/bin/env python3
"""Writing and reading with matrices in 8 bits (--weights q8_0) compared with bf16 and fp32 of the same model, in turns
so that a busy machine slows all:

    bench/q8_0_vs_dense.py [MODEL_FOLDER] [--threads 2 1] [--rounds 3]

SmolLM2-135M unless another is named. Each writes 128 greedy tokens after 16, and reads a prompt of 1024. Where the
module xllamacpp is there, llama.cpp does so too with the GGUF file that is exported of the folder."""
import importlib.util
import pathlib
import subprocess
import tempfile

import report
from generate_vs_peer import NEW, PREFILL, PROMPT, ours

GOALS = {"bf16": (1, None), "fp32": (2, None), "llama.cpp": (1.1, None)}  # writing, reading


class LlamaCpp:
    """llama.cpp as the wheel xllamacpp holds it: for AVX2, which is what all machines have."""

    def __init__(self, file, threads):
        import xllamacpp
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(file)
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch, parameters.n_parallel = 2 * PREFILL, PREFILL, 512, 1
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
        self.server = xllamacpp.Server(parameters)
        self.measure()  # the first is not counted

    def measure(self):
        def timings(prompt, new):
            return self.server.handle_completions({
                "prompt": list(range(100, 100 + prompt)), "max_tokens": new, "n_predict": new, "temperature": 0,
                "ignore_eos": True, "cache_prompt": False})["timings"]
        return timings(PROMPT, NEW)["predicted_per_second"], timings(PREFILL, 1)["prompt_per_second"]


def main():
    parser = report.options(__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--threads", type=int, nargs="+")
    arguments = report.parse(parser)
    report.need_program()
    folder = arguments.folder or report.model()
    name = pathlib.Path(folder).name
    title = f"Writing {NEW} tokens and reading a prompt of {PREFILL} in 8 bits"
    result = report.Report("generate-q8_0", title, arguments)
    with tempfile.TemporaryDirectory() as scratch:
        file = pathlib.Path(scratch) / "model.gguf"
        has_peer = importlib.util.find_spec("xllamacpp") is not None
        if has_peer:
            export = ["checkpoint", "export", "--load", folder, "--output", file, "--dtype", "q8_0"]
            subprocess.run([report.PROGRAM, *export], check=True, stdout=subprocess.DEVNULL)
        for threads in arguments.threads or ([2] if arguments.quick else [2, 1]):
            measures = {"bf16": lambda t=threads: ours(folder, t, "--dtype", "bf16"),
                        "fp32": lambda t=threads: ours(folder, t, "--dtype", "fp32")}
            if has_peer:
                measures["llama.cpp"] = LlamaCpp(file, threads).measure
            runs = [(ours(folder, threads, "--dtype", "bf16", "--weights", "q8_0"),
                     {peer: measure() for peer, measure in measures.items()}) for _ in range(arguments.rounds)]
            for peer in measures:
                for i, what in enumerate(("writing", "reading")):
                    result.add(f"{name}, {what}, q8_0, {threads} thread{'s' * (threads > 1)}",
                               [mine[i] for mine, _ in runs], "tokens/s", [theirs[peer][i] for _, theirs in runs],
                               f"{peer} of ours" if peer != "llama.cpp" else peer, at_least=GOALS[peer][i],
                               bound_fraction=runs[0][0][2].get("bound_fraction"),
                               kernels=runs[0][0][2]["instruction_set"])
    result.write()


if __name__ == "__main__":
    main()
