#!/usr/bin/env python3
"""The tracked files keep their budgets and speak of the product alone: no leftovers, no paths of one machine."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORBIDDEN = [(re.compile(r"\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b"), "leftover"),
             (re.compile(r"(?<![\w.])/(hom[e]|roo[t]|wor[k]|User[s])/"), "path of one machine"),
             (re.compile(r"^(<{7}|>{7}) "), "merge conflict")]
# What readers stumble over, and what to write.
PRIVATE = re.compile(r"\b(go(?:es|ing)? on|begins? anew|sa(?:y|ys|id) nothing|passed over|let go)\b")
PLAIN = "say it as others do: resumes, continues; starts over, is reset; has no effect; is skipped; is released"
BUDGET = {".h": 250, ".cpp": 600, ".cu": 600}
WIDEST = 120
GOLDEN_BYTES = 4_000_000  # a clone carries them for ever
NARROW = {".h", ".cpp", ".cu", ".py"}
PATH = re.compile(r"`((?:app|bench|cmake|configs|docs|examples|fuzz|packaging|python|scripts|shims|src|tests)/[\w./-]+"
                  r"|[a-z_]+/[\w./-]+\.(?:h|cpp|def|cu))`")  # of the tree, or below src/megatron
WIDE = {f"src/megatron/{name}.h" for name in (
    "text/characters/unicode_ranges", "text/characters/bert_tables", "text/characters/normal_form_tables",
    "text/characters/grapheme_tables", "text/characters/category_ranges", "tasks/case_ranges")}  # generated


def problems_of(path):
    try:
        lines = (ROOT / path).read_text().splitlines()
    except UnicodeDecodeError:
        return
    suffix = pathlib.PurePath(path).suffix
    for number, line in enumerate(lines, 1):
        for pattern, what in FORBIDDEN:
            if pattern.search(line):
                yield f"{path}:{number}: {what}: {line.strip()[:100]}"
        if PRIVATE.search(line) and path != "scripts/check_text.py":
            yield f"{path}:{number}: \"{PRIVATE.search(line)[0]}\": {PLAIN}"
        if suffix in NARROW and len(line) > WIDEST and path not in WIDE:
            yield f"{path}:{number}: {len(line)} columns, more than {WIDEST}"
    budget = BUDGET.get(suffix)
    if budget and len(lines) > budget:
        yield f"{path}: {len(lines)} lines, more than {budget}: split it by idea"


def lost_paths(path):
    """Paths that a page names and that are not there: a table of where things are has to be right."""
    for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
        for named in PATH.findall(line):
            if not re.search("[A-Z]{4}", named) and not any((top / named).exists() for top in
                                                           (ROOT, ROOT / "src/megatron", (ROOT / path).parent)):
                yield f"{path}:{number}: names {named}, which is not there"


def main():
    tracked = subprocess.check_output(["git", "-C", ROOT, "ls-files"], text=True).split("\n")
    checked = [p for p in tracked if p and (ROOT / p).is_file() and not p.startswith("tests/golden/")]
    problems = [problem for path in checked for problem in problems_of(path)]
    problems += [problem for path in checked if path.endswith(".md") and path != "CHANGELOG.md"
                 for problem in lost_paths(path)]
    parts = {p.parent for p in (ROOT / "src/megatron").glob("text/*/*.h")}
    for folder in sorted({p.parent for p in (ROOT / "src/megatron").glob("*/*")} | parts):
        readme = folder / "README.md"
        if not readme.exists():
            problems.append(f"{folder.relative_to(ROOT)}: no README.md")
            continue
        text = readme.read_text()
        if len(text.splitlines()) > 20:
            problems.append(f"{readme.relative_to(ROOT)}: more than 20 lines")
        unnamed = [header.name for header in sorted(folder.glob("*.h")) if header.name not in text]
        if unnamed:
            problems.append(f"{readme.relative_to(ROOT)}: does not name {', '.join(unnamed)}")
    golden = sum((ROOT / p).stat().st_size for p in tracked if p.startswith("tests/golden/") and (ROOT / p).is_file())
    if golden > GOLDEN_BYTES:
        problems.append(f"tests/golden: {golden} bytes, more than {GOLDEN_BYTES}")
    explained = (ROOT / "docs/dependencies.md").read_text()
    for package in (ROOT / "scripts/packages.txt").read_text().splitlines():
        if not package.startswith("#") and not re.search(rf"(?<![\w-]){re.escape(package)}(?![\w-])", explained):
            problems.append(f"scripts/packages.txt: {package}: docs/dependencies.md does not say what it is for")
    print("\n".join(problems + [f"text: {len(tracked)} files, {len(problems)} problems"]))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
