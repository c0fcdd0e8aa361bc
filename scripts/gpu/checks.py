"""What run.sh runs, one check after the other, each with a time limit: what failed is said at once, in results.md and
in results.json, and the checks after it run all the same."""
import argparse
import concurrent.futures
import csv
import json
import math
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
H100_FLOPS = 989e12  # dense bf16, of H100 and H200 (SXM), as NVIDIA states it
PROGRAM, TESTS = HERE / "bin/megatron", HERE / "bin/gpu_test"
TINY = ["train", HERE / "configs/gpt_tiny.toml", "--world-size", 1, "--tp", 1, "--num-layers", 2, "--hidden-size", 64,
        "--num-attention-heads", 4, "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", 511,
        "--seq-length", 32, "--seed", 7, "--micro-batch-size", 2, "--global-batch-size", 4, "--eval-interval", 0,
        "--hidden-dropout", 0.1, "--attention-dropout", 0.1, "--train.dtype", "fp32", "--lr", 1e-3, "--train-iters", 20,
        "--log-interval", 20]


class Failed(Exception):
    """What a check found; its message is one line."""


class Bundle:
    def __init__(self, out, arguments):
        self.out, self.dry, self.only, self.quick = out, arguments.dry, arguments.only, arguments.quick
        self.turns = 1 if arguments.quick else arguments.turns
        self.end, self.lock = time.monotonic() + arguments.limit, threading.Lock()
        self.checks, self.figures, self.versions = [], [], {}
        # The CPU as it is, and what is compared with it.
        self.device = ["--train.kernels", "cuda-emulated"] if arguments.dry else ["--device", "cuda"]

    def run(self, words, limit, name, **more):
        """The output of a command, also kept in NAME.log; Failed with its last lines."""
        log = self.out / f"{name}.log"
        limit = max(1, min(limit, round(self.end - time.monotonic())))
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
        if self.only and not re.search(self.only, name):
            return
        try:
            detail, state = "skipped: no time is left" if start > self.end else function(*arguments), "passed"
        except Failed as failure:
            detail, state = str(failure), "failed"
        except Exception as error:  # a check that breaks must not take the others with it
            detail, state = f"{type(error).__name__}: {error}", "failed"
        if detail is not None and detail.startswith("skipped: "):
            detail, state = detail[len("skipped: "):], "skipped"
        done = {"check": name, "state": state, "seconds": round(time.monotonic() - start, 1), "detail": detail or ""}
        with self.lock:
            self.checks.append(done)
            print(f"{state:8} {name} ({done['seconds']} s){': ' + detail if detail else ''}", flush=True)
            self.write()

    def together(self, *chains):
        """Lists of checks of what is right, not of how fast it is: one after the other in a list, lists at once."""
        with concurrent.futures.ThreadPoolExecutor(len(chains)) as pool:
            for done in [pool.submit(lambda chain=chain: [self.check(*check) for check in chain]) for chain in chains]:
                done.result()

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


def results_of(report):
    """{test: why it failed, or ""} of those that ran, and how many there are."""
    if not report.exists():
        return {}, 0
    ran, found = {}, 0
    for suite in json.loads(report.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            found += 1
            if test.get("result") == "COMPLETED":
                lines = [failure["failure"] for failure in test.get("failures", ())]
                ran[f"{suite['name']}.{test['name']}"] = " ".join(lines[0].split())[:300] if lines else ""
    return ran, found


def tests(bundle, name, filter, limit, prefix=(), parts=1):
    """Tests of the program gpu_test; what was skipped did not run, and where nothing ran that is a failure. After one
    that ends its process, or leaves a GPU that answers no more, the others are run alone."""
    def run(part, filter, parts=1, number=0, **more):
        report = bundle.out / f"{part}.json"
        try:
            bundle.run([*prefix, TESTS, f"--gtest_filter={filter}", f"--gtest_output=json:{report}"], limit, part,
                       env={**os.environ, "GTEST_TOTAL_SHARDS": str(parts), "GTEST_SHARD_INDEX": str(number), **more})
            return (*results_of(report), "")
        except Failed as failure:
            return (*results_of(report), str(failure))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        wait = [pool.submit(run, f"{name}_{i}", filter, parts, i) for i in range(parts)]
        done = [part.result() for part in wait]
        ran, found = {}, sum(part[1] for part in done)
        for part in done:
            ran.update(part[0])
        errors = [part[2] for part in done if part[2]]
        if errors and not prefix:
            listed = bundle.run([TESTS, f"--gtest_filter={filter}", "--gtest_list_tests"], limit, f"{name}_list")
            suite, names = "", []
            for line in listed.splitlines():
                word = line.split("#")[0].strip()
                if line.startswith("  "):
                    names.append(suite + word)
                elif word.endswith("."):
                    suite = word
            again = {test: pool.submit(run, f"{name}_alone_{i}", test, CUDA_LAUNCH_BLOCKING="1")
                     for i, test in enumerate(names) if ran.get(test) != ""}
            for test, job in again.items():
                result, _, error = job.result()
                ran[test] = result.get(test) or error
            bad = {test: why for test, why in ran.items() if why}
            (bundle.out / f"{name}_failures.txt").write_text("".join(f"{t}: {why}\n" for t, why in bad.items()))
            if bad:
                raise Failed(f"{len(bad)} of {len(names)} fail ({name}_failures.txt): {', '.join(list(bad)[:4])}")
            raise Failed(f"each passes alone, not together: {errors[0]}")
    if errors:
        raise Failed(errors[0])
    if not ran:
        raise Failed(f"none of {found} tests ran")
    return f"{len(ran)} of {found} tests"


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
                 (program, f"--tool={tool}", "--error-exitcode=9", "--report-api-errors=no"))


def kernels_rate(bundle):
    """GB/s of each kernel as a part of a copy's."""
    output = bundle.run([TESTS, "--rates", "--dry" if bundle.dry else "--cuda"], 120, "rates")
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if not rows:
        raise Failed("no rates")
    moved = [row for row in rows if "gb_s" in row]
    copy = next(row["gb_s"] for row in moved if row["kernel"] == "copy")
    for row in moved:
        bundle.figure(f"{row['kernel']}, {row['dtype']}", row["gb_s"], "GB/s", of_a_copy=round(row["gb_s"] / copy, 3))
    computed = [row for row in rows if "tflop_s" in row]
    for row in computed:
        bundle.figure(f"{row['kernel']}, {row['dtype']}", row["tflop_s"], "TFLOP/s")
    slow = [row["kernel"] for row in moved if row["gb_s"] < 0.8 * copy]
    return (f"{len(moved) - len(slow)} of {len(moved)} at 0.8 of a copy's {copy:.0f} GB/s or more"
            + "".join(f"; {row['kernel']} {row['tflop_s']:.0f} TFLOP/s" for row in computed))


def step_words(model, batch, sequence, steps):
    words = [PROGRAM, "bench", "step", "--model", HERE / f"configs/{model}.toml", "--micro-batch-size", batch,
             "--seq-length", sequence, "--dtype", "bf16", "--json"]
    return [*words, *steps, "--device", "cuda"]


def step(bundle, model, batch, sequence, peak):
    """Ours and PyTorch's, in turns."""
    ours, theirs, why = [], {"eager": [], "compile": []}, {}
    found = None
    for turn in range(bundle.turns):
        output = bundle.run(step_words(model, batch, sequence, ["--steps", 10, "--warmup", 3]), 120,
                            f"step_{model}_{turn}")
        found = json.loads(output[output.index("{"):])
        ours.append(found["tokens_per_s"])
        for kind in theirs if not bundle.quick else ():
            try:
                done = bundle.run([sys.executable, "-B", HERE / "peer.py", HERE / f"configs/{model}.toml", batch,
                                   sequence, kind], 120, f"peer_{model}_{kind}_{turn}")
                theirs[kind].append(json.loads(done.splitlines()[-1])["tokens_per_s"])
            except Failed as failure:
                why[kind] = failure
    rate = max(ours)
    more = {"step ms": round(found["step_ms"], 2), "peak_memory_bytes": found["peak_memory_bytes"],
            "batch": f"{batch} x {sequence}"}
    flops = found["flops_per_step"] / (batch * sequence) * rate
    more["MFU of 989 TFLOP/s"] = round(flops / H100_FLOPS, 4)
    if peak:
        more["of the product's rate"] = round(flops / peak, 4)
    for kind, rates in theirs.items():
        if rates:
            more[f"of PyTorch {kind}"] = round(rate / max(rates), 3)
        elif kind in why:
            more[f"PyTorch {kind}"] = str(why[kind])
    bundle.figure(f"{model}, bf16, a training step", rate, "tokens/s", **more)
    return f"{rate:.0f} tokens/s" + "".join(f", {key} {value}" for key, value in more.items())


def kernels_of_step(bundle, model, batch, sequence):
    """What each kernel of a step takes on the device, by Nsight Compute: kernels_MODEL.txt."""
    program = shutil.which("ncu")
    if not program:
        return "skipped: no ncu"
    words = step_words(model, batch, sequence, ["--steps", 1, "--warmup", 0])
    output = bundle.run([program, "--target-processes", "all", "--clock-control", "none", "--cache-control", "none",
                         "--metrics", "gpu__time_duration.sum", "--print-units", "base", "--csv", *words,
                         "--launch", "processes"], 150, f"ncu_{model}")
    start = output.find('"ID"')
    if start < 0:
        raise Failed(f"no table (ncu_{model}.log)")
    rows = [row for row in csv.DictReader(output[start:].splitlines()) if (row.get("Metric Value") or "").strip()]
    times = [(row["Kernel Name"], float(row["Metric Value"].replace(",", "")) / 1e6) for row in rows]
    times = [time for time in times if "distribution" not in time[0]]
    total = {}
    for name, ms in times:
        count, sum_ms = total.get(name, (0, 0.0))
        total[name] = count + 1, sum_ms + ms
    ordered = sorted(total.items(), key=lambda item: -item[1][1])
    (bundle.out / f"kernels_{model}.txt").write_text(
        "".join(f"{ms:10.3f} ms {count:6d}  {name[:180]}\n" for name, (count, ms) in ordered))
    whole = sum(ms for _, ms in times)
    return f"{len(times)} launches, {whole:.1f} ms on the device: a step, the loss layer and the products"


def decode(bundle, model, tokens):
    """Tokens per second of one text as a part of how often the weights could be read."""
    words = [PROGRAM, "bench", "generate", "--model", HERE / f"configs/{model}.toml", "--json", "--prompt-tokens", 16]
    words += ["--new-tokens", 8, "--prefill-tokens", 16, "--repeats", 1] if bundle.dry else [
        "--device", "cuda", "--dtype", "bf16", "--new-tokens", tokens, "--prefill-tokens", 1024, "--repeats", 3]
    output = bundle.run(words, 120, f"decode_{model}")
    found = json.loads(output[output.index("{"):])
    more = {"token ms": round(found["token_ms"], 4), "of the bound": round(found["bound_fraction"], 3),
            "prefill tokens/s": round(found["prefill_tokens_per_s"]), "in a graph": found["token_graph"]}
    if not bundle.dry and not found["token_graph"]:
        raise Failed("a token is not a graph")
    bundle.figure(f"{model}, decoding one text", found["tokens_per_s"], "tokens/s", **more)
    return f"{found['tokens_per_s']:.0f} tokens/s" + "".join(f", {key} {value}" for key, value in more.items())


def product_peak(bundle):
    """FLOPs per second of a bf16 product of random matrices, by torch."""
    output = bundle.run([sys.executable, "-B", HERE / "peer.py", "--product"], 90, "product")
    found = json.loads(output.splitlines()[-1])
    bundle.figure("bf16 product, random numbers", found["flops"] / 1e12, "TFLOP/s")
    return found["flops"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true", help="on the CPU, by the kernels' host drivers, in short form")
    parser.add_argument("--limit", type=float, default=570, help="seconds after which nothing is begun (570)")
    parser.add_argument("--turns", type=int, default=2, help="how often ours and PyTorch's steps are timed (2)")
    parser.add_argument("--quick", action="store_true", help="steps once, and none of PyTorch's")
    parser.add_argument("--only", help="checks whose name matches this regular expression")
    arguments = parser.parse_args()
    out = pathlib.Path(os.environ.get("OUT") or HERE / "results")
    out.mkdir(parents=True, exist_ok=True)
    bundle = Bundle(out, arguments)
    has_gpu = bool(first_line(["nvidia-smi", "-L"])) and any(pathlib.Path("/dev").glob("nvidia[0-9]*"))
    bundle.check("versions", versions, bundle)
    if not arguments.dry and not has_gpu:
        print("nothing was run: nvidia-smi finds no GPU (--dry: on the CPU)")
        return 1 if os.environ.get("REQUIRE_GPU") == "1" else 0
    runs = [("losses, CPU and device", losses, bundle), ("checkpoints from one to the other", resume, bundle),
            ("generation", generate, bundle)]
    if arguments.dry:
        kernels = [("kernels by their host drivers", tests, bundle, "kernels", "*EmulatedKernels*/Updates_*", 60)]
        bundle.together([*kernels, *runs])
    else:
        bundle.together(
            [("kernels in four dtypes: the reference, and the host driver's bits", tests, bundle, "kernels",
              "*CudaKernels*", 120, (), 4)],
            [("every operator, model, step and NCCL on the GPU", tests, bundle, "all", "*Cuda*:*cuda*:-*CudaKernels*",
              120, (), 4)], runs)
    bundle.check("rates of kernels", kernels_rate, bundle)
    for model in ["gpt_tiny"] if bundle.dry else ["smollm2_135m", "smollm2_1.7b"]:
        bundle.check(f"decode {model}", decode, bundle, model, 512)
    if not arguments.dry:
        peaks = []
        models = [("gpt2_124m", 16, 1024), ("gpt_1.3b", 4, 2048)]
        bundle.check("bf16 product", lambda: peaks.append(product_peak(bundle)) or f"{peaks[0] / 1e12:.0f} TFLOP/s")
        for model, batch, sequence in models:
            bundle.check(f"step of {model}", step, bundle, model, batch, sequence, peaks[0] if peaks else 0)
        for model, batch, sequence in models:
            bundle.check(f"kernels of {model}", kernels_of_step, bundle, model, batch, sequence)
        bundle.together([("memcheck", sanitizer, bundle, "memcheck")], [("racecheck", sanitizer, bundle, "racecheck")])
    shutil.rmtree(out / "runs", ignore_errors=True)
    failed = [check["check"] for check in bundle.checks if check["state"] == "failed"]
    print(f"{len(bundle.checks)} checks, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}; "
          f"{out / 'results.md'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
