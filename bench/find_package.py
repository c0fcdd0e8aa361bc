#!/usr/bin/env python3
"""How long a program that embeds the library takes to build: each example, by find_package(megatron) alone.

    bench/find_package.py

Installs what is built into a folder, then configures and builds each example of it from nothing, without ccache:
seconds by the clock. The goal: at most 20 s."""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import report

EXAMPLES = ["train_in_30_lines", "custom_loss", "generate"]


def seconds_of(prefix, example, build):
    environment = {**os.environ, "CCACHE_DISABLE": "1"}
    begin = time.perf_counter()
    for words in (["cmake", "-G", "Ninja", "-S", prefix / "share/megatron/examples" / example, "-B", build,
                   f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release"], ["cmake", "--build", build]):
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - begin


def main():
    arguments = report.parse(report.options(__doc__, rounds=3))
    report.need_program()
    result = report.Report("find-package", "Building a program that embeds the library", arguments)
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        prefix, built = folder / "prefix", pathlib.Path(report.PROGRAM).resolve().parent
        subprocess.run(["cmake", "--install", built, "--prefix", prefix, "--strip"], check=True,
                       stdout=subprocess.DEVNULL)
        for example in EXAMPLES[:1] if arguments.quick else EXAMPLES:
            seconds = [seconds_of(prefix, example, folder / f"{example}_{k}") for k in range(arguments.rounds)]
            result.add(f"examples/{example}, configured and built", seconds, "s", at_most=20)
    result.write()


if __name__ == "__main__":
    sys.exit(main())
