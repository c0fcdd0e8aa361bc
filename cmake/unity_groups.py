#!/usr/bin/env python3
"""Which sources of a target a compiler takes at once (a unity build): files of one group define no name twice in their
anonymous namespaces, and have at most LINES lines together. A file that Highway compiles once for each instruction set
stays alone. Usage: unity_groups.py LINES FILE...; prints "GROUP FILE" for each file of a
group of several."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]

STRING = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
ALIAS = re.compile(r"\b(?:using|namespace)\s+(\w+)\s*=([^;]*);")
HARMLESS = re.compile(r"\busing (?:namespace )?[\w:]+;|\bTEST\w*\(\)|\bINSTANTIATE\w*\(\)|"
                      r"(?<!:):(?!:)\s*(?:public |private )?[\w:]+")
NAME = re.compile(r"\b(?:struct|class|enum|enum class)\s+(\w+)|\b([A-Za-z_]\w*)\s*\(\)|"
                  r"\b([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)?(?=[=;{,])")


def hidden_names(text):
    """What a file alone may name: {name: its meaning, "" where it is a definition}."""
    text = STRING.sub(" ", text)
    names = {name: " ".join(meaning.split()) for name, meaning in ALIAS.findall(text)}
    for start in re.finditer(r"\bnamespace\s*\{", text):
        top, depth, place = [], 1, start.end()  # the text that lies within no braces or parentheses of its own
        while depth and place < len(text):
            char = text[place]
            place += 1
            depth -= char in ")}"
            if depth == 1 or char == "{" and depth == 1:
                top.append(char + (" " if char == "}" else ""))
            depth += char in "({"
        for found in NAME.finditer(HARMLESS.sub("", ALIAS.sub("", "".join(top)))):
            names[found[1] or found[2] or found[3]] = ""
    names.update(dict.fromkeys(re.findall(r"^(?:static|inline) [^=;({]*?(\w+)\s*[=;({]", text, re.MULTILINE), ""))
    names.update(dict.fromkeys(re.findall(r"^#define (\w+)", text, re.MULTILINE), ""))
    return names


def namespaces_called_testing(text, seen):
    """Those of ours that a test sees: beside them `testing` is not GoogleTest's."""
    found = set(re.findall(r"^namespace (\S*::testing) \{", text, re.MULTILINE))
    for header in re.findall(r'^#include "(tests/[^"]+)"', text, re.MULTILINE):
        if header not in seen:
            seen.add(header)
            found |= namespaces_called_testing((ROOT / header).read_text(encoding="utf-8"), seen)
    return found


def main():
    most, groups = int(sys.argv[1]), []
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if "foreach_target.h" in text:
            continue
        names, lines = hidden_names(text), text.count("\n")
        if "gtest/gtest.h" in text:
            names["testing"] = "gtest " + " ".join(sorted(namespaces_called_testing(text, set())))
        for group in groups:
            clash = any(group["names"].get(name, meaning) != meaning or name in group["names"] and not meaning
                        for name, meaning in names.items())
            if not clash and group["lines"] + lines <= most:
                break
        else:
            groups.append(group := {"names": {}, "lines": 0, "files": []})
        group["names"].update(names)
        group["lines"] += lines
        group["files"].append(path)
    for number, group in enumerate(groups):
        if len(group["files"]) > 1:
            print("\n".join(f"{number} {path}" for path in group["files"]))


if __name__ == "__main__":
    main()
