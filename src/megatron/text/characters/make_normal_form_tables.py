#!/usr/bin/env python3
"""Writes normal_form_tables.h and category_ranges.h: python3 make_normal_form_tables.py, with tokenizers==0.23.3 and
unicodedata2==16.0.0 from PyPI.

What the normal forms do to a character is asked of Hugging Face tokenizers, whose tables are older than those of any
library of today: a newer one would give other tokens for the characters added since.
"""
import pathlib

import unicodedata2
from code_points import POINTS, array, ranges
from tokenizers import normalizers

HANGUL = range(0xAC00, 0xD7A4)  # decomposed by arithmetic
nfd, nfkd, nfc = (form().normalize_str for form in (normalizers.NFD, normalizers.NFKD, normalizers.NFC))
strip = normalizers.StripAccents().normalize_str


def expansions(comment, name, function):
    pool, entries = [], []
    for c, text in ((c, function(c)) for c in POINTS if c not in HANGUL):
        if text == chr(c):
            continue
        entries.append(f"{{0x{c:x}, {len(pool)}, {len(text)}}}")
        pool += [f"0x{ord(x):x}" for x in text]
    assert len(pool) < 65536
    return (f"/// {comment}, Hangul syllables left out.\n"
            f"inline constexpr CodePointExpansion {name}[] = {{{', '.join(entries)}}};\n"
            f"inline constexpr std::uint32_t {name}Points[] = {{{', '.join(pool)}}};\n\n")


def compositions():
    found = []
    for c in POINTS:
        parts = unicodedata2.decomposition(chr(c)).split()
        if c in HANGUL or len(parts) != 2 or parts[0].startswith("<"):
            continue
        if nfc("".join(chr(int(part, 16)) for part in parts)) == chr(c):
            found.append((int(parts[0], 16), int(parts[1], 16), c))
    body = ", ".join(f"{{0x{a:x}, 0x{b:x}, 0x{c:x}}}" for a, b, c in sorted(found))
    return ("/// Two characters that compose to one, in order.\n"
            f"inline constexpr Composition kCompositions[] = {{{body}}};\n\n")


def category(c):
    return unicodedata2.category(chr(c))


def categories():
    assigned = [c for c in range(0x110000) if category(c) != "Cn"]
    return ", ".join(f"{{0x{a:x}, 0x{b:x}, {{'{x[0]}', '{x[1]}'}}}}" for a, b, x in ranges(assigned, category))


FOLDER = pathlib.Path(__file__).parent
HEAD = ("#pragma once\n#include <cstdint>\n\n#include \"megatron/text/characters/unicode_ranges.h\"\n\n"
        "// Written by make_normal_form_tables.py: do not edit.\n// clang-format off\nnamespace megatron::text {\n\n")
(FOLDER / "normal_form_tables.h").write_text(
    HEAD
    + "/// A code point and what it becomes: `size` of the points of its table from `begin`.\n"
    + "struct CodePointExpansion {\n  std::uint32_t from;\n  std::uint16_t begin;\n  std::uint8_t size;\n};\n\n"
    + "struct Composition {\n  std::uint32_t first;\n  std::uint32_t second;\n  std::uint32_t both;\n};\n\n"
    + expansions("Canonical decompositions", "kCanonical", lambda c: nfd(chr(c)))
    + expansions("Compatibility decompositions that are no canonical ones", "kCompatible",
                 lambda c: nfkd(chr(c)) if nfkd(chr(c)) != nfd(chr(c)) else chr(c))
    + compositions()
    + array("Left out by StripAccents.", "kMarks", [c for c in POINTS if strip(chr(c)) == ""])
    + "}  // namespace megatron::text\n")
(FOLDER / "category_ranges.h").write_text(
    HEAD
    + "/// General category of code points first … last; those in none are not assigned (Cn).\n"
    + "struct CategoryRange {\n  std::uint32_t first;\n  std::uint32_t last;\n  char category[2];\n};\n"
    + f"inline constexpr CategoryRange kCategories[] = {{{categories()}}};\n\n"
    + "}  // namespace megatron::text\n")
