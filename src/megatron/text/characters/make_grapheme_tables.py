#!/usr/bin/env python3
"""Writes grapheme_tables.h: python3 make_grapheme_tables.py, with tokenizers==0.23.3, sentencepiece==0.2.3 and
unicodedata2==16.0.0 from PyPI.

Which characters join the one before them into a grapheme cluster is asked of Hugging Face tokenizers: its Precompiled
normalizer replaces a short cluster by what the map has for its beginning.
"""
import pathlib
import tempfile

import sentencepiece
import unicodedata2
from code_points import array
from tokenizers import normalizers

POINTS = [c for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]
# Grapheme_Cluster_Break=Prepend of Unicode 17 (UAX #29).
PREPEND = [*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0xD4E, 0x110BD, 0x110CD, 0x111C2, 0x111C3, 0x113D1,
           0x1193F, 0x11941, 0x11A3A, *range(0x11A84, 0x11A8A), 0x11D46, 0x11F02]


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def charsmap(rules):
    with tempfile.TemporaryDirectory() as folder:
        tsv, text = pathlib.Path(folder, "rules.tsv"), pathlib.Path(folder, "text")
        tsv.write_text("".join(f"{ord(a):X}\t{ord(b):X}\n" for a, b in rules))
        text.write_text("hello world this is a test\n" * 10)
        sentencepiece.SentencePieceTrainer.train(input=text, model_prefix=f"{folder}/m", vocab_size=20,
                                                 model_type="char", normalization_rule_tsv=str(tsv), minloglevel=2)
        model = dict(fields(pathlib.Path(folder, "m.model").read_bytes()))
        return dict(fields(model[3]))[2]


def main():
    joined = normalizers.Precompiled(charsmap([("a", "b")])).normalize_str
    extend = [c for c in POINTS if joined("a" + chr(c)) == "b"]
    joining = normalizers.Precompiled(charsmap([(chr(c), "b") for c in PREPEND])).normalize_str
    prepend = [c for c in PREPEND if joining(chr(c) + "a") == "b"]
    joins = {*extend, *prepend}
    control = [c for c in POINTS if unicodedata2.category(chr(c)) in ("Cc", "Cf", "Zl", "Zp") and c not in joins]
    pathlib.Path(__file__).with_name("grapheme_tables.h").write_text(
        "#pragma once\n#include <cstdint>\n\n#include \"megatron/text/characters/unicode_ranges.h\"\n\n"
        "// Written by make_grapheme_tables.py: do not edit.\n// clang-format off\nnamespace megatron::text {\n\n"
        + array("Joined to the character before.", "kGraphemeExtend", extend)
        + array("Joined to the character behind.", "kGraphemePrepend", prepend)
        + array("Joined to nothing; ASCII left out.", "kGraphemeControl", control)
        + "}  // namespace megatron::text\n")


if __name__ == "__main__":
    main()
