#!/usr/bin/env python3
"""The folders of src/megatron include only folders above them; pure folders see no torch; c10d, CUDA and getenv stay
in their places."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ORDER = ["base", "schedule", "config", "text", "data", "corpus", "tasks", "plan", "comm", "kernels", "parallel",
         "model", "pipeline", "optim", "checkpoint", "interchange", "train", "finetune", "generate", "run"]
PURE = {"base", "config", "text", "data", "corpus", "tasks", "plan", "schedule"}
TORCH = re.compile(r'#\s*include\s*[<"](torch|ATen|c10|caffe2)/')
CUDA = re.compile(r'#\s*include\s*[<"](cuda|nccl|ATen/cuda|c10/cuda)')
C10D = re.compile(r'#\s*include\s*[<"]torch/csrc/distributed/c10d')
OWN = re.compile(r'#\s*include\s*[<"]megatron/([a-z_]+)/')


def problems_of(path):
    folder = path.relative_to(ROOT / "src/megatron").parts[0]
    in_plugin = "cuda" in path.parts or path.name.startswith("nccl_")
    if folder not in ORDER:
        yield 0, f"folder {folder} is not in the order of docs/tour.md"
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        own = OWN.search(line)
        if own and own[1] not in ORDER[:ORDER.index(folder) + 1]:
            yield number, f"{folder} includes {own[1]}, which is below it"
        if folder in PURE and TORCH.search(line):
            yield number, f"{folder} is pure and includes torch"
        if "<torch/torch.h>" in line:
            yield number, "includes <torch/torch.h>: name the narrow header"
        if C10D.search(line) and not path.name.startswith(("gloo_", "nccl_", "c10d_")):
            yield number, "includes c10d outside of its backends"
        if CUDA.search(line) and not in_plugin:
            yield number, "includes a CUDA header outside of the plugin"
        if re.search(r"\bgetenv\s*\(", line) and folder != "run":
            yield number, "reads the environment: only app/ and run/ do"


def main():
    count = bad = 0
    for path in sorted((ROOT / "src/megatron").rglob("*")):
        if path.suffix in {".h", ".cpp", ".cu"}:
            count += 1
            for number, problem in problems_of(path):
                print(f"{path.relative_to(ROOT)}:{number}: {problem}")
                bad += 1
    print(f"layers: {count} files, {bad} problems")
    return bad != 0 or count == 0


if __name__ == "__main__":
    sys.exit(main())
