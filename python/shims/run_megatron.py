"""Replaces this process by the program of this package, wherever torch is: what the scripts beside this file do. It
stands in the wheel in the place of the file of the same name that the sources have."""
import os
import pathlib
import sys

# The folder of packages: the launcher may have another Python.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[4]))
from megatron_cpp._program import MegatronError, environment, program  # noqa: E402


def run(job):
    try:
        path, variables = program(), environment()
    except MegatronError as error:
        print(error, file=sys.stderr)
        sys.exit(error.code)
    sys.stdout.flush()
    os.execve(path, ["megatron", job, *sys.argv[1:]], variables)
