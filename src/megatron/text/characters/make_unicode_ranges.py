#!/usr/bin/env python3
"""Writes unicode_ranges.h: python3 make_unicode_ranges.py, with unicodedata2==16.0.0 from PyPI installed.

Unicode 16.0 is what tiktoken 0.14 and Hugging Face tokenizers 0.23 classify by. Another version cuts text elsewhere
around the characters that it added, and so gives other ids.
"""
import pathlib

import unicodedata2
from code_points import array

assert unicodedata2.unidata_version == "16.0.0"


def majors(comment, name, major):
    return array(comment, name, [c for c in range(0x110000) if unicodedata2.category(chr(c))[0] == major])


pathlib.Path(__file__).with_name("unicode_ranges.h").write_text(
    "#pragma once\n#include <cstdint>\n\n"
    "// Written by make_unicode_ranges.py from the Unicode Character Database 16.0: do not edit.\n"
    "// clang-format off\n"
    "namespace megatron::text {\n\n"
    "/// Code points first … last, both included.\n"
    "struct CodePointRange {\n  std::uint32_t first;\n  std::uint32_t last;\n};\n\n"
    + majors("General categories L*.", "kLetterRanges", "L")
    + majors("General categories N*.", "kNumberRanges", "N")
    + "}  // namespace megatron::text\n")
