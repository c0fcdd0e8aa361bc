"""Our tokenizers against tiktoken, Hugging Face tokenizers and SentencePiece: python3 -m unittest test_tokenizer,
MEGATRON=path of the program. Needs requirements.txt and the shared data. Compares a share of the texts that touches
every file, every script and every run of characters of one category. With MEGATRON_ALL_TEXT=1 all of them, a matter of
minutes; kinds that are variants of others, whose libraries would take half an hour for all, then still have every code
point and random text but a share of the rest (VARIANT_SHARES)."""
import glob
import itertools
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unicodedata
import unittest

sys.path += glob.glob(str(pathlib.Path(__file__).resolve().parents[2] / ".venv/lib/python3*/site-packages"))
from peers import peers  # noqa: E402
from tokenizer_kinds import DATA, MISSING, SMALL, byte_level, kinds, megatron, ours  # noqa: E402
from program import GOLDEN_MODELS, MODELS, run  # noqa: E402

transformers, NO_TRANSFORMERS = peers("transformers")

if not MISSING:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

ALL = "MEGATRON_ALL_TEXT" in os.environ
# Of each source, one in how many texts the variants of a kind are given.
VARIANT_SHARES = {"lines": 8, "points": 1, "pairs": 4, "random": 1, "novels": 32} if ALL else dict.fromkeys(
    ("lines", "points", "pairs", "random", "novels"), 7)
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


def windows(text, size=1000, count=30):
    """Evenly spread pieces of a text, or all of it."""
    if ALL or len(text) <= size * count:
        return [text]
    return [text[at:at + size] for at in range(0, len(text) - size, len(text) // count)]


def whole_novels():
    packed = DATA / "text/english_novels_98.jsonl.zst"
    for line in subprocess.run(["zstd", "-dc", packed], stdout=subprocess.PIPE, check=True).stdout.splitlines():
        yield json.loads(line)["text"]


def novels():
    for text in whole_novels():
        yield from windows(text, 1000, 6)


def shared_lines():
    """The lines of the shared texts but the novels."""
    names = {".txt", ".tokens", ".json", ".jsonl", ".tsv"}
    for folder in ("text", "wikitext", "lambada", "squad", "glue", "race"):
        for path in sorted((DATA / folder).iterdir()):
            if path.suffix in names:
                for piece in windows(path.read_bytes().decode().replace("\r\n", "\n")):
                    yield from piece.split("\n")


def code_points():
    """All of them, or of each run of one category its ends and every 13th, which is one of each block; of what is not
    assigned and of private ones every 1009th."""
    points = (chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    if ALL:
        return list(points)
    chosen = []
    for (category, _), run in itertools.groupby(points, lambda c: (unicodedata.category(c),
                                                                  unicodedata.decomposition(c) == "")):
        run = list(run)
        chosen += [*run[:-1:1009 if category in ("Cn", "Co") else 13], run[-1]]
    return chosen


def texts():
    """A list for each source."""
    points = code_points()
    return {"lines": list(shared_lines()), "points": points,
            "pairs": ["".join(f"a{c}b {c}1{c} 2{c}  " for c in points[at:at + 64])
                      for at in range(0, len(points), 64)],
            "random": list(itertools.islice(random_texts(), 10000 if ALL else 2000)), "novels": list(novels())}


def batches(texts, most=1 << 24):
    """Lists of about so many characters at most."""
    batch, size = [], 0
    for text in texts:
        if size + len(text) > most:
            yield batch
            batch, size = [], 0
        batch.append(text.replace("\n", "\r"))  # a line is a text
        size += len(text)
    yield batch


@unittest.skipIf(MISSING, MISSING)
class EveryTokenizer(unittest.TestCase):
    def equal(self, kind, texts):
        lines = kind.ours(texts)
        for peer in kind.peers:
            expected = [" ".join(map(str, ids)) for ids in peer(texts)]
            if lines == expected:
                continue
            self.assertEqual(len(lines), len(expected))
            for text, line, other in zip(texts, lines, expected):
                # Not assertEqual of all: a message with millions of ids would help nobody.
                self.assertEqual(line[:2000], other[:2000], f"{kind.name}: {ascii(text[:500])}")
            self.fail(f"{kind.name}: differs far into a text")

    def test_texts_of_every_source_have_the_same_ids(self):
        """The shared texts, every code point alone and next to others, random texts, novels."""
        sources = texts()
        self.assertGreater(min(map(len, sources.values())), 50)
        for kind in kinds():
            with self.subTest(kind.name):
                begin = time.monotonic()
                for batch in batches(itertools.chain(*(source[::VARIANT_SHARES[name] if kind.variant else 1]
                                                       for name, source in sources.items()))):
                    self.equal(kind, batch)
                if ALL:
                    print(f"{kind.name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)

    def test_random_bytes_come_back_or_count_as_replacement_characters(self):
        data = random.Random(6).randbytes(1 << (20 if ALL else 16))
        for kind in kinds():
            if not kind.not_utf8 or kind.variant and not ALL:
                continue
            ids = ours(data, kind.path)
            if kind.not_utf8 == "kept":
                text = megatron("decode", "--tokenizer", kind.path, stdin=" ".join(map(str, ids)).encode())
                self.assertTrue(text == data + b"\n", kind.name)
            else:  # however many U+FFFD a run of bytes makes
                self.assertTrue(ids == kind.peers[0]([data.decode(errors="replace")])[0], kind.name)

    def test_a_text_has_the_same_ids_whole_and_by_threads(self):
        text = (DATA / "text/tinyshakespeare.input.txt").read_bytes()[:None if ALL else 300_000]
        for kind in kinds():
            if kind.variant and not ALL:
                continue
            self.assertTrue(ours(text, kind.path, *kind.options) == kind.peers[-1]([text.decode()])[0], kind.name)
            if kind.name != "gpt2" and not ALL:
                continue
            one, two = (megatron("encode", "--tokenizer", kind.path, "--threads", threads, stdin=text)
                        for threads in (1, 2))
            self.assertTrue(one == two, kind.name)

    def test_ids_of_trained_models_are_their_golden_ones(self):
        if not (MODELS.exists() and GOLDEN_MODELS.exists()):
            self.skipTest(f"{MODELS} or {GOLDEN_MODELS} is not there")
        smollm2 = json.loads((GOLDEN_MODELS / "smollm2.json").read_text())["tokens"]["rows"]
        self.golden(MODELS / "smollm2-135m-instruct", smollm2)
        self.golden(MODELS / "minilm-l6", json.loads((GOLDEN_MODELS / "minilm.json").read_text())["strings"],
                    "--add-special-tokens")

    def golden(self, tokenizer, rows, *options):
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder, str(i)) for i in range(len(rows))]
            for file, row in zip(files, rows):
                file.write_text(row["text"], encoding="utf-8", newline="")
            lines = megatron("encode", "--tokenizer", tokenizer, "--json", *options, "--input", *files).splitlines()
        self.assertEqual([json.loads(line)["ids"] for line in lines], [row["ids"] for row in rows])


@unittest.skipIf(MISSING or NO_TRANSFORMERS, MISSING or NO_TRANSFORMERS)
class Transformers(unittest.TestCase):
    """What transformers gives for a folder, as Megatron-LM's HuggingFaceTokenizer calls it: with what the template sets
    around a text, and never cut or padded, whatever the file says."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def folders(self):
        """Folders as models are published: with a template, and with truncation and padding set."""
        for name in ("llama", "qwen", "roberta", "bert", "t5"):
            file = json.loads((SMALL / f"{name}.json").read_text(encoding="utf-8"))
            file["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
            file["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                               "pad_type_id": 0, "pad_token": file["added_tokens"][0]["content"]}
            (self.path / name).mkdir()
            (self.path / name / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
            yield self.path / name
        for name in ("smollm2-135m-instruct", "minilm-l6"):
            if (MODELS / name / "tokenizer.json").exists():
                yield MODELS / name

    def test_pairs_of_files_have_the_ids_that_megatron_lm_writes(self):
        sources = (itertools.islice(shared_lines(), 0, None, 2000), itertools.islice(random_texts(), 300),
                   windows(next(whole_novels()), 20000, 3))
        texts = [text for text in itertools.chain(*sources) if text]
        (self.path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        count = 0
        for folder in self.folders():
            theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
            for framed in (False, True):
                expected = [theirs(text, add_special_tokens=framed).input_ids for text in texts]
                run("data", "preprocess", "--input", self.path / "text.jsonl", "--output-prefix", self.path / "out",
                    "--tokenizer", folder, "--tokenizer-type", "HuggingFaceTokenizer", "--special-tokens", "recognised",
                    *(["--add-special-tokens"] if framed else []))
                printed = run("data", "cat", self.path / "out_text_document", "--range", f"0:{len(texts)}", "--json")
                written = [[i for row in json.loads(line)["sequences"] for i in row["ids"]]
                           for line in printed.splitlines()]
                for mine, ids in zip(written, expected, strict=True):
                    self.assertEqual(mine[:200], ids[:200], f"{folder.name}, framed {framed}")
                    self.assertTrue(mine == ids)
                count += 1
        self.assertGreaterEqual(count, 6)

    def test_a_pair_of_files_is_what_transformers_makes_of_its_folder(self):
        model = json.loads((pathlib.Path(__file__).parents[1] / "golden/text/tokenizer.json").read_text())["model"]
        roberta = {**model["vocab"], **{token: len(model["vocab"]) + i for i, token in
                                        enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])}}
        added = {"<|user|>": 1200, "<|end|>": 1201}
        decoder = {str(i): {"content": token, "lstrip": i == 1200, "special": True} for token, i in added.items()}
        text = "the cat <|user|> Hi<|end|>\n the <s>end</s><mask> <|endoftext|>\n"
        for number, (vocab, files) in enumerate([
            (model["vocab"], {"tokenizer_config": {}, "added_tokens": added}),
            (model["vocab"], {"tokenizer_config": {"added_tokens_decoder": decoder, "eos_token": "<|end|>"}}),
            (model["vocab"], {"tokenizer_config": {"add_prefix_space": True}, "added_tokens": added,
                              "special_tokens_map": {"eos_token": "<|end|>"}}),
            (model["vocab"], {"tokenizer_config": {"add_bos_token": True}}),
            (roberta, {"tokenizer_config": {"tokenizer_class": "RobertaTokenizer"}}),
            (roberta, {"tokenizer_config": {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}}),
        ]):
            folder = self.path / f"pair{number}"
            folder.mkdir()
            (folder / "vocab.json").write_text(json.dumps(vocab))
            (folder / "merges.txt").write_text("".join(" ".join(merge) + "\n" for merge in model["merges"]))
            files["tokenizer_config"].setdefault("tokenizer_class", "GPT2Tokenizer")
            for name, content in files.items():
                (folder / f"{name}.json").write_text(json.dumps(content))
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
            self.assertEqual(ours(text.encode(), folder, "--add-special-tokens"), theirs(text).input_ids, files)

    def test_a_sentencepiece_model_is_what_transformers_makes_of_its_folder(self):
        llama = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        decoder = {"340": {"content": "<|user|>", "special": True}, "341": {"content": "<pic>", "special": False}}
        text = "the cat<|user|>and</s>the mat<pic>a<s>it"
        for number, (config, added) in enumerate([
            ({"legacy": True, "add_eos_token": True}, {"<|user|>": 340, "<pic>": 341}),
            ({"legacy": False, "add_bos_token": True, "add_eos_token": True, "added_tokens_decoder": decoder}, None),
            ({"legacy": False, "additional_special_tokens": ["<|user|>", "<pic>"]}, None),
        ]):
            folder = self.path / f"pieces{number}"
            folder.mkdir()
            shutil.copy(pathlib.Path(__file__).parents[1] / "golden/tokenizers/bpe.model", folder / "tokenizer.model")
            (folder / "tokenizer_config.json").write_text(json.dumps({**llama, **config}))
            if added:
                (folder / "added_tokens.json").write_text(json.dumps(added))
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
            self.assertEqual(ours(text.encode(), folder, "--add-special-tokens"), theirs(text).input_ids, config)

    def test_the_case_of_a_vocabulary_is_that_of_megatrons_name(self):
        text = "Ünder the Old Bridge, I'M naïve."
        for name, lower in (("BertWordPieceCase", False), ("BertWordPieceLowerCase", True)):
            folder = self.path / name
            folder.mkdir()
            (folder / "vocab.txt").write_bytes((DATA / "bert/vocab.txt").read_bytes())
            (folder / "tokenizer_config.json").write_text(json.dumps(
                {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}))
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
            mine = ours(text.encode(), DATA / "bert/vocab.txt", "--tokenizer-type", name, "--add-special-tokens")
            self.assertEqual(mine, theirs(text).input_ids, name)
            self.assertEqual(theirs.sep_token_id, mine[-1])


@unittest.skipIf(MISSING, MISSING)
class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Two texts to learn from: shared ones, or their beginnings."""
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.sources, cls.texts = [], []
        for name in ("text/tinyshakespeare.input.txt", "wikitext/wikitext-2.wiki.valid.tokens"):
            cls.texts.append((DATA / name).read_bytes().decode()[:None if ALL else 250_000])
            cls.sources.append(pathlib.Path(folder.name, f"{len(cls.sources)}.txt"))
            cls.sources[-1].write_text(cls.texts[-1], encoding="utf-8", newline="")

    def train(self, folder, kind, vocab_size, *options, sources=(), counts=(1, 3), form="file"):
        """What is written, the same by any number of threads."""
        written = []
        for threads in counts:
            megatron("train", "--kind", kind, "--input", *(sources or self.sources), "--format", form, "--vocab-size",
                     vocab_size, "--output", folder, "--threads", threads, *options)
            written.append(pathlib.Path(folder, "tokenizer.json").read_text(encoding="utf-8"))
        self.assertEqual(written[0], written[-1])
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
        texts = self.texts
        theirs = self.learn_bpe(texts, 8000, 2, ["<|endoftext|>"])
        with tempfile.TemporaryDirectory() as folder:
            self.equal_bpe(self.train(folder, "bpe", 8000), theirs)
            read_back = Tokenizer.from_file(f"{folder}/tokenizer.json")
            ids = ours(texts[0].encode(), folder)
            self.assertTrue(ids == theirs.encode(texts[0]).ids == read_back.encode(texts[0]).ids)
            self.assertTrue(read_back.decode(ids) == texts[0])
            theirs.save(f"{folder}/tokenizer.json")
            self.assertTrue(ours(texts[1].encode(), folder) == theirs.encode(texts[1]).ids)

    def test_byte_level_bpe_learns_the_same_of_novels(self):
        """Of one, or with MEGATRON_ALL_TEXT=1 of all, and then as many tokens as GPT-2 has."""
        texts = list(itertools.islice(whole_novels(), None if ALL else 1))
        size = 50257 if ALL else 5000
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "novels.jsonl")
            source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
            learned = self.train(folder, "bpe", size, sources=[source], counts=(2,), form="jsonl")
            self.equal_bpe(learned, self.learn_bpe(texts, size, 2, ["<|endoftext|>"]))

    def test_byte_level_bpe_learns_the_same_to_the_last_tie(self):
        """Few words, so that most pairs are as frequent as others; pairs that occur once; specials in the text."""
        text = self.texts[0][:30000] + "<x>" * 50 + "ababab" * 7
        specials = ["<|endoftext|>", "<x>", "the"]
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "text.txt")
            source.write_text(text, encoding="utf-8", newline="")
            for min_frequency, vocab_size, counts in ((1, 20000, (1, 3)), (2, 1500, (2,)), (7, 20000, (3,))):
                learned = self.train(folder, "bpe", vocab_size, "--min-frequency", min_frequency, "--special-tokens",
                                     *specials, sources=[source], counts=counts)
                self.equal_bpe(learned, self.learn_bpe([text], vocab_size, min_frequency, specials))

    def test_word_piece_learns_the_same(self):
        """tokenizers gives "##x" their ids in an order that changes from run to run, and ties with them: as special
        tokens they have the same ids here and there."""
        texts = self.texts
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
                megatron("train", "--kind", "unigram", "--input", *self.sources, "--vocab-size", 2000, "--output",
                         folder)
                models_written.append(pathlib.Path(folder, "tokenizer.model").read_bytes())
            self.assertTrue(models_written[0] == models_written[1])
            text = "before we proceed any further"
            ids = ours(text.encode(), folder)
            self.assertEqual(megatron("decode", "--tokenizer", folder, stdin=" ".join(map(str, ids)).encode()),
                             text.encode() + b"\n")


if __name__ == "__main__":
    unittest.main()
