#!/usr/bin/env python3
"""Writes bert_tables.h: python3 make_bert_tables.py, with tokenizers==0.23.3 and unicodedata2==16.0.0 from PyPI.

What BERT's normalizer and pre-tokenizer do to a character is asked of Hugging Face tokenizers itself, one code point
after the other: its parts carry Unicode tables of different ages, of which no single database gives the same tokens.
"""
import pathlib

import unicodedata2
from code_points import POINTS, array, ranges
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

HANGUL = range(0xAC00, 0xD7A4)  # decomposed by arithmetic


def bert(**on):
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**off, **on}).normalize_str


def mapping(comment, name, function):
    found = {c: function(chr(c)) for c in POINTS if c not in HANGUL}
    found = {c: text for c, text in found.items() if text not in (chr(c), "")}
    assert max(map(len, found.values())) <= 3
    body = ", ".join("{0x%x, {%s}}" % (c, ", ".join(f"0x{ord(x):x}" for x in text)) for c, text in found.items())
    return f"/// {comment}\ninline constexpr CodePointMapping {name}[] = {{{body}}};\n\n"


def combining_class(point):
    """As the peer's decomposition knows it: whether it moves the character says if it knows the class at all."""
    known = unicodedata2.combining(chr(point))
    if known == 0:
        return 0
    low, high = "\u0334", "\u0345"  # classes 1 and 240
    text = "a" + chr(point) + low if known > 1 else "a" + high + chr(point)
    return known if normalizers.NFD().normalize_str(text) != text else 0


lonely = Tokenizer(models.WordLevel({"[u]": 0}, unk_token="[u]"))  # its token must stand alone
lonely.add_tokens([AddedToken("[t]", single_word=True, normalized=False)])
word = [c for c in POINTS if lonely.encode(chr(c) + "[t]").ids[-1] == 0]
clean, strip, lower = bert(clean_text=True), bert(strip_accents=True), bert(lowercase=True)
split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
punctuation = [c for c in POINTS if len(split("a" + chr(c) + "b")) == 3]
combining = {c: combining_class(c) for c in POINTS}
combining = {c: value for c, value in combining.items() if value != 0}
classes = ", ".join(f"{{0x{a:x}, 0x{b:x}, {value}}}" for a, b, value in ranges(combining, combining.get))

pathlib.Path(__file__).with_name("bert_tables.h").write_text(
    "#pragma once\n#include <cstdint>\n\n#include \"megatron/text/characters/unicode_ranges.h\"\n\n"
    "// Written by make_bert_tables.py: do not edit.\n"
    "// clang-format off\n"
    "namespace megatron::text {\n\n"
    "/// What a code point becomes; 0 after the last.\n"
    "struct CodePointMapping {\n  std::uint32_t from;\n  std::uint32_t to[3];\n};\n\n"
    "/// Canonical combining class of code points first … last.\n"
    "struct CombiningRange {\n  std::uint32_t first;\n  std::uint32_t last;\n  std::uint8_t value;\n};\n\n"
    + array("Left out by BERT's cleaning.", "kBertRemoved", [c for c in POINTS if clean(chr(c)) == ""])
    + array("Each a word of its own.", "kBertPunctuation", punctuation)
    + array("Left out where accents are stripped.", "kBertAccents", [c for c in POINTS if strip(chr(c)) == ""])
    + array("\\w of regular expressions.", "kWordRanges", word)
    + mapping("Canonical decompositions without accents, Hangul syllables left out.", "kBertDecompositions", strip)
    + mapping("Lower case.", "kLowerCase", lower)
    + "/// Combining classes other than 0.\n"
    + f"inline constexpr CombiningRange kCombining[] = {{{classes}}};\n\n"
    + "}  // namespace megatron::text\n")
