#!/usr/bin/env python3
"""Prints what a thread of each CUDA kernel of a build takes on each architecture: registers, and bytes that spill.

Usage: kernel_registers.py BUILD. The build writes it as it compiles (cmake/ptxas_log.sh); what it was when it was
looked at is tests/kernels/registers.txt, which a test compares. Where kernels have changed on purpose:
scripts/kernel_registers.py build > tests/kernels/registers.txt. Exit code 2 where the plugin was not built, 1 where it
was and nothing is known of it."""
import collections
import pathlib
import re
import subprocess
import sys

KERNEL = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
NAMES = re.compile(r"megatron::kernels::(phases::)?|\(anonymous namespace\)::|\((int|bool|unsigned char)\)")


def short(name):
    """TokenProduct<float, 8> of cuda::run_phases<phases::TokenProduct<float, 8>>(…)."""
    name = NAMES.sub("", name)
    return re.sub(r"^void cuda::\w+<(.*)>\(.*\)$", r"\1", name).replace(" >", ">").strip()


def registers_of(build):
    """{kernel: {architecture: (registers, bytes spilled)}} of what ptxas has said."""
    table = collections.defaultdict(dict)
    for log in sorted(build.glob("CMakeFiles/megatron_cuda.dir/**/*.cu.o.ptxas")):
        kernel = None
        for line in log.read_text().splitlines():
            if found := KERNEL.search(line):
                kernel, architecture, spilled = found[1], int(found[2]), 0
            elif found := SPILLS.search(line):
                spilled = int(found[1]) + int(found[2])
            elif (found := REGISTERS.search(line)) and kernel:
                table[kernel][architecture] = (int(found[1]), spilled)
                kernel = None
    return table


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[1])
    plugin = re.search(r"CUDA plugin: (.*)", (build / "configure.log").read_text())
    compiler = plugin and re.match(r"\S+nvcc (\S+),", plugin[1])
    table = registers_of(build)
    if not table and (build / "libmegatron_cuda.so").exists():
        sys.exit(f"{build} has the plugin, but nothing of what ptxas said: cmake/ptxas_log.sh keeps it")
    if not compiler or not table:
        print("CUDA plugin:", plugin[1] if plugin and not compiler else f"not built ({build} has no kernels)",
              file=sys.stderr)
        return 2
    names = subprocess.run(["c++filt"], input="\n".join(table), capture_output=True, text=True, check=True).stdout
    rows = {short(name): row for name, row in zip(names.splitlines(), table.values())}
    architectures = sorted({each for row in rows.values() for each in row})
    print(f"# nvcc {compiler[1]}: registers of a thread, + bytes that spill (stores and loads), on "
          + ", ".join(f"sm_{each}" for each in architectures))
    for name in sorted(rows):
        cells = (rows[name].get(each) for each in architectures)
        print(f"{name:64}", *(f"{f'{cell[0]}+{cell[1]}' if cell and cell[1] else cell[0] if cell else '-':>9}"
                              for cell in cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
