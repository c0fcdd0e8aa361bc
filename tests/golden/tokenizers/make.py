#!/usr/bin/env python3
"""Writes the small tokenizers beside this file and cases.json with what Hugging Face tokenizers 0.23.3 and sentencepiece
0.2.3 from PyPI make of texts by them: ids, offsets in characters, decoded text. Each has other steps or another model.
tekken.json is mistral-common 1.13.1's."""
import base64
import json
import pathlib
import sys

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).parent
sys.path.append(str(FOLDER.parents[2] / "src/megatron/text"))
TRAIN = (FOLDER.parent / "text/train.txt").read_bytes().decode()
MARKS = "caf\u00e9 \u00dcber \ufb01ne \u2167 e\u0301 na\u00efve 12 345 x2\n"
SPLIT = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXTS = ["", " ", "  two  blanks ", "Hello, world! It's 12345.", "caf\u00e9 cafe\u0301 \u00dcber \ufb01ne \u2167 \uff21", "\u65e5\u672c \ud55c\uad6d\uc5b4",
         "a\u0323\u0301 \u0958 \u1e69", "\r\n tabs\tand\n\nlines ", "\U0001f600 \U0001d400!", "<s>x</s> <mask> y", "x<mask>\u2581z \u2581", "MIXED Case \u0130\u00df",
         "don't won't I'M", "unknown \u2603\u2603 snow\u2603", "\u00a0\u2003wide\u3000", "a.b,c;d--e", "\u0915\u094d\u0937 e\u0301\u0301 \u200d x\u200b", "0\u0663\u00bd7"]


def trained(model, trainer, pre_tokenizer, normalizer=None):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator([TRAIN[:12000], MARKS * 20], trainer)
    return tokenizer


def bpe(pre_tokenizer, size, specials=("<s>", "</s>", "<unk>"), **options):
    keep = {k: v for k, v in options.items() if k in ("end_of_word_suffix", "continuing_subword_prefix")}
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), show_progress=False, **keep,
                                  initial_alphabet=options.get("alphabet", []))
    return trained(models.BPE(unk_token=options.get("unk"), **keep), trainer, pre_tokenizer)


def byte_level(**options):
    return bpe(pre_tokenizers.ByteLevel(add_prefix_space=options.get("prefix", False)), 330, ["<s>", "</s>", "<mask>"],
               alphabet=pre_tokenizers.ByteLevel.alphabet())


def qwen():
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def roberta():
    tokenizer = byte_level(prefix=True)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True, add_prefix_space=True)
    return tokenizer


def llama(fuse):
    learned = json.loads(bpe(pre_tokenizers.Metaspace(), 160, unk="<unk>").to_str())["model"]
    vocab = learned["vocab"]
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(m) for m in learned["merges"]], unk_token="<unk>", fuse_unk=fuse,
                                     byte_fallback=fuse))
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>"])
    if fuse:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                               decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", vocab["<s>"])])
    return tokenizer


def t5():
    import make_grapheme_tables
    charsmap = make_grapheme_tables.charsmap([("\ufb01", "f"), ("\u00c9", "E"), ("\u2167", "8"), ("\u00a0", " "), ("\uff21", "A"), ("e", "3")])
    trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>",
                                      show_progress=False)
    tokenizer = trained(models.Unigram(), trainer, pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]), normalizers.Precompiled(charsmap))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    return tokenizer


def clip():
    tokenizer = bpe(pre_tokenizers.WhitespaceSplit(), 200, unk="<unk>", end_of_word_suffix="</w>")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    return tokenizer


def words(pieces):
    trainer = trainers.WordPieceTrainer(vocab_size=260, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False)
    tokenizer = trained(models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizers.BertPreTokenizer(),
                        normalizers.BertNormalizer())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return tokenizer


def whole(normalizer, pieces, words):
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0} | {word: i + 1 for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.add_tokens([AddedToken("case", normalized=True)])
    tokenizer.normalizer = normalizers.Sequence(normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    return tokenizer


def hugging_face():
    p, n = pre_tokenizers, normalizers
    some = ["hello", "world", "it", "'", "s", "cafe", "uber", "a", "b", "--", ".", "x"]
    yield "qwen", qwen()
    yield "roberta", roberta()
    yield "llama", llama(True)
    yield "llama_first", llama(False)
    yield "t5", t5()
    yield "clip", clip()
    yield "bert", words([p.BertPreTokenizer()])
    yield "digits", words([p.Whitespace(), p.Digits(individual_digits=False), p.Punctuation("merged_with_next")])
    yield "stripped", whole([n.Strip(), n.NFD(), n.StripAccents(), n.Lowercase()], [p.Whitespace()], some)
    yield "previous", whole([n.NFKD()], [p.Split(" ", "merged_with_previous"), p.Punctuation("contiguous")], some)
    yield "removed", whole([n.NFC()], [p.Split(Regex(r"\w+|[^\w\s]+"), "removed", invert=True), p.Punctuation("removed")], some)


def tekken():
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    learned = json.loads(byte_level().to_str())["model"]["merges"]
    as_bytes = dict(zip(byte_characters(), range(256)))
    ranks = [bytes([b]) for b in range(256)] + [bytes(as_bytes[c] for c in left + right) for left, right in learned]
    named = ["<unk>", "<s>", "</s>", "[INST]"]
    file = {"config": {"pattern": SPLIT.replace("(?i:'s|'t)|", ""), "num_vocab_tokens": len(ranks), "version": "v11",
                       "default_vocab_size": len(ranks), "default_num_special_tokens": 6},
            "vocab": [{"rank": i, "token_bytes": base64.b64encode(token).decode(),
                       "token_str": token.decode(errors="ignore") or None} for i, token in enumerate(ranks)],
            "special_tokens": [{"rank": i, "token_str": token, "is_control": True} for i, token in enumerate(named)]}
    (FOLDER / "tekken.json").write_text(json.dumps(file, separators=(",", ":")) + "\n")
    tokenizer = Tekkenizer.from_file(FOLDER / "tekken.json")
    rows = [(text, tokenizer.encode(text, bos=False, eos=False)) for text in TEXTS]
    return [{"text": text, "ids": ids, "decoded": tokenizer.decode(ids, SpecialTokenPolicy.KEEP)} for text, ids in rows]


def byte_characters():
    """The character that stands for each byte in GPT-2's files."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in visible]
    return [chr(b if b in visible else 256 + others.index(b)) for b in range(256)]


def sentence_piece(kind, **options):
    text = FOLDER / "train.tmp"
    text.write_text(TRAIN[:12000] + MARKS * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=text, model_prefix=FOLDER / kind, vocab_size=340 if kind == "bpe" else 150, model_type=kind,
        minloglevel=2, normalization_rule_name="identity", hard_vocab_limit=False, **options)
    text.unlink()
    (FOLDER / f"{kind}.vocab").unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / f"{kind}.model"))


def main():
    cases = {}
    for name, tokenizer in hugging_face():
        tokenizer.save(str(FOLDER / f"{name}.json"), pretty=False)
        tokenizer = Tokenizer.from_file(str(FOLDER / f"{name}.json"))
        rows = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
        cases[f"{name}.json"] = [{"text": text, "ids": row.ids, "offsets": row.offsets,
                                  "decoded": tokenizer.decode(row.ids, skip_special_tokens=False)}
                                 for text, row in zip(TEXTS, rows)]
    for model in (sentence_piece("bpe", byte_fallback=True, user_defined_symbols=["<mask>", "on't"]),
                  sentence_piece("unigram", user_defined_symbols=["<mask>", "ll"], remove_extra_whitespaces=False,
                                 treat_whitespace_as_suffix=True)):
        name = f"{'bpe' if model.vocab_size() > 300 else 'unigram'}.model"
        cases[name] = [{"text": text, "ids": model.encode(text), "decoded": model.decode(model.encode(text))} for text in TEXTS]
    cases["tekken.json"] = tekken()
    lines = ",\n".join(f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]"
                       for name, rows in cases.items())
    (FOLDER / "cases.json").write_text("{" + lines + "}\n")


if __name__ == "__main__":
    main()
