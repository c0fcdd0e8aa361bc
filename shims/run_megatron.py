"""Replaces this process by the program `megatron`: what the scripts beside this file do.

The program is the one that $MEGATRON names, else the one of the same installation (PREFIX/bin for scripts in
PREFIX/share/megatron/shims) or build (build/ beside shims/), else the first on $PATH.
"""
import os
import shutil
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
PLACES = [os.path.join(HERE, *parts, "megatron") for parts in (("..", "..", "..", "bin"), ("..", "build"))]


def program():
    named = os.environ.get("MEGATRON")
    if named:
        return named
    for place in PLACES:
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return os.path.normpath(place)
    found = shutil.which("megatron")
    if found:
        return found
    sys.exit("the program megatron must be installed.\n  got:  none in " + ", ".join(map(os.path.normpath, PLACES)) +
             " nor on PATH\n  fix:  export MEGATRON=PATH_OF_THE_PROGRAM")


def run(job):
    path = program()
    sys.stdout.flush()
    try:
        os.execv(path, [path, job, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"the program megatron must be executable.\n  got:  {path}: {error.strerror}\n"
                 "  fix:  export MEGATRON=PATH_OF_THE_PROGRAM")
