#!/usr/bin/env python3
"""The folders of src/megatron include only folders above them; pure folders see no torch; c10d, CUDA, getenv and
printing stay in their places."""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ORDER = ["base", "charts", "schedule", "config", "text", "data", "corpus", "tasks", "plan", "families", "recipe",
         "study", "serve", "supervise", "comm", "kernels", "parallel", "model", "pipeline", "optim", "checkpoint",
         "interchange", "train", "finetune", "generate", "run"]
PURE = {"base", "charts", "study", "config", "text", "data", "corpus", "tasks", "plan", "families", "recipe",
        "schedule", "serve", "supervise"}
TORCH = re.compile(r'#\s*include\s*[<"](torch|ATen|c10|caffe2)/')
CUDA = re.compile(r'#\s*include\s*[<"](cuda|nccl|ATen/cuda|c10/cuda)')
C10D = re.compile(r'#\s*include\s*[<"]torch/csrc/distributed/c10d')
READS = re.compile(r"\b(read_file|load_toml\w*|ifstream|fopen|MappedFile|std::filesystem)\b")
# Sibling folders that may include one another, and why that is not undone.
BOTH_WAYS = {
    ("src/megatron/checkpoint/files", "src/megatron/checkpoint/slices"): "a manifest lists slices, and slices are read "
    "and written as manifests say; boxes (slices.h) have too many users to move",
    ("src/megatron/kernels/cpu/elementwise", "src/megatron/kernels/cpu/products"): "vectors' helpers (math-inl.h, "
    "half-inl.h) lie with the kernels that first needed them, and moving them compiles every kernel again",
    ("src/megatron/text/files", "src/megatron/text/models"): "a Hugging Face file names its model, which reads its own "
    "part of the JSON",
}
# Jobs print by app/print.h, everything else by write_line() and Logger. The message of a failed allocation has no
# memory for a string.
PRINTS = re.compile(r"\b(v?[fds]?n?printf|fputs|puts|putchar)\s*\(|\bstd::(cout|cerr|clog)\b|\bfmt::v?print")
PRINTS_ITSELF = {"src/megatron/base/machine/out_of_memory.cpp"}
MOST = 25  # sources at one level of a folder
OWN = re.compile(r'#\s*include\s*[<"]megatron/(?!models/)([a-z_]+)/')
# Which kind of model it is, nothing asks but its folder in models/, and nothing else names one but in prose. Tokenizers
# have the names of kinds too.
KINDS = "|".join(re.findall(r"^MEGATRON_MODEL\((\w+)\)", (ROOT / "src/megatron/models/kinds.def").read_text(), re.M))
KIND = re.compile(rf'architecture\s*[!=]=\s*"|"({KINDS})"|model\.architecture ({KINDS})\b'
                  rf'|\b(is|or|of|spec\.)_?({KINDS})\b')


def kinds_in(number, line):
    if KIND.search(line.split("//")[0]):
        yield number, "names a kind of model: ask what it is made of (config/tables/model_kinds.h, plan::ModelShape)"


def prints_in(path):
    if str(path.relative_to(ROOT)) not in PRINTS_ITSELF:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if PRINTS.search(line.split("//")[0]):
                yield number, "prints by itself: app/print.h in jobs, write_line() of base/text/printable.h elsewhere"


def problems_of(path):
    folder = path.relative_to(ROOT / "src/megatron").parts[0]
    if folder == "models":  # a file of each kind belongs to the folder that it is named after
        folder = path.relative_to(ROOT / "src/megatron/models").parts[1].split(".")[0]
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
        if "models" not in path.parts and folder != "text":
            yield from kinds_in(number, line)
        if folder == "plan" and READS.search(line):
            yield number, "opens a file: plan/ is handed what files say"
        if "<fmt/" in line and path.stem != "format" or "base/text/format.h" in line and path.suffix == ".h":
            yield number, "sources include base/text/format.h for {fmt}; headers do not"
        if ("json::parse(" in line or "sax_parse(" in line) and path.name != "json.cpp":
            yield number, "parses JSON by itself: base/text/json.h finds keys given twice and deep nesting"
        if re.search(r"\bgetenv\s*\(", line) and folder != "run":
            yield number, "reads the environment: only app/ and run/ do"


def crowded():
    """Folders of src/ and app/ with more sources at one level than a reader can survey."""
    counts = collections.Counter(p.parent.relative_to(ROOT) for top in ("src", "app") for p in (ROOT / top).rglob("*")
                                 if p.suffix in {".h", ".cpp"})
    return {str(folder): count for folder, count in sorted(counts.items()) if count > MOST}


def includes():
    """Of each file of src/ and app/, by its path, the paths of ours that it includes."""
    found = {}
    for top in ("src/megatron", "app"):
        for path in (ROOT / top).rglob("*"):
            if path.suffix in {".h", ".cpp", ".def"}:
                named = re.findall(r'^#include "((?:megatron|app)/[^"]+)"', path.read_text(), re.M)
                found[path.relative_to(ROOT)] = [
                    pathlib.PurePath(("src/" if name.startswith("megatron/") else "") + name) for name in named]
    return found


def siblings():
    """Pairs of folders beside each other, below src/megatron/NAME or app/, of which each includes the other, with a
    file of each that does. A folder and those in it may: a folder's own files are what they share."""
    edges = {}
    for file, named in includes().items():
        for other in named:
            a, b = file.parent.parts, other.parent.parts
            same = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            if same >= (1 if a[0] == "app" else 3) and same < min(len(a), len(b)):
                edges.setdefault(("/".join(a[:same + 1]), "/".join(b[:same + 1])), (file, other))
    return [(pair, edges[pair], edges[pair[::-1]]) for pair in sorted(edges)
            if pair < pair[::-1] and pair[::-1] in edges]


def circle():
    """Files of src/ and app/ that include one another in a circle; [] where there is none."""
    graph = includes()
    done, trail = set(), []

    def visit(file):
        if file in trail:
            return trail[trail.index(file):] + [file]
        if file in done:
            return []
        trail.append(file)
        found = next((round for round in map(visit, graph.get(file, [])) if round), [])
        trail.pop()
        done.add(file)
        return found

    return next((round for round in map(visit, graph) if round), [])


def main():
    count = bad = 0
    for path in sorted((ROOT / "src/megatron").rglob("*")):
        if path.suffix in {".h", ".cpp", ".cu"}:
            count += 1
            for number, problem in [*problems_of(path), *prints_in(path)]:
                print(f"{path.relative_to(ROOT)}:{number}: {problem}")
                bad += 1
    for path in sorted((ROOT / "app").rglob("*")):
        if path.suffix in {".h", ".cpp"}:
            count += 1
            problems = [*prints_in(path)]
            for number, line in enumerate(path.read_text().splitlines(), 1):
                problems += kinds_in(number, line)
            for number, problem in problems:
                print(f"{path.relative_to(ROOT)}:{number}: {problem}")
                bad += 1
    if circle():
        print("these include one another in a circle: " + " -> ".join(map(str, circle())))
        bad += 1
    both_ways = siblings()
    for pair, one, other in both_ways:
        if pair not in BOTH_WAYS:
            print(f"{pair[0]} and {pair[1]} include one another ({one[0]}, {other[0]}): move what both use up, or one "
                  "of the files")
            bad += 1
    for pair in set(BOTH_WAYS) - {pair for pair, _, _ in both_ways}:
        print(f"{pair[0]} and {pair[1]} no longer include one another: strike them from BOTH_WAYS")
        bad += 1
    bad += len(crowded())
    for folder, files in crowded().items():
        print(f"{folder}: {files} files at one level, more than {MOST}: make folders that show how data flows")
    print(f"layers: {count} files, {bad} problems")
    return bad != 0 or count == 0


if __name__ == "__main__":
    sys.exit(main())
