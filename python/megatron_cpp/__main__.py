"""The command megatron, and python -m megatron_cpp: becomes the program."""
import os
import sys

from ._program import MegatronError, environment, program


def main():
    try:
        path, variables = program(), environment()
    except MegatronError as error:
        print(error, file=sys.stderr)
        return error.code
    sys.stdout.flush()
    os.execve(path, ["megatron", *sys.argv[1:]], variables)


if __name__ == "__main__":
    sys.exit(main())
