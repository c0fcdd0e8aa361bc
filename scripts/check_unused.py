#!/usr/bin/env python3
"""Every function that a header of src/ declares is called by the program, or has a reason below.

A function that tests alone call is either missing where it was meant to be used, or dead. The check reads text: a name
counts as used where src/, app/ or bench/ mention it otherwise than as a declaration or a definition, so that an unused
function escapes if it shares its name with a used one; it never accuses a used one. Without arguments; exit code 1 and
one line for each function that nothing uses."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "alignof", "decltype", "static_assert", "catch",
            "throw", "operator", "noexcept", "volatile", "alignas", "defined", "requires", "new", "delete", "assert",
            "co_return", "__has_include", "_Pragma"}
# Words that come before a call, not before what a declaration declares.
BEFORE_CALLS = {"return", "else", "throw", "case", "do", "new", "delete", "and", "or", "not", "co_return", "co_yield",
                "template"}

# Functions of headers that the program does not call, each with the reason why they stay.
ALLOWED = {
    "choose_float32_products": "tests of both on each machine, of which a run has one",
    "emulate_tiles": "tests of AMX's products on machines without AMX",
    "set_most_packed_words": "large products of float32 are cut, which tests show with small ones",
    "set_launch_order": "no result of a kernel may depend on the order of its threads, which tests change",
    "load_cuda_from": "which operators a plugin serves is tested with one that needs no GPU",
    "copy_by": "a step on a device without numbers is answered by its test",
    "signature": "MinHash's definition is tested on places; the program needs the keys of their bands alone",
    "sequences_of": "by it the order of samples is compared with Megatron-Core's",
    "fill_sample_index": "sizes of which there is no file, 2^31 tokens and more, are tested without one",
    "add_dataset": "writes a whole pair again, which tests of damage begin with",
    "copy_to_group": "the pair of reduce_from_group: Megatron-LM's f, for models that are embedded",
}


def without_comments(text):
    """The text without comments and what strings hold, so that neither counts as a use."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL)
    return token.sub(lambda m: '""' if m.group()[0] in 'R"' else " ", text)


def declares(text, start):
    """Whether the name that begins at `start` is being declared or defined: a type stands before it."""
    before = text[:start]
    while qualifier := re.search(r"\w+(?:<[^<>;(){}]*>)?::\s*$", before):
        before = before[:qualifier.start()]
    before = before.rstrip()
    if before.endswith(">>"):  # the end of a template's arguments, or a shift
        return before[-3] not in " \n"
    if before.endswith((">", "&", "*")):  # a type, where no space is before it: operators have spaces on both sides
        return len(before) > 1 and (before[-2].isalnum() or before[-2] in "_>&*]") and not before.endswith(("->", "&&"))
    word = re.search(r"\b([A-Za-z_]\w*)$", before)
    return word is not None and word.group(1) not in BEFORE_CALLS


def main():
    texts = {}
    for folder in ("src", "app", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh"):
                texts[path] = without_comments(path.read_text())
    declared = {}  # name -> the first header that declares it
    for path, text in texts.items():
        if path.suffix != ".h" or "src" not in path.relative_to(ROOT).parts[:1]:
            continue
        for match in re.finditer(r"\b([a-z_]\w*)\s*\(", text):
            if match.group(1) not in KEYWORDS and declares(text, match.start()):
                declared.setdefault(match.group(1), path.relative_to(ROOT))
    used = set()
    for text in texts.values():
        for match in re.finditer(r"\b[a-z_]\w*\b", text):
            name = match.group()
            if name in declared and name not in used and not declares(text, match.start()):
                used.add(name)
    unused = {name: path for name, path in declared.items() if name not in used}
    for name, path in sorted(unused.items(), key=lambda item: (item[1], item[0])):
        if name not in ALLOWED:
            print(f"{path}: {name}() is called by no file of src/, app/ or bench/. fix: call it, delete it with its "
                  "tests, or give scripts/check_unused.py the reason why it stays")
    for name in sorted(set(ALLOWED) - set(unused)):
        print(f"note: {name} is allowed to be unused, but is used or gone: take it off the list")
    wrong = set(unused) - set(ALLOWED)
    print(f"functions: {len(declared)} declared in headers, {len(unused)} called by none but tests, "
          f"{len(set(unused) & set(ALLOWED))} of these with a reason")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
