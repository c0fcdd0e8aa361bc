#!/usr/bin/env python3
"""Every option declared in config/**/*_config.h and config/optimizers.def is read by a source file, as section.name or
config.section.name.

What plan/rules.cpp does to an option in its functions check_… is not reading it: an option that is only checked has no
effect.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DECLARATIONS = sorted((ROOT / "src/megatron/config").rglob("*_config.h"))
OPTIMIZERS = ROOT / "src/megatron/config/optimizers.def"
WORDS = re.compile(r'"(\\.|[^"\\\n])*"|//[^\n]*')  # texts and comments name options without reading them
CHECKS = re.compile(r"^void check_\w+\(.*?^}\n", re.MULTILINE | re.DOTALL)


def declared(text):
    section = None
    for line in text.splitlines():
        struct = re.match(r"struct (\w+)Config", line)
        if struct:
            section = struct[1].lower()
        part = re.match(r"// The options of \[(\w+)\]", line)  # of a base of that section's struct
        if part:
            section = part[1]
        option = re.match(r'\s+v\("(\w+)",', line)
        if option and section != "run":
            yield section, option[1]


def of_optimizers(text):
    return [("optimizer", name) for name in re.findall(r"^OPTIMIZER_OPTION\(\w+, \w+, (\w+),", text, re.MULTILINE)]


def unread(options, sources):
    """The options that no text in `sources` reads."""
    text = "\n".join(WORDS.sub("", source) for source in sources)
    return [f"{s}.{n}" for s, n in options if not re.search(rf"\b{s}(_|\(\))?(\.|->){n}\b", text)]


def self_test():
    """Another section's option of the same name, a message, or a check alone must not count as reading."""
    options = list(declared('struct SaveConfig {\n    v("folder", folder, "");\n    v("fake", fake, "");\n'))
    assert options == [("save", "folder"), ("save", "fake")], options
    assert list(declared('// The options of [save] that\nstruct FastVariant {\n    v("fast", fast, "");\n')) == [
        ("save", "fast")]
    checks = "void check_saving(const SaveConfig& save) {\n  rules.at_least(save.fake, 0);\n}\n"
    sources = ['use(config.save.folder); use(log.fake); say("save.fake");  // save.fake', CHECKS.sub("", checks)]
    assert unread(options, sources) == ["save.fake"], unread(options, sources)
    assert not unread(options, sources + ["config.save.fake"])


def main():
    self_test()
    paths = [p for folder in ("src", "app") for p in (ROOT / folder).rglob("*") if p.suffix in {".h", ".cpp", ".cu"}]
    sources = [CHECKS.sub("", p.read_text()) for p in paths if p not in DECLARATIONS]
    options = [option for path in DECLARATIONS for option in declared(path.read_text())]
    options += of_optimizers(OPTIMIZERS.read_text())
    missing = unread(options, sources)
    for option in missing:
        print(f"{option}: nothing reads it")
    print(f"options: {len(options)} declared, {len(missing)} unread")
    return bool(missing) or not options


if __name__ == "__main__":
    sys.exit(main())
