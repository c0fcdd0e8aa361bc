#!/usr/bin/env python3
"""clang-tidy (.clang-tidy says which checks) over every folder: files that keep no equal names to themselves are read
together (cmake/unity_groups.py), and so what they include once. Usage: tidy.py [--new] [EXPRESSION], by default all;
`program`: src and app; 'tests/plan' and the like: folders of tests; 'fuzz/', 'bench/', 'examples/'. --new, as CI does:
of these what changed within a day of the newest commit, a header by one source that includes it, or all where
.clang-tidy did. Needs build/ to be configured, and clang-tidy in .cache/tidy (setup.sh --tests): older versions spend
minutes in libtorch's headers. Exit code 1 where it found something."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORK = ROOT / "build-tidy"
TIDY = ROOT / ".cache/tidy/bin/clang-tidy"
LINES = 20000  # of a group: what memory holds


def git(*words):
    return subprocess.check_output(["git", "-C", ROOT, *words], text=True).split()


def new_files():
    """Changed by commits of the last day before the newest one, or since it."""
    newest = int(git("log", "-1", "--format=%ct")[0])
    since = f"--since={newest - 24 * 3600}"
    return {*git("log", since, "--name-only", "--format="), *git("diff", "--name-only", "HEAD"),
            *git("ls-files", "--others", "--exclude-standard")}


def sources_of(changed, sources):
    """Those of `sources` that changed, and of those that include a header that did one, if no other does."""
    includes = {path: set(re.findall(r'^#include "([^"]+)"', (ROOT / path).read_text(), re.M)) for path in sources}
    found = [path for path in sources if path in changed]
    for header in sorted(path.removeprefix("src/") for path in changed if path.endswith(".h")):
        users = [path for path in sources if header in includes[path]]
        if users and not set(users) & set(found):
            found.append(users[0])
    return found


def folders(expression, new):
    """{name: files}: the program's, each folder of tests, and the fuzz targets one by one."""
    found = {}
    files = git("ls-files", "*.cpp")
    changed = new_files() if new else {".clang-tidy"}
    for path in files if ".clang-tidy" in changed else sources_of(changed, files):
        parts = pathlib.PurePath(path).parts
        if "/cuda/" in path or "nccl_" in path or parts[0] not in ("src", "app", "tests", "fuzz", "bench", "examples"):
            continue  # these need CUDA's headers
        name = {"src": "program", "app": "program", "tests": "/".join(parts[:2])}.get(parts[0], path)
        if re.search(expression, name):
            found.setdefault(name, []).append(str(ROOT / path))
    return found


def groups_of(files):
    grouped = {}
    for line in subprocess.check_output([sys.executable, ROOT / "cmake/unity_groups.py", str(LINES), *files],
                                        text=True).splitlines():
        number, path = line.split(" ", 1)
        grouped.setdefault(number, []).append(path)
    together = {path for group in grouped.values() for path in group}
    return [*grouped.values(), *([path] for path in files if path not in together)]


def flags():
    """Definitions and folders of headers of every target, each once."""
    found = {}
    for entry in json.loads((ROOT / "build/compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        for word, following in zip(words, words[1:] + [""]):
            if word.startswith(("-I", "-D")):
                found[word] = [word]
            elif word == "-isystem":
                found[word + following] = [word, following]
    return [word for words in found.values() for word in words]


def check(source, words):
    result = subprocess.run([TIDY, "--quiet", source, "--", "-std=c++20", "-fopenmp", "-mf16c", *words], cwd=ROOT,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return result.returncode, result.stdout


def main():
    if not TIDY.exists() or not (ROOT / "build/compile_commands.json").exists():
        sys.exit("tidy.py needs clang-tidy and a configured build.\n  got:  no .cache/tidy, or no "
                 "build/compile_commands.json\n  fix:  make test-setup configure")
    parser = argparse.ArgumentParser()
    parser.add_argument("--new", action="store_true")
    parser.add_argument("expression", nargs="?", default="")
    options = parser.parse_args()
    words, sources = ["-I", str(WORK), *flags()], []
    WORK.mkdir(exist_ok=True)
    omp = subprocess.check_output(["g++", "-print-file-name=include/omp.h"], text=True).strip()
    shutil.copy(omp, WORK)  # of g++'s headers this one alone: the others are clang's own
    for name, files in folders(options.expression, options.new).items():
        for number, group in enumerate(groups_of(files)):
            if len(group) == 1:
                sources.append(group[0])
                continue
            source = WORK / f"{name.replace('/', '_')}_{number}.cpp"
            source.write_text("".join(f'#include "{path}"\n' for path in group))
            sources.append(source)
    failed, said = 0, set()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for code, output in pool.map(lambda source: check(source, words), sources):
            failed += code != 0
            if output not in said:
                said.add(output)
                print(output, end="", flush=True)
    print(f"clang-tidy: {len(sources)} sources, {failed} with findings")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
