"""The tokenizers that test_tokenizer.py compares with the libraries that made their files: one line each in kinds().
A peer takes a list of texts and gives their lists of ids, special tokens of the text recognised and none added."""
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/testing"))
from program import MODELS  # noqa: E402

DATA = ROOT.parent / "shared/data"
GPT2 = DATA / "gpt2"
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

try:
    import tiktoken
    import tokenizers
    from tokenizers import BertWordPieceTokenizer, Tokenizer, decoders, models, pre_tokenizers
    MISSING = "" if GPT2.exists() else f"{GPT2} is missing"
except ImportError as error:
    MISSING = f"{error}: pip install tiktoken tokenizers"


def megatron(*words, stdin=b""):
    words = [os.environ["MEGATRON"], "tokenizer", *map(str, words)]
    result = subprocess.run(words, input=stdin, stdout=subprocess.PIPE)
    if result.returncode != 0:
        raise AssertionError(f"{words}: exit code {result.returncode}")
    return result.stdout


def ours(data, tokenizer):
    """The ids of the whole input."""
    return json.loads(megatron("encode", "--tokenizer", tokenizer, "--json", stdin=data))["ids"]


def ours_by_line(texts, tokenizer):
    """The ids of each text, as lines; no text may have a line end."""
    lines = megatron("encode", "--tokenizer", tokenizer, "--threads", 2, stdin="\n".join(texts).encode() + b"\n")
    return lines.decode().split("\n")[:-1]


@dataclasses.dataclass
class Kind:
    name: str
    path: pathlib.Path  # for --tokenizer
    peers: list[typing.Callable[[list[str]], list[list[int]]]]
    not_utf8: str = "cleaned"  # bytes that are no text are "kept", "cleaned" away as U+FFFD is, or "" neither
    complete: bool = True  # gets every line of the shared texts; a variant of another kind gets part of them


def gpt2_tiktoken():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    vocabulary = json.loads((GPT2 / "encoder.json").read_text(encoding="utf-8"))
    end = vocabulary.pop("<|endoftext|>")
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in vocabulary.items()}
    encoding = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": end})
    return lambda texts: encoding.encode_batch(texts, num_threads=2, allowed_special="all")


def byte_level(model):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def hugging_face(tokenizer):
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return lambda texts: [row.ids for row in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def gpt2_hugging_face():
    tokenizer = byte_level(models.BPE.from_file(str(GPT2 / "encoder.json"), str(GPT2 / "vocab.bpe")))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return hugging_face(tokenizer)


def from_file(folder):
    return hugging_face(Tokenizer.from_file(str(folder / "tokenizer.json")))


def bert(folder, **options):
    """BERT's vocabulary with other options, as tokenizer.json in `folder`."""
    folder.mkdir()
    BertWordPieceTokenizer(str(DATA / "bert/vocab.txt"), **options).save(str(folder / "tokenizer.json"))
    return folder


FOLDER = tempfile.TemporaryDirectory()


@functools.cache
def kinds():
    """All that are here: those of models that were not fetched are left out."""
    folder = pathlib.Path(FOLDER.name)
    cased = bert(folder / "cased", lowercase=False)
    accents = bert(folder / "accents", lowercase=True, strip_accents=False, handle_chinese_chars=False)
    as_is = bert(folder / "as-is", lowercase=False, strip_accents=True, clean_text=False)
    uncased = hugging_face(BertWordPieceTokenizer(str(DATA / "bert/vocab.txt"))._tokenizer)
    rows = [Kind("gpt2", GPT2, [gpt2_tiktoken(), gpt2_hugging_face()], not_utf8="kept"),
            Kind("bert uncased", DATA / "bert/vocab.txt", [uncased]),
            Kind("bert cased", cased, [from_file(cased)]),
            Kind("bert with accents", accents, [from_file(accents)], complete=False),
            Kind("bert as it is", as_is, [from_file(as_is)], not_utf8="", complete=False)]
    if (MODELS / "smollm2-135m-instruct").exists():
        rows.append(Kind("smollm2", MODELS / "smollm2-135m-instruct", [from_file(MODELS / "smollm2-135m-instruct")],
                         not_utf8=""))  # some bytes are no tokens of it
    if (MODELS / "minilm-l6").exists():
        rows.append(Kind("minilm", MODELS / "minilm-l6", [from_file(MODELS / "minilm-l6")], complete=False))
    return rows
