"""Where the program and libtorch are, and how a job is started."""
import importlib.metadata
import importlib.util
import os
import pathlib
import subprocess
import sys
import threading

_HERE = pathlib.Path(__file__).resolve().parent
TORCH_VERSION = "2.11.0"


class MegatronError(RuntimeError):
    """A job that did not end well: its message is what the program wrote to stderr, `code` its exit code."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def _wrong(rule, got, fix):
    return MegatronError(2, f"{rule}\n  got:  {got}\n  fix:  {fix}")


def program():
    """The path of the program: the package's, or what the environment's MEGATRON names."""
    named = os.environ.get("MEGATRON")
    path = pathlib.Path(named) if named else _HERE / "bin/megatron"
    if not os.access(path, os.X_OK):
        raise _wrong("the program megatron must be there.", f"no program at {path}",
                     "unset MEGATRON" if named else "install the wheel that `make wheel` builds")
    return path


def recipes():
    """The folder of the recipes that come with the program: gpt_tiny.toml and others."""
    return _HERE / "share/megatron/configs"


def shims():
    """The folder of the scripts that take Megatron-LM's place in launch scripts."""
    return _HERE / "share/megatron/shims"


def environment():
    """The environment in which the program finds libtorch, wherever the installed torch is."""
    spec = importlib.util.find_spec("torch")
    folders = list(spec.submodule_search_locations or []) if spec else []
    torch = next((folder for folder in folders if os.path.exists(f"{folder}/lib/libtorch_cpu.so")), None)
    if torch is None:
        raise _wrong("megatron needs the libraries of torch.", "no torch in this Python's packages",
                     f"{sys.executable} -m pip install torch=={TORCH_VERSION}")
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:  # no pip has installed it
        version = TORCH_VERSION
    if version.split("+")[0] != TORCH_VERSION:
        raise _wrong(f"megatron is built for torch {TORCH_VERSION}.", f"torch {version} in {torch}",
                     f"{sys.executable} -m pip install torch=={TORCH_VERSION}")
    variables = dict(os.environ)
    if pathlib.Path(torch).resolve() != _HERE.parent / "torch":  # else the program finds it by itself
        variables["LD_LIBRARY_PATH"] = ":".join(filter(None, [f"{torch}/lib", variables.get("LD_LIBRARY_PATH")]))
    return variables


def _copy(stream, to, kept):
    for line in stream:
        kept.append(line)
        if to is not None:
            to.write(line)
            to.flush()


def run(*words, quiet=True):
    """Runs `megatron WORD…` and returns its standard output. `quiet=False` shows what it prints, as it comes. Raises
    MegatronError unless it ends with exit code 0. Ctrl-C reaches the program too, which finishes its step and saves."""
    process = subprocess.Popen([program(), *map(os.fspath, map(_word, words))], env=environment(), text=True,
                               encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = [], []
    readers = [threading.Thread(target=_copy, args=(process.stdout, None if quiet else sys.stdout, output)),
               threading.Thread(target=_copy, args=(process.stderr, None if quiet else sys.stderr, errors))]
    for reader in readers:
        reader.start()
    try:
        process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise
    finally:
        for reader in readers:
            reader.join()
        process.stdout.close()
        process.stderr.close()
    if process.returncode != 0:
        message = "".join(errors).strip() or f"megatron ended with exit code {process.returncode}"
        raise MegatronError(process.returncode, message)
    return "".join(output)


def _word(value):
    return value if isinstance(value, (str, os.PathLike)) else str(value)


def words_of(options):
    """Options as words: {"train_iters": 20, "model.num_layers": 2, "bf16": True} are --train-iters 20
    --model.num_layers 2 --bf16."""
    words = []
    for name, value in options.items():
        name = name if "." in name else name.replace("_", "-")
        if value is None:
            continue
        if value is True:
            words.append(f"--{name}")
        elif value is False:
            words.append(f"--{name}=false" if "." in name else f"--no-{name}")
        elif isinstance(value, (list, tuple)):
            words += [f"--{name}", *map(_word, value)]
        else:
            words += [f"--{name}", _word(value)]
    return words
