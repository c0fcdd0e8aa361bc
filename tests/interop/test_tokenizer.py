"""Our tokenizer against tiktoken and Hugging Face tokenizers: python3 -m unittest test_tokenizer, MEGATRON=path of the
program. Needs the two packages from PyPI (where the project's .venv or PYTHONPATH has them) and the shared data."""
import functools
import glob
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/testing"))
from program import GOLDEN_MODELS, MODELS  # noqa: E402

sys.path += glob.glob(str(ROOT / ".venv/lib/python3*/site-packages"))
DATA = ROOT.parent / "shared/data"
GPT2 = DATA / "gpt2"
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

try:
    import tiktoken
    import tokenizers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    MISSING = "" if GPT2.exists() else f"{GPT2} is missing"
except ImportError as error:
    MISSING = f"{error}: pip install tiktoken tokenizers"


def megatron(*words, stdin=b""):
    words = [os.environ["MEGATRON"], "tokenizer", *map(str, words)]
    result = subprocess.run(words, input=stdin, stdout=subprocess.PIPE)
    if result.returncode != 0:
        raise AssertionError(f"{words}: exit code {result.returncode}")
    return result.stdout


def ours(data, tokenizer=GPT2):
    return json.loads(megatron("encode", "--tokenizer", tokenizer, "--json", stdin=data))["ids"]


@functools.cache
def gpt2_tiktoken():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    vocabulary = json.loads((GPT2 / "encoder.json").read_text(encoding="utf-8"))
    end = vocabulary.pop("<|endoftext|>")
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in vocabulary.items()}
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": end})


def byte_level(model):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@functools.cache
def gpt2_hugging_face():
    return byte_level(models.BPE.from_file(str(GPT2 / "encoder.json"), str(GPT2 / "vocab.bpe")))


def random_texts():
    rng = random.Random(5)
    alphabets = ["ab's tred ml'\n\t 0.!", "\u00a0\u2003\u3000\u2028 x\n", "éßжяŁ ½٣Ⅷ日本한국\u0301'sd "]
    for _ in range(3000):
        if rng.random() < 0.3:
            yield "".join(chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)]))
                          for _ in range(rng.randrange(40)))
        else:
            alphabet = rng.choice(alphabets)
            yield "".join(rng.choice(alphabet) for _ in range(rng.randrange(200)))


@unittest.skipIf(MISSING, MISSING)
class TokenizerInterop(unittest.TestCase):
    def equal(self, text, what, hugging_face=True):
        ids = ours(text.encode())
        # assertTrue: a message with millions of ids would help nobody
        self.assertTrue(ids == gpt2_tiktoken().encode_ordinary(text), f"{what}: differs from tiktoken")
        if hugging_face:
            self.assertTrue(ids == gpt2_hugging_face().encode(text).ids, f"{what}: differs from tokenizers")

    def test_corpora_have_the_same_ids(self):
        files = sorted(p for folder in ("text", "wikitext") for p in (DATA / folder).iterdir()
                       if p.suffix in {".txt", ".tokens"})
        self.assertTrue(files)
        for file in files:
            self.equal(file.read_bytes().decode(), file.name)

    def test_novels_have_the_same_ids(self):
        packed = DATA / "text/english_novels_98.jsonl.zst"
        lines = subprocess.run(["zstd", "-dc", packed], stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
        texts = [json.loads(line)["text"] for line in lines]
        self.equal("\n".join(texts[:20]), "20 novels")
        self.equal("\n".join(texts), "98 novels", hugging_face=False)

    def test_every_code_point_has_the_same_ids_alone_and_beside_others(self):
        points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
        for form in ("{}\n", "a{}b\n", "1{}2\n", " {} {}\n", "  {}{}  \n", "'{}'s\n"):
            text = "".join(form.replace("{}", c) for c in points)
            self.equal(text, repr(form), hugging_face=False)
            for begin in range(0, len(text), 500_000):  # tokenizers takes long texts slowly
                self.equal(text[begin:begin + 500_000], f"{form!r} from {begin}")

    def test_random_texts_have_the_same_ids(self):
        texts = [text.replace("\n", "\r") for text in random_texts()]  # a line is a text
        lines = megatron("encode", "--tokenizer", GPT2, stdin="\n".join(texts).encode() + b"\n").decode().split("\n")
        reference, hugging_face = gpt2_tiktoken(), gpt2_hugging_face()
        for text, line in zip(texts, lines, strict=False):
            ids = [int(i) for i in line.split()]
            self.assertEqual(ids, reference.encode_ordinary(text), ascii(text))
            self.assertEqual(ids, hugging_face.encode(text).ids, ascii(text))

    def test_random_bytes_come_back(self):
        data = random.Random(6).randbytes(1 << 20)
        ids = ours(data)
        self.assertEqual(megatron("decode", "--tokenizer", GPT2, stdin=" ".join(map(str, ids)).encode()), data + b"\n")

    def test_special_tokens_written_in_the_text_are_recognised(self):
        text = "a<|endoftext|> b<|endoftext|><|endoftext"
        self.assertEqual(ours(text.encode()), gpt2_tiktoken().encode(text, allowed_special="all"))

    def test_trainer_learns_the_same_and_its_file_encodes_the_same(self):
        sources = [DATA / "text/tinyshakespeare.input.txt", DATA / "wikitext/wikitext-2.wiki.valid.tokens"]
        texts = [source.read_bytes().decode() for source in sources]
        theirs = byte_level(models.BPE())
        theirs.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=8000, min_frequency=2, special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        with tempfile.TemporaryDirectory() as folder:
            written = []
            for threads in (1, 3):
                megatron("train", "--input", *sources, "--format", "file", "--vocab-size", 8000, "--output", folder,
                         "--threads", threads)
                written.append(pathlib.Path(folder, "tokenizer.json").read_text(encoding="utf-8"))
            self.assertEqual(written[0], written[1])
            learned = json.loads(written[0])["model"]
            expected = json.loads(theirs.to_str())["model"]
            self.assertTrue(learned["vocab"] == expected["vocab"], "other tokens")
            self.assertTrue([m.split(" ") for m in learned["merges"]] == [list(m) for m in expected["merges"]],
                            "other merges")
            read_back = Tokenizer.from_file(f"{folder}/tokenizer.json")
            ids = ours(texts[0].encode(), folder)
            self.assertTrue(ids == theirs.encode(texts[0]).ids == read_back.encode(texts[0]).ids)
            self.assertTrue(read_back.decode(ids) == texts[0])
            theirs.save(f"{folder}/tokenizer.json")
            self.assertTrue(ours(texts[1].encode(), folder) == theirs.encode(texts[1]).ids)


@unittest.skipIf(MISSING, MISSING)
@unittest.skipUnless(MODELS.exists() and GOLDEN_MODELS.exists(), f"{MODELS} or {GOLDEN_MODELS} is not there")
class TrainedModelsTokenizers(unittest.TestCase):
    """tokenizer.json of SmolLM2 (byte-level BPE, digits apart) and of MiniLM (WordPiece)."""
    FOLDERS = ("smollm2-135m-instruct", "minilm-l6")
    SPECIALS = ["<|im_end|>", "<|im_start|>", "<file_sep>", "[MASK]", "[SEP]", "[CLS", " ", "a", "1"]

    def equal(self, folder, texts):
        theirs = Tokenizer.from_file(str(MODELS / folder / "tokenizer.json"))
        theirs.no_padding()
        theirs.no_truncation()
        texts = [text.replace("\n", "\r") for text in texts]  # a line is a text
        lines = megatron("encode", "--tokenizer", MODELS / folder, stdin="\n".join(texts).encode() + b"\n").decode()
        for text, line, encoding in zip(texts, lines.split("\n"),
                                        theirs.encode_batch(texts, add_special_tokens=False), strict=False):
            self.assertEqual([int(i) for i in line.split()], encoding.ids, ascii(text))

    def test_golden_texts_have_the_reference_ids(self):
        golden = json.loads((GOLDEN_MODELS / "smollm2.json").read_text())
        for row in golden["tokens"]["rows"]:
            self.assertEqual(ours(row["text"].encode(), MODELS / self.FOLDERS[0]), row["ids"], row["text"])
        golden = json.loads((GOLDEN_MODELS / "minilm.json").read_text())
        for row in golden["strings"]:
            framed = megatron("encode", "--tokenizer", MODELS / self.FOLDERS[1], "--json", "--add-special-tokens",
                              stdin=row["text"].encode())
            self.assertEqual(json.loads(framed)["ids"], row["ids"], row["text"])

    def test_random_texts_have_the_same_ids(self):
        rng = random.Random(7)
        specials = ["".join(rng.choice(self.SPECIALS) for _ in range(rng.randrange(12))) for _ in range(500)]
        marks = ["".join(rng.choice("\U0001d16d\U0001d165\u0301\u302e a\u0334\u0345b") for _ in range(9))
                 for _ in range(500)]
        for folder in self.FOLDERS:
            self.equal(folder, [*random_texts(), *specials, *marks])

    def test_every_code_point_has_the_same_ids_beside_others(self):
        points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
        groups = ["".join(f"a{c}{c} {c}1 " for c in points[begin:begin + 64]) for begin in range(0, len(points), 64)]
        for folder in self.FOLDERS:
            self.equal(folder, groups)

    def test_wikitext_has_the_same_ids(self):
        lines = (DATA / "wikitext/wikitext-2.wiki.valid.tokens").read_bytes().decode().split("\n")
        for folder in self.FOLDERS:
            self.equal(folder, lines)


if __name__ == "__main__":
    unittest.main()
