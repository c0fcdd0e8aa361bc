#!/usr/bin/env python3
"""Writes unicode_ranges.h: python3 make_unicode_ranges.py, with unicodedata2==16.0.0 from PyPI installed.

Unicode 16.0 is what tiktoken 0.14 and Hugging Face tokenizers 0.23 classify by. Another version cuts text elsewhere
around the characters that it added, and so gives other ids.
"""
import pathlib
import unicodedata2

assert unicodedata2.unidata_version == "16.0.0"


def ranges(major):
    found = []
    for point in range(0x110000):
        if unicodedata2.category(chr(point))[0] != major:
            continue
        if found and found[-1][1] == point - 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return found


def array(name, major):
    body = ", ".join(f"{{0x{first:x}, 0x{last:x}}}" for first, last in ranges(major))
    return f"inline constexpr CodePointRange {name}[] = {{{body}}};\n"


pathlib.Path(__file__).with_name("unicode_ranges.h").write_text(
    "#pragma once\n#include <cstdint>\n\n"
    "// Written by make_unicode_ranges.py from the Unicode Character Database 16.0: do not edit.\n"
    "// clang-format off\n"
    "namespace megatron::text {\n\n"
    "/// Code points first … last, both included.\n"
    "struct CodePointRange {\n  std::uint32_t first;\n  std::uint32_t last;\n};\n\n"
    "/// General categories L*.\n" + array("kLetterRanges", "L") +
    "\n/// General categories N*.\n" + array("kNumberRanges", "N") +
    "\n}  // namespace megatron::text\n")
