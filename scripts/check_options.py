#!/usr/bin/env python3
"""Every option declared in config/run_config.h is read by a source file that works with the configuration."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DECLARATION = ROOT / "src/megatron/config/run_config.h"


def declared():
    section = None
    for line in DECLARATION.read_text().splitlines():
        struct = re.match(r"struct (\w+)Config", line)
        if struct:
            section = struct[1].lower()
        option = re.match(r'\s+v\("(\w+)",', line)
        if option and section != "run":
            yield section, option[1]


def main():
    sources = [p for folder in ("src", "app") for p in (ROOT / folder).rglob("*") if p.suffix in {".h", ".cpp", ".cu"}]
    texts = [p.read_text() for p in sources if p != DECLARATION]
    readers = "\n".join(t for t in texts if "config::" in t or "run_config.h" in t)
    options = list(declared())
    unread = [f"{section}.{name}" for section, name in options if not re.search(rf"[.>]{name}\b", readers)]
    for option in unread:
        print(f"{option}: nothing reads it")
    print(f"options: {len(options)} declared, {len(unread)} unread")
    return bool(unread) or not options


if __name__ == "__main__":
    sys.exit(main())
