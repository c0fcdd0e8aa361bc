#!/usr/bin/env python3
"""Results of benchmarks: what every file in bench/results says of itself, and how two programs are compared.

A benchmark makes a Report before it measures, adds rows and writes it: bench/results/NAME_DATE_MACHINE.json with the
commit, the machine, the command, the number of rounds, how much of the processors others took meanwhile, and the rows.
A benchmark that prints Markdown writes NAME_DATE_MACHINE.md with the same fields through this file as a program:

    bench/report.py NAME TITLE [--rounds N] -- COMMAND…

scripts/check_results.py demands the fields; scripts/performance.py makes the table of docs/performance.md from them.
Where others took more than a twentieth of the processors, a goal of time is not judged (its `met` is null).

Environment: MEGATRON, the program (build/megatron); BENCH_DATA, the folder of texts and vocabularies (../shared/data);
MEGATRON_MODELS, the folder of trained models (.cache/models)."""
import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get("MEGATRON", str(ROOT / "build/megatron"))
DATA = pathlib.Path(os.environ.get("BENCH_DATA", ROOT.parent / "shared/data"))
MODELS = pathlib.Path(os.environ.get("MEGATRON_MODELS", ROOT / ".cache/models"))
RESULTS = ROOT / "bench/results"
QUIET = 0.05  # the largest share of the processors that others may take while a goal is judged
SKIPPED = 77  # exit code of a benchmark that this machine cannot run
PEERS = ("torch", "transformers", "tokenizers", "tiktoken", "megatron-core", "datasketch", "numpy")


def skip(reason, fix):
    """Ends a benchmark that this machine cannot run."""
    print(f"skipped: {reason}\n  fix:  {fix}", file=sys.stderr)
    sys.exit(SKIPPED)


def need_modules(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        skip(f"no Python package {', '.join(missing)}", "bench/setup.sh, then .cache/bench/bin/python")


def need_program(path=PROGRAM):
    if not os.access(path, os.X_OK):
        skip(f"no program {path}", "make build")


def data(name):
    """A text or vocabulary by its name in BENCH_DATA."""
    if not (DATA / name).exists():
        skip(f"no {name} in {relative(str(DATA))}", "name the folder that holds it by BENCH_DATA; bench/README.md")
    return DATA / name


def model(name="smollm2-135m-instruct"):
    """A trained model by its name in MEGATRON_MODELS."""
    if not (MODELS / name / "config.json").exists():
        skip(f"no model {name} in {relative(str(MODELS))}",
             "name the folder that holds it by MEGATRON_MODELS; bench/README.md")
    return MODELS / name


def relative(word):
    """A word of a command line without what only this machine has: paths in the tree from its root, others by their
    last part."""
    if not word.startswith("/"):
        return word
    path = pathlib.PurePath(word)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def git(*words):
    done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def changed_files():
    """Tracked files that are not as the commit has them, but for results."""
    lines = subprocess.run(["git", "-C", ROOT, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout
    files = [line[3:] for line in lines.splitlines()]
    return [file for file in files if not file.startswith("bench/results/") and file != "docs/performance.md"]


def cpu_flags():
    """Model name and flags of the processor."""
    name, flags = platform.processor() or platform.machine(), set()
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() == "flags":
                flags = set(value.split())
    except OSError:
        pass
    return name, flags


def gpu_name():
    if not shutil.which("nvidia-smi"):
        return None
    done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else None


def machine():
    name, flags = cpu_flags()
    sets = [("amx_bf16", "amx"), ("avx512_bf16", "avx512_bf16"), ("avx512f", "avx512"), ("avx2", "avx2")]
    return {"cpu": name, "cores": len(os.sched_getaffinity(0)),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
            "instruction_sets": [ours for theirs, ours in sets if theirs in flags], "gpu": gpu_name()}


def machine_name(described):
    """A short name for files: 2-core-amd-avx512-bf16."""
    cpu = described["cpu"].lower()
    maker = next((name for name in ("intel", "amd", "arm") if name in cpu), platform.machine())
    best = (described["instruction_sets"] or ["plain"])[0].replace("_", "-")
    gpu = "-" + "-".join(described["gpu"].lower().split()) if described["gpu"] else ""
    return f"{described['cores']}-core-{maker}-{best}{gpu}"


def machine_text(described):
    gpu = f", {described['gpu']}" if described["gpu"] else ""
    sets = ", ".join(described["instruction_sets"]) or "none of ours"
    return f"{described['cores']} cores of {described['cpu']} ({sets}), {described['memory_gb']} GB{gpu}"


class Load:
    """How much of the processors others took from its making on: their share of all processor time, and the share that
    the host of a virtual machine kept for itself."""

    def __init__(self):
        self.begin = time.perf_counter()
        self.before = os.getloadavg()[0]
        self.start = self.now()

    @staticmethod
    def now():
        """Seconds of all processors: busy, stolen by the host; then those of this process and what it has started."""
        own = sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (
            resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
        try:
            user, nice, system, _, _, irq, soft, steal = map(
                int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
        except (OSError, ValueError):
            return 0.0, 0.0, own
        hertz = os.sysconf("SC_CLK_TCK")
        return (user + nice + system + irq + soft) / hertz, steal / hertz, own

    def measured(self):
        seconds = max(time.perf_counter() - self.begin, 1e-9)
        busy, stolen, own = (after - before for before, after in zip(self.start, self.now()))
        whole = seconds * (os.cpu_count() or 1)
        others, stolen = (round(min(1.0, max(0.0, part) / whole), 3) for part in (busy - own, stolen))
        return {"load_average_before": round(self.before, 2), "others_share": others, "stolen_share": stolen,
                "quiet": others + stolen <= QUIET}


def versions():
    found = {}
    for name in PEERS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def options(text, rounds=3):
    """The options that every benchmark has. --quick: the shortest form, whose figures are not for the table."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=None, help=f"rounds of ours and the peer in turns ({rounds})")
    parser.add_argument("--quick", action="store_true", help="the shortest form: does it work")
    parser.add_argument("--results", default=None, help="folder of the result; default: bench/results, "
                        "with --quick build/bench")
    parser.set_defaults(default_rounds=rounds)
    return parser


def parse(parser, words=None):
    arguments = parser.parse_args(words)
    if arguments.rounds is None:
        arguments.rounds = 1 if arguments.quick else arguments.default_rounds
    if arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    return arguments


def last_line(words, **keywords):
    """The JSON object that a command prints last."""
    done = subprocess.run(list(map(str, words)), stdout=subprocess.PIPE, check=True, **keywords)
    return json.loads(done.stdout.splitlines()[-1])


def whole_json(words):
    """The JSON object that a command prints, on one line or several."""
    return json.loads(subprocess.run(list(map(str, words)), stdout=subprocess.PIPE, check=True).stdout)


def ours(*words):
    """The JSON object that a job of the program prints."""
    return whole_json([PROGRAM, *words, "--json"])


class Report:
    def __init__(self, name, title, arguments):
        self.fields = {"name": name, "title": title, "date": None, "commit": git("rev-parse", "HEAD") or "unknown",
                       "changed": changed_files(), "machine": machine(),
                       "command": shlex.join([relative(word) for word in sys.argv]), "rounds": arguments.rounds,
                       "quick": arguments.quick, "seconds": None, "load": None, "versions": versions(), "rows": []}
        folder = arguments.results or (ROOT / "build/bench" if arguments.quick else RESULTS)
        self.folder = pathlib.Path(folder)
        self.load = Load()

    def add(self, what, ours, unit="", peer=None, against=None, inverse=False, at_least=None, at_most=None, timed=True,
            rounds=None, **details):
        """A row: `ours` and `peer` are the figures of each round (or one figure). With a peer the ratio of their
        medians counts, ours / peer, or peer / ours where `inverse` (of times), else the median of ours. The goal: that
        is `at_least` or `at_most` so much; one that is not `timed` (of memory, say) is judged on a busy machine too.
        `rounds`: of figures that are medians already."""
        listed = [values if isinstance(values, (list, tuple)) else [values] for values in (ours, peer or [])]
        row = {"what": what, "unit": unit, "ours": shortened(statistics.median(listed[0]))}
        judged = statistics.median(listed[0])
        if peer is not None:
            ratios = [b / a if inverse else a / b for a, b in zip(*listed, strict=True)]
            peers = statistics.median(listed[1])
            judged = peers / judged if inverse else judged / peers
            row |= {"against": against, "peer": shortened(statistics.median(listed[1])),
                    "ratio": shortened(judged), "ratio_is": "peer / ours" if inverse else "ours / peer",
                    "range": [shortened(min(ratios)), shortened(max(ratios))]}
        row["rounds"] = rounds or len(listed[0])
        if at_least is not None or at_most is not None:
            row["goal"] = {"at_least": at_least} if at_least is not None else {"at_most": at_most}
            row["met"] = bool(judged >= at_least if at_least is not None else judged <= at_most)
            row["timed"] = timed
        if details:
            row["details"] = details
        self.fields["rows"].append(row)
        # Whether the goal is met is known at the end, with the load.
        print(json.dumps({key: value for key, value in row.items() if key not in ("met", "timed")}), flush=True)

    def finish(self):
        """The fields, complete."""
        self.fields["date"] = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self.fields["load"] = self.load.measured()
        self.fields["seconds"] = round(time.perf_counter() - self.load.begin, 1)
        for row in self.fields["rows"]:
            if row.get("timed") and not self.fields["load"]["quiet"]:
                row["met"] = None
        return self.fields

    def path(self, ending):
        return self.folder / f"{self.fields['name']}_{self.fields['date'][:10]}_" \
                             f"{machine_name(self.fields['machine'])}.{ending}"

    def write(self):
        """Writes the JSON file, whole or not at all; its path."""
        self.finish()
        return self.put("json", json.dumps(self.fields, indent=1) + "\n")

    def write_markdown(self, body):
        self.finish()
        load, fields = self.fields["load"], self.fields
        table = {"name": fields["name"], "date": fields["date"], "commit": fields["commit"],
                 "changed": ", ".join(fields["changed"]) or "nothing", "machine": machine_text(fields["machine"]),
                 "command": f"`{fields['command']}`", "rounds": fields["rounds"], "seconds": fields["seconds"],
                 "load": f"others {load['others_share']:.1%}, the host {load['stolen_share']:.1%}"}
        lines = [f"# {fields['title']}", "", "| field | value |", "|--|--|",
                 *(f"| {key} | {value} |" for key, value in table.items()), "", body.strip(), ""]
        return self.put("md", "\n".join(lines))

    def put(self, ending, text):
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(ending)
        part = path.with_suffix(".part")
        part.write_text(text)
        part.replace(path)
        print(f"wrote {os.path.relpath(path, ROOT)}", file=sys.stderr)
        return path


def shortened(value):
    """Four significant digits, as more would only look exact."""
    return float(f"{value:.4g}")


def main():
    words = sys.argv[1:]
    if "--" not in words:
        words.append("--help")
    at = words.index("--") if "--" in words else len(words)
    parser = options("Runs a benchmark that prints Markdown, and writes that as its result.", rounds=1)
    parser.usage = "bench/report.py NAME TITLE [--rounds N] [--results FOLDER] -- COMMAND…"
    parser.add_argument("name")
    parser.add_argument("title")
    arguments = parse(parser, words[:at])
    report = Report(arguments.name, arguments.title, arguments)
    report.fields["command"] = shlex.join(relative(word) for word in words[at + 1:])
    done = subprocess.run(words[at + 1:], stdout=subprocess.PIPE, text=True)
    sys.stdout.write(done.stdout)
    if done.returncode == 0 and done.stdout.strip():
        report.write_markdown(done.stdout)
    elif done.returncode == 0:
        sys.exit(f"report.py: {words[at + 1]} printed no result")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
