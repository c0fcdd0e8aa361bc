"""What run.sh runs, one check after the other, each with a time limit: what failed is said at once, in results.md and
in results.json, and the checks after it run all the same."""
import argparse
import json
import math
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM, TESTS = HERE / "bin/megatron", HERE / "bin/gpu_test"
TINY = ["train", HERE / "configs/gpt_tiny.toml", "--world-size", 1, "--tp", 1, "--num-layers", 2, "--hidden-size", 64,
        "--num-attention-heads", 4, "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", 511,
        "--seq-length", 32, "--seed", 7, "--micro-batch-size", 2, "--global-batch-size", 4, "--eval-interval", 0,
        "--hidden-dropout", 0.1, "--attention-dropout", 0.1, "--train.dtype", "fp32", "--lr", 1e-3, "--train-iters", 20,
        "--log-interval", 20]


class Failed(Exception):
    """What a check found; its message is one line."""


class Bundle:
    def __init__(self, out, dry):
        self.out, self.dry = out, dry
        self.checks, self.figures, self.versions = [], [], {}
        # The CPU as it is, and what is compared with it.
        self.device = ["--train.kernels", "cuda-emulated"] if dry else ["--device", "cuda"]

    def run(self, words, limit, name, **more):
        """The output of a command, also kept in NAME.log; Failed with its last lines."""
        log = self.out / f"{name}.log"
        with open(log, "w") as file:
            try:
                code = subprocess.run([str(word) for word in words], stdout=file, stderr=subprocess.STDOUT,
                                      timeout=limit, **more).returncode
            except subprocess.TimeoutExpired:
                raise Failed(f"no end in {limit} s: {log.name}")
            except OSError as error:
                raise Failed(str(error))
        text = log.read_text(errors="replace")
        if code != 0:
            last = [line.strip() for line in text.splitlines() if line.strip()][-3:]
            raise Failed(f"exit code {code}: {' / '.join(last)} ({log.name})")
        return text

    def check(self, name, function, *arguments):
        start = time.monotonic()
        try:
            detail, state = function(*arguments), "passed"
        except Failed as failure:
            detail, state = str(failure), "failed"
        except Exception as error:  # a check that breaks must not take the others with it
            detail, state = f"{type(error).__name__}: {error}", "failed"
        if detail is not None and detail.startswith("skipped: "):
            detail, state = detail[len("skipped: "):], "skipped"
        self.checks.append({"check": name, "state": state, "seconds": round(time.monotonic() - start, 1),
                            "detail": detail or ""})
        print(f"{state:8} {name} ({self.checks[-1]['seconds']} s){': ' + detail if detail else ''}", flush=True)
        self.write()

    def figure(self, name, value, unit, **more):
        self.figures.append({"figure": name, "value": value, "unit": unit, **more})

    def write(self):
        result = {"dry": self.dry, "versions": self.versions, "checks": self.checks, "figures": self.figures}
        (self.out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
        lines = [f"# {'Dry run on the CPU' if self.dry else 'On a GPU'}", ""]
        lines += [f"- {name}: {value}" for name, value in self.versions.items()]
        lines += ["", "| check | state | s | |", "|--|--|--|--|"]
        lines += [f"| {c['check']} | {c['state']} | {c['seconds']} | {c['detail']} |" for c in self.checks]
        if self.figures:
            lines += ["", "| figure | value | unit | |", "|--|--|--|--|"]
            for f in self.figures:
                rest = ", ".join(f"{key} {value}" for key, value in f.items() if key not in ("figure", "value", "unit"))
                lines.append(f"| {f['figure']} | {f['value']:.5g} | {f['unit']} | {rest} |")
        (self.out / "results.md").write_text("\n".join(lines) + "\n")


def first_line(words):
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 and done.stdout.strip() else ""


def versions(bundle):
    bundle.versions = {
        "system": f"{platform.platform()}, {platform.libc_ver()[1]}",
        "program": first_line([PROGRAM, "--version"]),
        "torch": os.environ.get("TORCH", ""),
        "GPU": first_line(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]),
        "nvcc": first_line(["nvcc", "--version"])}
    if not bundle.versions["program"]:
        raise Failed(bundle.run([PROGRAM, "--version"], 60, "version"))
    bundle.run([PROGRAM, "doctor", "--json"], 60, "doctor")
    return bundle.versions["GPU"] or "no GPU"


def tests(bundle, name, filter, limit, prefix=()):
    """Tests of the program gpu_test; what was skipped did not run, and where nothing ran that is a failure."""
    report = bundle.out / f"{name}.json"
    bundle.run([*prefix, TESTS, f"--gtest_filter={filter}", f"--gtest_output=json:{report}"], limit, name)
    found = [test for suite in json.loads(report.read_text())["testsuites"] for test in suite["testsuite"]]
    ran = [test for test in found if test.get("result") == "COMPLETED"]
    if not ran:
        raise Failed(f"none of {len(found)} tests ran")
    return f"{len(ran)} of {len(found)} tests"


def losses_of(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def train(bundle, name, *words):
    folder = bundle.out / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    bundle.run([PROGRAM, *TINY, "--train.out", folder, *words], 240, f"train_{name}")
    return losses_of(folder)


def compare(one, other, limit):
    if len(one) != len(other) or not one:
        raise Failed(f"{len(one)} and {len(other)} losses")
    worst = max(abs(a - b) / abs(b) for a, b in zip(one, other))
    if not worst <= limit or not all(map(math.isfinite, one)):
        raise Failed(f"losses differ by {worst:.2e}, more than {limit:.0e}")
    return worst


def losses(bundle):
    cpu, device = train(bundle, "cpu"), train(bundle, "device", *bundle.device)
    worst = compare(device, cpu, 1e-5)
    bundle.figure("losses of 20 steps, fp32, dropout 0.1: CPU and device", worst, "relative")
    return f"{len(cpu)} losses, largest difference {worst:.1e}"


def resume(bundle):
    """Ten steps on one, the rest on the other, both ways."""
    whole = losses_of(bundle.out / "runs/cpu")
    for name, first, second in (("to_cpu", bundle.device, []), ("to_device", [], bundle.device)):
        folder = bundle.out / "runs" / name
        shutil.rmtree(folder, ignore_errors=True)
        common = [PROGRAM, *TINY, "--train.out", folder, "--save-interval", 10]
        bundle.run([*common, *first, "--exit-interval", 10], 240, f"{name}_first")
        if len(losses_of(folder)) != 10:
            raise Failed(f"{len(losses_of(folder))} losses before the end of the first half")
        bundle.run([*common, *second], 240, f"{name}_second")
        compare(losses_of(folder), whole, 1e-5)
    return "device to CPU and CPU to device"


def generate(bundle):
    words = [PROGRAM, "generate", "--load", bundle.out / "runs/to_cpu", "--prompt", "1 2 3 4", "--temperature", 0,
             "--max-new-tokens", 16, "--json"]
    texts = []
    for name, device in (("cpu", []), ("device", [] if bundle.dry else ["--device", "cuda"])):
        output = bundle.run([*words, *device], 120, f"generate_{name}")
        texts.append(json.loads(output[output.index("{"):])["new_ids"])
    if texts[0] != texts[1]:
        raise Failed(f"{texts[0]} on the CPU, {texts[1]} on the device")
    return f"{len(texts[0])} tokens"


def sanitizer(bundle, tool):
    program = shutil.which("compute-sanitizer")
    if not program:
        return "skipped: no compute-sanitizer"
    # Each kernel once: attention and the rest in one dtype that has 16 bits and one that has not.
    return tests(bundle, tool, "*CudaKernels*/*_BFloat16:*CudaKernels*/*_Float", 200,
                 (program, f"--tool={tool}", "--error-exitcode=9"))


def kernels_rate(bundle):
    """GB/s of each kernel as a part of a copy's."""
    output = bundle.run([TESTS, "--rates", "--dry" if bundle.dry else "--cuda"], 120, "rates")
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if not rows:
        raise Failed("no rates")
    copy = next(row["gb_s"] for row in rows if row["kernel"] == "copy")
    for row in rows:
        bundle.figure(f"{row['kernel']}, {row['dtype']}", row["gb_s"], "GB/s", of_a_copy=round(row["gb_s"] / copy, 3))
    slow = [row["kernel"] for row in rows if row["gb_s"] < 0.8 * copy]
    return f"{len(rows) - len(slow)} of {len(rows)} at 0.8 of a copy's {copy:.0f} GB/s or more"


def step(bundle, model, batch, sequence, peak):
    """Ours and PyTorch's, one after the other, twice."""
    ours, theirs = [], {"eager": [], "compile": []}
    words = [PROGRAM, "bench", "step", "--model", HERE / f"configs/{model}.toml", "--micro-batch-size", batch,
             "--seq-length", sequence, "--dtype", "bf16", "--json"]
    words += ["--steps", 1, "--warmup", 0] if bundle.dry else ["--steps", 10, "--warmup", 3, "--device", "cuda"]
    found = None
    for turn in range(1 if bundle.dry else 2):
        output = bundle.run(words, 150, f"step_{model}_{turn}")
        found = json.loads(output[output.index("{"):])
        ours.append(found["tokens_per_s"])
        for kind in theirs if not bundle.dry else ():
            try:
                done = bundle.run([sys.executable, "-B", HERE / "peer.py", HERE / f"configs/{model}.toml", batch,
                                   sequence, kind], 120, f"peer_{model}_{kind}_{turn}")
                theirs[kind].append(json.loads(done.splitlines()[-1])["tokens_per_s"])
            except Failed as failure:
                print(f"         PyTorch {kind}: {failure}", flush=True)
    rate = max(ours)
    more = {"peak_memory_bytes": found["peak_memory_bytes"], "batch": f"{batch} x {sequence}"}
    tokens = batch * sequence
    if peak:
        more["mfu"] = round(found["flops_per_step"] / tokens * rate / peak, 4)
    for kind, rates in theirs.items():
        if rates:
            more[f"of PyTorch {kind}"] = round(rate / max(rates), 3)
    bundle.figure(f"{model}, bf16, a training step", rate, "tokens/s", **more)
    return f"{rate:.0f} tokens/s" + "".join(f", {key} {value}" for key, value in more.items())


def product_peak(bundle):
    """FLOPs per second of a bf16 product of random matrices, by torch."""
    output = bundle.run([sys.executable, "-B", HERE / "peer.py", "--product"], 90, "product")
    found = json.loads(output.splitlines()[-1])
    bundle.figure("bf16 product, random numbers", found["flops"] / 1e12, "TFLOP/s")
    return found["flops"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true", help="on the CPU, by the kernels' host drivers, in short form")
    arguments = parser.parse_args()
    out = pathlib.Path(os.environ.get("OUT") or HERE / "results")
    out.mkdir(parents=True, exist_ok=True)
    bundle = Bundle(out, arguments.dry)
    has_gpu = bool(first_line(["nvidia-smi", "-L"])) and any(pathlib.Path("/dev").glob("nvidia[0-9]*"))
    bundle.check("versions", versions, bundle)
    if not arguments.dry and not has_gpu:
        print("nothing was run: nvidia-smi finds no GPU (--dry: on the CPU)")
        return 1 if os.environ.get("REQUIRE_GPU") == "1" else 0
    if arguments.dry:
        bundle.check("kernels by their host drivers", tests, bundle, "kernels", "*EmulatedKernels*/Updates_*", 60)
    else:
        bundle.check("kernels in four dtypes: the reference, and the host driver's bits", tests, bundle, "kernels",
                     "*CudaKernels*", 120)
        bundle.check("every operator, model, step and NCCL on the GPU", tests, bundle, "all",
                     "*Cuda*:*cuda*:-*CudaKernels*", 180)
    bundle.check("losses, CPU and device", losses, bundle)
    bundle.check("checkpoints from one to the other", resume, bundle)
    bundle.check("generation", generate, bundle)
    if not arguments.dry:
        bundle.check("memcheck", sanitizer, bundle, "memcheck")
        bundle.check("racecheck", sanitizer, bundle, "racecheck")
    bundle.check("rates of kernels", kernels_rate, bundle)
    if not arguments.dry:
        peaks = []
        bundle.check("bf16 product", lambda: peaks.append(product_peak(bundle)) or f"{peaks[0] / 1e12:.0f} TFLOP/s")
        bundle.check("GPT-2 124M", step, bundle, "gpt2_124m", 16, 1024, peaks[0] if peaks else 0)
        bundle.check("GPT 1.3B", step, bundle, "gpt_1.3b", 4, 2048, peaks[0] if peaks else 0)
    shutil.rmtree(out / "runs", ignore_errors=True)
    failed = [check["check"] for check in bundle.checks if check["state"] == "failed"]
    print(f"{len(bundle.checks)} checks, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}; "
          f"{out / 'results.md'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
