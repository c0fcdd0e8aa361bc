#!/usr/bin/env python3
"""Writing and reading with matrices in blocks (--weights q8_0, q4_1, q4_0) compared with bf16 of the same model and
with llama.cpp at the same precision, in turns so that a busy machine slows all:

    bench/blocks_vs_peers.py [MODEL_FOLDER] [--threads 2 1] [--rounds 5]

SmolLM2-135M unless another is named. Each writes 128 greedy tokens after 16, and reads a prompt of 1024. llama.cpp is
the module llama_cpp (pip install llama-cpp-python, which compiles it for this machine: AVX512_VNNI where there is one),
with files that it makes of the GGUF file exported of the folder; without it ours are compared alone."""
import ctypes
import importlib.util
import pathlib
import subprocess
import tempfile
import time

import report
from generate_vs_peer import NEW, PREFILL, PROMPT, ours

# Of ours in blocks: the same in bf16, and llama.cpp's type. Least ratios of writing.
PEERS = {"q8_0": {"bf16": 1.3, "Q8_0": 1.1}, "q4_1": {"Q4_K_M": 1.0, "Q4_1": None}, "q4_0": {"Q4_0": None}}


class LlamaCpp:
    """llama.cpp by its C interface: what is timed is its decoding and the search for the largest logit."""

    def __init__(self, file, threads):
        import llama_cpp
        self.api = llama_cpp
        self.model = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 2 * PREFILL, PREFILL, 512
        parameters.n_threads = parameters.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.measure()  # the first is not counted

    def close(self):
        self.api.llama_free(self.context)
        self.api.llama_model_free(self.model)

    def decode(self, tokens):
        import numpy
        array = (self.api.llama_token * len(tokens))(*tokens)  # the batch does not own it
        if self.api.llama_decode(self.context, self.api.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError("llama.cpp does not decode")
        logits = self.api.llama_get_logits_ith(self.context, -1)
        return int(numpy.ctypeslib.as_array(logits, shape=(self.vocabulary,)).argmax())

    def measure(self):
        def forget():
            self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        forget()
        begin = time.perf_counter()
        self.decode(list(range(100, 100 + PREFILL)))
        reading = time.perf_counter() - begin
        forget()
        token = self.decode(list(range(100, 100 + PROMPT)))
        begin = time.perf_counter()
        for _ in range(NEW):
            token = self.decode([token])
        return NEW / (time.perf_counter() - begin), PREFILL / reading


def silenced():
    """llama.cpp, which logs nothing from now on; and what must live as long."""
    import llama_cpp
    log = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    return log


def quantized(source, kind):
    """llama.cpp's own file of that type."""
    import llama_cpp
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype, parameters.nthread = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}"), 1
    file = source.with_name(f"{kind}.gguf")
    if llama_cpp.llama_model_quantize(str(source).encode(), str(file).encode(), ctypes.byref(parameters)) != 0:
        raise RuntimeError(f"llama.cpp does not write {kind}")
    return file


def compare(result, folder, threads, files, rounds):
    """One row for each precision and peer; everything runs once in each round."""
    name = f"{pathlib.Path(folder).name}, %s, %s, {threads} thread{'s' * (threads > 1)}"
    loaded = {kind: LlamaCpp(file, threads) for kind, file in files.items()}
    measures = {weights: lambda w=weights: ours(folder, threads, "--dtype", "bf16", "--weights", w)
                for weights in PEERS}
    measures["bf16"] = lambda: ours(folder, threads, "--dtype", "bf16")
    measures.update({kind: peer.measure for kind, peer in loaded.items()})
    runs = [{key: measure() for key, measure in measures.items()} for _ in range(rounds)]
    for weights, peers in PEERS.items():
        for peer, goal in peers.items():
            if peer not in measures:
                continue
            for i, what in enumerate(("writing", "reading")):
                result.add(name % (what, weights), [run[weights][i] for run in runs], "tokens/s",
                           [run[peer][i] for run in runs], "bf16 of ours" if peer == "bf16" else f"llama.cpp {peer}",
                           at_least=goal if i == 0 else None,
                           bound_fraction=runs[0][weights][2].get("bound_fraction") if i == 0 else None,
                           kernels=runs[0][weights][2]["instruction_set"])
    for peer in loaded.values():
        peer.close()


def main():
    parser = report.options(__doc__, rounds=5)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--threads", type=int, nargs="+")
    arguments = report.parse(parser)
    report.need_program()
    folder = arguments.folder or report.model()
    title = f"Writing {NEW} tokens and reading a prompt of {PREFILL} with weights in blocks"
    result = report.Report("generate-blocks", title, arguments)
    with tempfile.TemporaryDirectory() as scratch:
        files = {}
        if importlib.util.find_spec("llama_cpp") is not None:
            log = silenced()  # noqa: F841, held until the end
            source = pathlib.Path(scratch) / "model.gguf"
            export = ["checkpoint", "export", "--load", folder, "--output", source, "--dtype", "fp32"]
            subprocess.run([report.PROGRAM, *export], check=True, stdout=subprocess.DEVNULL)
            kinds = {kind for peers in PEERS.values() for kind in peers if kind != "bf16"}
            files = {kind: quantized(source, kind) for kind in sorted(kinds)}
        for threads in arguments.threads or ([2] if arguments.quick else [2, 1]):
            compare(result, folder, threads, files, arguments.rounds)
    result.write()


if __name__ == "__main__":
    main()
