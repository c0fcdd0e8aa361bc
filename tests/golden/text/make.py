#!/usr/bin/env python3
"""Writes tokenizer.json and cases.json beside this file with Hugging Face tokenizers 0.23.3 from PyPI: what its trainer
learns from train.txt, and the ids it gives to texts that are easy to get wrong."""
import json
import pathlib
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

FOLDER = pathlib.Path(__file__).parent
TEXTS = [
    "", " ", "  ", "\n", " \n ", "a", "a ", " a", "  a", "a  b", "a   b", "a\n\nb", "a \n b", "tabs\t\tand\tone", "trail  \n",
    "it's he'll we're I've I'm you'd don't", "IT'S he'LL", "'s't're've'm'll'd", " 's 't", "''s", "'sam", "'rear 'v 'l 'lx",
    "x='s'", "\n'll", "rock 'n' roll's", "1's 2'd", "'", "''", "end'", "end'r", "end'l",
    "3.14159 100,000 2nd x2y ½ ²³ Ⅷ ٣٤", "C++20 != c#; a->b[3] && (x|y)", "http://example.org/?q=a%20b#frag",
    "naïve café Ångström straße ŒUVRE", "Привет, мир! Это тест.", "日本語のテキスト、中文字符。한국어", "שלום עולם مرحبا بالعالم",
    "emoji 😀👩‍👩‍👧🏽 flags 🇩🇪", "a\u00a0b\u00a0\u00a0c", "a\u3000\u3000b", "\u2003x\u2003", "line\u2028sep\u2029", "\u0085x",
    "z\u0301a\u0308 combining", "\u200bzero\u200bwidth", "\ufeffbom", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙", "\u1c89\U00010d4a\u088f", "\x00\x01\x1f\x7f",
    "a" * 100, "ab" * 70, " " * 70 + "x", "\n" * 65, "=" * 130, "é" * 66, "x" * 63 + "'s and", "x" * 62 + "'re and",
    "x" * 61 + " 'll", "x" * 63 + " y", "x" * 63 + "\u3000\u3000y", "x" * 62 + "\u2003y", "x" * 61 + "😀😀 y",
    "before<|endoftext|>after", "<|endoftext|><|endoftext|> <|endoftext|>", "<|endoftext|", "Before we proceed any further, hear me speak.",
]


def main():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1200, min_frequency=2, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([(FOLDER / "train.txt").read_bytes().decode()], trainer)
    tokenizer.save(str(FOLDER / "tokenizer.json"), pretty=False)
    cases = [{"text": text, "ids": tokenizer.encode(text).ids,
              "pieces": [text[a:b] for _, (a, b) in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)]}
             for text in TEXTS]
    lines = ",\n".join(json.dumps(case) for case in cases)
    (FOLDER / "cases.json").write_text(f"[\n{lines}\n]\n")


main()
