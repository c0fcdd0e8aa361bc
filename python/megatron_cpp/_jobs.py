"""Jobs of the program as functions."""
import json
import pathlib
import tempfile

from ._program import recipes, run, words_of


def _objects(text):
    """The JSON objects of lines, which end at newlines alone: str.splitlines() has more ends, which texts may hold."""
    return [json.loads(line) for line in text.split("\n") if line]


def train(recipe, out, options=None, *, quiet=False, **more):
    """Trains by `recipe`, a TOML file or the name of one in recipes(), into the folder `out`, resuming what is there;
    returns the folder.

    Options of the command line are keywords, `train_iters=20` for --train-iters 20; those with a dot go into
    `options`: {"model.num_layers": 2}."""
    named = recipes() / f"{recipe}.toml"
    if not pathlib.Path(recipe).exists() and named.exists():
        recipe = named
    run("train", recipe, "--train.out", out, *words_of(options or {}), *words_of(more), quiet=quiet)
    return pathlib.Path(out)


def metrics(folder):
    """What the run in `folder` has measured: one dict per step or validation, as metrics.jsonl has them."""
    return _objects((pathlib.Path(folder) / "metrics.jsonl").read_text(encoding="utf-8"))


def generate(load, prompts, **options):
    """What the model in `load` (a run, a checkpoint or a Hugging Face folder) writes after a prompt, as a string; after
    a list of prompts, as a list. Each call loads the model. Options are those of `megatron generate`."""
    several = [prompts] if isinstance(prompts, str) else list(prompts)
    if not several:
        return []
    if len(several) > 1 and any(prompt.startswith("-") for prompt in several):  # would be taken for options
        return [generate(load, prompt, **options) for prompt in several]
    words = [f"--prompt={several[0]}"] if len(several) == 1 else ["--prompt", *several]
    answer = json.loads(run("generate", "--load", load, *words, "--json", *words_of(options)))
    texts = [each["text"] for each in answer["texts"]] if len(several) > 1 else [answer["text"]]
    return texts[0] if isinstance(prompts, str) else texts


def tokenize(tokenizer, texts, **options):
    """The ids of a string, or of each string of a list. `tokenizer`: a folder or file that `megatron tokenizer` takes.
    Options are those of `megatron tokenizer encode`."""
    several = [texts] if isinstance(texts, str) else list(texts)
    if not several:
        return []
    with tempfile.TemporaryDirectory(prefix="megatron-") as folder:
        files = [pathlib.Path(folder) / str(i) for i in range(len(several))]
        for file, text in zip(files, several):
            file.write_bytes(text.encode())
        lines = run("tokenizer", "encode", "--tokenizer", tokenizer, "--input", *files, "--json", *words_of(options))
    ids = [each["ids"] for each in _objects(lines)]
    return ids[0] if isinstance(texts, str) else ids


def detokenize(tokenizer, ids):
    """The text of a list of ids, or the texts of a list of such lists."""
    ids = list(ids)
    is_one = not ids or not hasattr(ids[0], "__len__") or not getattr(ids[0], "shape", (1,))  # a tensor's element
    with tempfile.NamedTemporaryFile("w", prefix="megatron-") as file:
        for each in [ids] if is_one else ids:
            print(*map(int, each), file=file)
        file.flush()
        lines = run("tokenizer", "decode", "--tokenizer", tokenizer, "--input", file.name, "--json")
    texts = [each["text"] for each in _objects(lines)]
    return texts[0] if is_one else texts
