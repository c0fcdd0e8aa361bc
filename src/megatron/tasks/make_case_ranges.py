#!/usr/bin/env python3
"""Writes case_ranges.h: python3 make_case_ranges.py.

Which characters decide whether a capital sigma ends a word is asked of Python itself, whose str.lower() the official
scores of SQuAD use.
"""
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "text/characters"))
from code_points import POINTS, array  # noqa: E402


def final(text):
    return (text + "\u03a3").lower().endswith("\u03c2")


cased = [c for c in POINTS if final(chr(c))]
ignored = [c for c in POINTS if final("A" + chr(c)) and not final(chr(c))]

pathlib.Path(__file__).with_name("case_ranges.h").write_text(
    "#pragma once\n#include \"megatron/text/characters/unicode_ranges.h\"\n\n"
    "// Written by make_case_ranges.py: do not edit.\n"
    "// clang-format off\n"
    "namespace megatron::tasks {\n\n"
    "using text::CodePointRange;\n\n"
    + array("Characters with case, but for those of kCaseIgnored.", "kCased", cased)
    + array("Passed over in the search for a character with case.", "kCaseIgnored", ignored)
    + "}  // namespace megatron::tasks\n")
