"""Runs the program as a user does. MEGATRON names it."""
import functools
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

import advice

MEGATRON = os.environ.get("MEGATRON", str(pathlib.Path(__file__).resolve().parents[2] / "build/megatron"))

# Folders of trained models as Hugging Face has them (docs/interchange.md); tests that need one skip where it is absent.
MODELS = pathlib.Path(os.environ.get("MEGATRON_MODELS", pathlib.Path(__file__).resolve().parents[2] / ".cache/models"))
# Whether tests of trained models take their longer form: more windows, texts, settings and layouts.
LONG = os.environ.get("MEGATRON_LONG_TESTS") == "1"
# What the build unpacked from tests/golden/packed.tar.xz.
UNPACKED = pathlib.Path(__file__).resolve().parents[2] / ".cache/golden"
GOLDEN_MODELS = UNPACKED / "golden/models"
DATA = UNPACKED / "data"

SMALL_MODEL = """
[model]
num_layers = 2
hidden_size = 64
num_attention_heads = 4
[data]
seq_length = 32
split = "9,1,0"
[schedule]
lr = 5e-3
[train]
train_iters = 30
micro_batch_size = 4
global_batch_size = 8
seed = 7
[log]
interval = 5
"""


def run(*words, code=0, stdin=None, timeout=300, inside=()):
    """Runs a job; its standard output as text. Fails unless it exits with `code`, and where an error of exit code 2
    lacks its rule, what was got or a fix, or names an option that the job does not have. `inside`: the command that
    starts it elsewhere."""
    result = subprocess.run([*inside, os.path.abspath(MEGATRON), *map(str, words)], input=stdin, capture_output=True,
                            text=True, timeout=timeout)
    if result.returncode != code:
        raise AssertionError(f"megatron {' '.join(map(str, words))}: exit code {result.returncode}, expected {code}\n"
                             f"{result.stdout[-2000:]}\n{result.stderr[-4000:]}")
    if code == 2:
        expect_advice(words, result.stderr)
    return result.stdout if code == 0 else result.stderr


def expect_advice(words, message):
    """Fails where an error of exit code 2, as the command line `words` printed it, lacks its rule, what was got or a
    fix, or names an option that the job does not have."""
    problems = advice.complaints(words, message)
    if problems:
        raise AssertionError(f"megatron {' '.join(map(str, words))}: " + "\n".join(problems))


def drawn_seed():
    """The seed of a test whose moments or inputs are drawn at random: MEGATRON_TEST_SEED, or one of the clock. Printed,
    so that a failure can be repeated."""
    seed = int(os.environ.get("MEGATRON_TEST_SEED") or time.time_ns())
    print(f"MEGATRON_TEST_SEED={seed}", file=sys.stderr, flush=True)
    return seed


def text_of_sentences(count, seed=1):
    """Sentences of a small grammar: a model of any size learns them."""
    draw = random.Random(seed)
    subjects, verbs = ["the cat", "a dog", "my friend", "the old man"], ["sees", "likes", "follows", "never answers"]
    return [f"{draw.choice(subjects)} {draw.choice(verbs)} {draw.choice(subjects)} on "
            f"{draw.choice(['monday', 'friday'])}." for _ in range(count)]


def _make_tokens(path, tokenizer):
    """A small text in a folder, and its tokens by a tokenizer, which is learned where there is none."""
    text = path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": line}) + "\n" for line in text_of_sentences(3000)))
    if not tokenizer.exists():
        run("tokenizer", "train", "--input", text, "--vocab-size", 320, "--output", tokenizer)
    run("data", "preprocess", "--input", text, "--tokenizer", tokenizer, "--output-prefix", path / "tokens",
        "--append-eod")


@functools.cache
def _own_tokens():
    """A folder with what RunFolder begins with: made once, and copied."""
    folder = tempfile.TemporaryDirectory(prefix="megatron-e2e-")
    _make_tokens(pathlib.Path(folder.name), pathlib.Path(folder.name) / "tokenizer")
    return folder


class RunFolder:
    """A folder with a small text, its tokenizer, its tokens and a recipe; removed at the end. `tokenizer` and `recipe`:
    others than those of a small model."""

    def __init__(self, tokenizer=None, recipe=None):
        self._folder = tempfile.TemporaryDirectory(prefix="megatron-e2e-")
        self.path = pathlib.Path(self._folder.name)
        self.tokenizer = tokenizer or self.path / "tokenizer"
        if tokenizer is None:
            shutil.copytree(_own_tokens().name, self.path, dirs_exist_ok=True)
        else:
            _make_tokens(self.path, pathlib.Path(tokenizer))
        self.recipe = recipe or self.path / "recipe.toml"
        if recipe is None:
            self.recipe.write_text(SMALL_MODEL)

    def train_words(self, name, *options):
        return ["train", self.recipe, "--data-path", self.path / "tokens_text_document", "--tokenizer",
                self.tokenizer, "--train.out", self.path / name, *options]

    def train(self, name, *options, code=0):
        return run(*self.train_words(name, *options), code=code)

    def write_alike(self):
        """Tokens, `alike_text_document`, of documents that are all alike, each as long as a sample: so is every sample.
        Their text."""
        line = "the old man never answers my friend on monday, and the cat sees a dog."
        text = self.path / "alike.jsonl"
        text.write_text((json.dumps({"text": line}) + "\n") * 50)
        run("data", "preprocess", "--input", text, "--tokenizer", self.tokenizer,
            "--output-prefix", self.path / "alike")
        return line

    def check_layouts(self, test, options, layouts):
        """A run `many` that changes its layout after iterations 2 and 4 of 6 has the losses and texts of `one`, on one
        rank."""
        self.train("one", *options)
        for until, layout in zip((2, 4, 6), layouts, strict=True):
            self.train("many", *options, *layout, "--train.exit_interval", until)
        one, many = self.losses("one"), self.losses("many")
        test.assertEqual(sorted(many), list(range(1, 7)))
        for iteration, loss in one.items():
            test.assertAlmostEqual(many[iteration] / loss, 1, delta=1e-10)
        text = [run("generate", "--load", self.path / name, "--prompt", "the old man", "--temperature", 0,
                    "--max-new-tokens", 8, "--ignore-eos") for name in ("one", "many")]
        test.assertEqual(*text)

    def metrics(self, name):
        """The objects of metrics.jsonl that report a training step."""
        lines = (self.path / name / "metrics.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if "loss" in entry]

    def losses(self, name):
        return {entry["iteration"]: entry["loss"] for entry in self.metrics(name)}

    def close(self):
        self._folder.cleanup()
