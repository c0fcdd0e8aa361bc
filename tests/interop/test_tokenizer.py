"""Our tokenizers against tiktoken and Hugging Face tokenizers: python3 -m unittest test_tokenizer, MEGATRON=path of the
program. Needs the two packages from PyPI and the shared data. MEGATRON_ALL_TEXT=1 compares everything with every peer,
which takes many minutes; else the slow ones, all but tiktoken, get part of the novels and of the rarest characters."""
import glob
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

sys.path += glob.glob(str(pathlib.Path(__file__).resolve().parents[2] / ".venv/lib/python3*/site-packages"))
from tokenizer_kinds import DATA, GPT2, MISSING, byte_level, kinds, megatron, ours, ours_by_line  # noqa: E402
from program import GOLDEN_MODELS, MODELS  # noqa: E402

if not MISSING:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

SPECIALS = ["<|endoftext|>", "<|im_end|>", "<|im_start|>", "<file_sep>", "[MASK]", "[SEP]", "[CLS", "[UNK]", " ", "a",
            "1"]


def random_texts():
    rng = random.Random(5)
    alphabets = ["ab's tred ml'\n\t 0.!", "\u00a0\u2003\u3000\u2028 x\n", "éßжяŁ ½٣Ⅷ日本한국\u0301'sd ",
                 "\U0001d16d\U0001d165\u0301\u302e a\u0334\u0345b"]
    for _ in range(10000):
        kind = rng.random()
        if kind < 0.4:
            yield "".join(chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)]))
                          for _ in range(rng.randrange(40)))
        elif kind < 0.5:
            yield "".join(rng.choice(SPECIALS) for _ in range(rng.randrange(12)))
        else:
            alphabet = rng.choice(alphabets)
            yield "".join(rng.choice(alphabet) for _ in range(rng.randrange(200)))


def novels():
    packed = DATA / "text/english_novels_98.jsonl.zst"
    lines = subprocess.run(["zstd", "-dc", packed], stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
    return [json.loads(line)["text"].replace("\n", "\r") for line in lines]


def shared_lines():
    """Every line of the shared texts but the novels."""
    names = {".txt", ".tokens", ".json", ".jsonl", ".tsv"}
    for folder in ("text", "wikitext", "lambada", "squad", "glue", "race"):
        for path in sorted((DATA / folder).iterdir()):
            if path.suffix in names:
                yield path.name, path.read_bytes().decode().replace("\r\n", "\n").split("\n")


POINTS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ALL = "MEGATRON_ALL_TEXT" in os.environ
# Beyond the second plane nearly all are ideographs, private or not assigned.
SOME_POINTS = POINTS if ALL else [c for i, c in enumerate(POINTS) if ord(c) < 0x1FFFF or i % 61 == 0]


@unittest.skipIf(MISSING, MISSING)
class EveryTokenizer(unittest.TestCase):
    def equal(self, kind, texts, what, peers=None):
        texts = [text.replace("\n", "\r") for text in texts]  # a line is a text
        lines = ours_by_line(texts, kind.path)
        for peer in kind.peers if peers is None else peers:
            expected = [" ".join(map(str, ids)) for ids in peer(texts)]
            if lines == expected:
                continue
            self.assertEqual(len(lines), len(expected))
            for text, line, other in zip(texts, lines, expected):
                # Not assertEqual of all: a message with millions of ids would help nobody.
                self.assertEqual(line[:2000], other[:2000], f"{kind.name}: {what}: {ascii(text[:500])}")
            self.fail(f"{kind.name}: {what}: differs far into a text")

    def test_shared_texts_have_the_same_ids(self):
        lines = list(shared_lines())
        self.assertGreater(len(lines), 10)
        for kind in kinds():
            for name, texts in lines:
                self.equal(kind, texts if ALL or kind.complete or len(texts) < 3000 else texts[::7], name)

    def test_novels_have_the_same_ids(self):
        texts = novels()
        for kind in kinds():
            self.equal(kind, texts if ALL else texts[::33 if kind.complete else 98], "novels")
        gpt2 = kinds()[0]
        self.equal(gpt2, texts, "all novels", peers=gpt2.peers[:1])  # tiktoken is fast enough

    def test_every_code_point_has_the_same_ids_alone(self):
        for kind in kinds():
            for begin in range(0, len(POINTS), 200_000):
                self.equal(kind, POINTS[begin:begin + 200_000], "alone", peers=kind.peers[-1:])

    def test_every_code_point_has_the_same_ids_beside_others(self):
        def groups(points):
            return ["".join(f"a{c}b {c}1{c} 2{c}  " for c in points[begin:begin + 64])
                    for begin in range(0, len(points), 64)]

        for kind in kinds():
            self.equal(kind, groups(SOME_POINTS), "beside others")
        gpt2 = kinds()[0]
        self.equal(gpt2, groups(POINTS), "beside others", peers=gpt2.peers[:1])

    def test_random_texts_have_the_same_ids(self):
        texts = list(random_texts())
        for kind in kinds():
            self.equal(kind, texts, "random")

    def test_random_bytes_come_back_or_count_as_replacement_characters(self):
        data = random.Random(6).randbytes(1 << 20)
        for kind in kinds():
            ids = ours(data, kind.path)
            if kind.not_utf8 == "kept":
                text = megatron("decode", "--tokenizer", kind.path, stdin=" ".join(map(str, ids)).encode())
                self.assertTrue(text == data + b"\n", kind.name)
            elif kind.not_utf8 == "cleaned":  # however many U+FFFD a run of bytes makes
                self.assertTrue(ids == kind.peers[0]([data.decode(errors="replace")])[0], kind.name)

    def test_a_text_has_the_same_ids_whole_and_by_threads(self):
        text = (DATA / "text/tinyshakespeare.input.txt").read_bytes()
        for kind in kinds():
            self.assertTrue(ours(text, kind.path) == kind.peers[-1]([text.decode()])[0], kind.name)
            one, two = (megatron("encode", "--tokenizer", kind.path, "--threads", threads, stdin=text)
                        for threads in (1, 2))
            self.assertTrue(one == two, kind.name)

    def test_ids_of_trained_models_are_their_golden_ones(self):
        if not (MODELS.exists() and GOLDEN_MODELS.exists()):
            self.skipTest(f"{MODELS} or {GOLDEN_MODELS} is not there")
        golden = json.loads((GOLDEN_MODELS / "smollm2.json").read_text())
        for row in golden["tokens"]["rows"]:
            self.assertEqual(ours(row["text"].encode(), MODELS / "smollm2-135m-instruct"), row["ids"], row["text"])
        golden = json.loads((GOLDEN_MODELS / "minilm.json").read_text())
        for row in golden["strings"]:
            framed = megatron("encode", "--tokenizer", MODELS / "minilm-l6", "--json", "--add-special-tokens",
                              stdin=row["text"].encode())
            self.assertEqual(json.loads(framed)["ids"], row["ids"], row["text"])


SOURCES = [DATA / "text/tinyshakespeare.input.txt", DATA / "wikitext/wikitext-2.wiki.valid.tokens"]


@unittest.skipIf(MISSING, MISSING)
class Training(unittest.TestCase):
    def train(self, folder, kind, vocab_size, *options, sources=SOURCES):
        """What is written, the same by one thread and by three."""
        written = []
        for threads in (1, 3):
            megatron("train", "--kind", kind, "--input", *sources, "--format", "file", "--vocab-size", vocab_size,
                     "--output", folder, "--threads", threads, *options)
            written.append(pathlib.Path(folder, "tokenizer.json").read_text(encoding="utf-8"))
        self.assertEqual(written[0], written[1])
        return json.loads(written[0])["model"]

    def learn_bpe(self, texts, vocab_size, min_frequency, specials):
        theirs = byte_level(models.BPE())
        theirs.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=specials,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        return theirs

    def equal_bpe(self, learned, theirs):
        expected = json.loads(theirs.to_str())["model"]
        self.assertTrue(learned["vocab"] == expected["vocab"], "other tokens")
        merges = [merge.split(" ") for merge in learned["merges"]]
        self.assertTrue(merges == [list(merge) for merge in expected["merges"]], "other merges")

    def test_byte_level_bpe_learns_the_same_and_its_file_encodes_the_same(self):
        texts = [source.read_bytes().decode() for source in SOURCES]
        theirs = self.learn_bpe(texts, 8000, 2, ["<|endoftext|>"])
        with tempfile.TemporaryDirectory() as folder:
            self.equal_bpe(self.train(folder, "bpe", 8000), theirs)
            read_back = Tokenizer.from_file(f"{folder}/tokenizer.json")
            ids = ours(texts[0].encode(), folder)
            self.assertTrue(ids == theirs.encode(texts[0]).ids == read_back.encode(texts[0]).ids)
            self.assertTrue(read_back.decode(ids) == texts[0])
            theirs.save(f"{folder}/tokenizer.json")
            self.assertTrue(ours(texts[1].encode(), folder) == theirs.encode(texts[1]).ids)

    def test_byte_level_bpe_learns_the_same_to_the_last_tie(self):
        """Few words, so that most pairs are as frequent as others; pairs that occur once; specials in the text."""
        text = SOURCES[0].read_bytes().decode()[:30000] + "<x>" * 50 + "ababab" * 7
        specials = ["<|endoftext|>", "<x>", "the"]
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "text.txt")
            source.write_text(text, encoding="utf-8", newline="")
            for min_frequency, vocab_size in ((1, 20000), (2, 1500), (7, 20000)):
                learned = self.train(folder, "bpe", vocab_size, "--min-frequency", min_frequency, "--special-tokens",
                                     *specials, sources=[source])
                self.equal_bpe(learned, self.learn_bpe([text], vocab_size, min_frequency, specials))

    def test_word_piece_learns_the_same(self):
        """tokenizers gives "##x" their ids in an order that changes from run to run, and ties with them: as special
        tokens they have the same ids here and there."""
        texts = [source.read_bytes().decode() for source in SOURCES]
        for cased, min_frequency, limit in ((False, 2, 1000), (True, 5, 60)):
            theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
            theirs.normalizer = normalizers.BertNormalizer(lowercase=not cased, strip_accents=not cased)
            theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            words = [word for text in texts for word, _ in
                     theirs.pre_tokenizer.pre_tokenize_str(theirs.normalizer.normalize_str(text))]
            specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
                        *(f"##{c}" for c in sorted({c for word in words for c in word[1:]}))]
            theirs.train_from_iterator(texts, trainers.WordPieceTrainer(
                vocab_size=6000, min_frequency=min_frequency, limit_alphabet=limit, special_tokens=specials,
                show_progress=False))
            with tempfile.TemporaryDirectory() as folder:
                learned = self.train(folder, "wordpiece", 6000, "--min-frequency", min_frequency, "--limit-alphabet",
                                     limit, "--special-tokens", *specials, *(["--cased"] if cased else []))
                expected = json.loads(theirs.to_str())["model"]["vocab"]
                self.assertTrue(learned["vocab"] == expected, f"cased {cased}: other tokens")
                read_back = Tokenizer.from_file(f"{folder}/tokenizer.json")
                ids = read_back.encode(texts[1], add_special_tokens=False).ids
                self.assertTrue(ours(texts[1].encode(), folder) == ids)

    def test_unigram_is_learned_the_same_again(self):
        with tempfile.TemporaryDirectory() as folder:
            models_written = []
            for _ in range(2):
                megatron("train", "--kind", "unigram", "--input", *SOURCES, "--vocab-size", 2000, "--output", folder)
                models_written.append(pathlib.Path(folder, "tokenizer.model").read_bytes())
            self.assertTrue(models_written[0] == models_written[1])
            text = "before we proceed any further"
            ids = ours(text.encode(), folder)
            self.assertEqual(megatron("decode", "--tokenizer", folder, stdin=" ".join(map(str, ids)).encode()),
                             text.encode() + b"\n")


if __name__ == "__main__":
    unittest.main()
