#!/usr/bin/env python3
"""Writes case_ranges.h: python3 make_case_ranges.py.

Which characters decide whether a capital sigma ends a word is asked of Python itself, whose str.lower() the official
scores of SQuAD use.
"""
import pathlib
import textwrap

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def final(text):
    return (text + "\u03a3").lower().endswith("\u03c2")


def ranges(points):
    found = []
    for point in points:
        if found and found[-1][1] == point - 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return found


def array(comment, name, points):
    body = textwrap.fill(", ".join(f"{{0x{first:x},0x{last:x}}}" for first, last in ranges(points)), 118)
    return f"/// {comment}\ninline constexpr text::CodePointRange {name}[] = {{\n{body}}};\n\n"


cased = [c for c in POINTS if final(chr(c))]
ignored = [c for c in POINTS if final("A" + chr(c)) and not final(chr(c))]

pathlib.Path(__file__).with_name("case_ranges.h").write_text(
    "#pragma once\n#include \"megatron/text/unicode_ranges.h\"\n\n"
    "// Written by make_case_ranges.py: do not edit.\n"
    "// clang-format off\n"
    "namespace megatron::tasks {\n\n"
    + array("Characters with case, but for those of kCaseIgnored.", "kCased", cased)
    + array("Passed over in the search for a character with case.", "kCaseIgnored", ignored)
    + "}  // namespace megatron::tasks\n")
