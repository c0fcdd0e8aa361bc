"""The tokenizers that test_tokenizer.py compares with the libraries that made their files: one line each in kinds().
A peer takes a list of texts and gives their lists of ids, special tokens of the text recognised and none added."""
import base64
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import typing
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/testing"))
import rank_files  # noqa: E402
from program import DATA, MODELS  # noqa: E402

GPT2 = DATA / "gpt2"
SMALL = ROOT / "tests/golden/tokenizers"  # each step and model that published files use
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

try:
    import sentencepiece
    import tiktoken
    import tokenizers
    from tiktoken_ext import openai_public
    from tokenizers import BertWordPieceTokenizer, Tokenizer, decoders, models, pre_tokenizers
    MISSING = "" if GPT2.exists() else f"{GPT2} is missing"
except ImportError as error:
    MISSING = f"{error}: pip install -r tests/interop/requirements.txt"


def megatron(*words, stdin=b""):
    words = [os.environ["MEGATRON"], "tokenizer", *map(str, words)]
    result = subprocess.run(words, input=stdin, stdout=subprocess.PIPE)
    if result.returncode != 0:
        raise AssertionError(f"{words}: exit code {result.returncode}")
    return result.stdout


def ours(data, tokenizer, *options):
    """The ids of the whole input."""
    return json.loads(megatron("encode", "--tokenizer", tokenizer, "--json", *options, stdin=data))["ids"]


@dataclasses.dataclass
class Kind:
    name: str
    path: pathlib.Path  # for --tokenizer
    peers: list[typing.Callable[[list[str]], list[list[int]]]]
    not_utf8: str = ""  # bytes that are no text are "kept", "cleaned" away as U+FFFD is, or neither is said
    variant: bool = False  # of another kind, or small: gets a part of the texts
    options: tuple = ()

    def ours(self, texts):
        """The ids of each text, as lines; no text may have a line end."""
        lines = megatron("encode", "--tokenizer", self.path, "--threads", 2, *self.options,
                         stdin="\n".join(texts).encode() + b"\n")
        return lines.decode().split("\n")[:-1]


def by_tiktoken(encoding):
    return lambda texts: encoding.encode_batch(texts, num_threads=2, allowed_special="all")


def gpt2_tiktoken(ranks):
    end = {"<|endoftext|>": len(ranks)}
    return by_tiktoken(tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=end))


def of_tiktoken(folder, name, ranks):
    """One of tiktoken's own encodings with other ranks, as many as it has."""
    path = folder / f"{name}.tiktoken"
    rank_files.write(path, ranks)
    with unittest.mock.patch.object(openai_public, "load_tiktoken_bpe", return_value=ranks):
        encoding = tiktoken.Encoding(**getattr(openai_public, name)())
    return Kind(name, path, [by_tiktoken(encoding)], not_utf8="kept", variant=True)


def tekken(folder, ranks, specials=1000):
    """Mistral's kind of file, and tiktoken by its expression, which Mistral's library encodes with."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    first = r"[^\r\n\p{L}\p{N}]?"
    pattern = "|".join((f"{first}{upper}*{lower}+", f"{first}{upper}+{lower}*", r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                        r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"))
    tokens = [bytes([byte]) for byte in range(256)] + [token for token in ranks if len(token) > 1]
    path = folder / "tekken.json"
    path.write_text(json.dumps({
        "config": {"pattern": pattern, "num_vocab_tokens": len(tokens), "version": "v3",
                   "default_vocab_size": len(tokens) + specials, "default_num_special_tokens": specials},
        "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
                  for rank, token in enumerate(tokens)]}))
    encoding = tiktoken.Encoding("tekken", pat_str=pattern, special_tokens={},
                                 mergeable_ranks={token: rank for rank, token in enumerate(tokens)})

    def peer(texts):
        return [[specials + rank for rank in row] for row in encoding.encode_ordinary_batch(texts, num_threads=2)]
    return Kind("tekken", path, [peer], not_utf8="kept", variant=True, options=("--special-tokens", "text"))


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


def from_file(path):
    return hugging_face(Tokenizer.from_file(str(path)))


def sentence_piece(path):
    """SentencePiece itself knows no special tokens in a text."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return Kind(path.name, path, [model.encode], variant=True, options=("--special-tokens", "text"))


def learned_sentence_piece(folder):
    """One that normalizes by NFKC and more, as published models do."""
    sentencepiece.SentencePieceTrainer.train(
        input=str(ROOT / "tests/golden/text/train.txt"), model_prefix=str(folder / "nfkc"), vocab_size=400,
        hard_vocab_limit=False, model_type="unigram", normalization_rule_name="nmt_nfkc_cf", minloglevel=2)
    return sentence_piece(folder / "nfkc.model")


def bert(folder, **options):
    """BERT's vocabulary with other options, as tokenizer.json in `folder`."""
    folder.mkdir()
    BertWordPieceTokenizer(str(DATA / "bert/vocab.txt"), **options).save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


FOLDER = tempfile.TemporaryDirectory()


@functools.cache
def kinds():
    """All that are here: those of models that were not fetched are left out."""
    folder = pathlib.Path(FOLDER.name)
    cased = bert(folder / "cased", lowercase=False)
    accents = bert(folder / "accents", lowercase=True, strip_accents=False, handle_chinese_chars=False)
    as_is = bert(folder / "as-is", lowercase=False, strip_accents=True, clean_text=False)
    uncased = hugging_face(BertWordPieceTokenizer(str(DATA / "bert/vocab.txt"))._tokenizer)
    ranks = rank_files.gpt2_ranks(GPT2)
    rows = [Kind("gpt2", GPT2, [gpt2_tiktoken(ranks), gpt2_hugging_face()], not_utf8="kept"),
            Kind("bert uncased", DATA / "bert/vocab.txt", [uncased], not_utf8="cleaned"),
            Kind("bert cased", cased, [from_file(cased)], not_utf8="cleaned"),
            Kind("bert with accents", accents, [from_file(accents)], not_utf8="cleaned", variant=True),
            Kind("bert as it is", as_is, [from_file(as_is)], variant=True),
            of_tiktoken(folder, "cl100k_base", rank_files.joined(ranks, 100256)),
            of_tiktoken(folder, "o200k_base", rank_files.joined(ranks, 199998)),
            tekken(folder, ranks)]
    for name, variant in (("smollm2-135m-instruct", False), ("minilm-l6", True)):
        path = MODELS / name / "tokenizer.json"
        if path.exists():
            rows.append(Kind(name, path.parent, [from_file(path)], variant=variant))
    rows += [Kind(path.stem, path, [from_file(path)], variant=True)
             for path in sorted(SMALL.glob("*.json")) if path.stem not in ("cases", "tekken")]
    rows += [*map(sentence_piece, sorted(SMALL.glob("*.model"))), learned_sentence_piece(folder)]
    return rows
