#!/usr/bin/env python3
"""Subjects of commits have at most 72 columns and no full stop at their end. Those up to BASE are as they are."""
import subprocess
import sys

BASE = "5a1fd4f11a7ba7a8cea8e492ad053dabef53626a"
WIDEST = 72


def main():
    known = subprocess.run(["git", "cat-file", "-e", BASE], stderr=subprocess.DEVNULL).returncode == 0
    commits = [f"{BASE}..HEAD"] if known else ["-1"]  # a shallow clone has the last one alone
    log = subprocess.check_output(["git", "log", "--no-merges", "--format=%h %s", *commits], text=True).splitlines()
    subjects = [line.split(" ", 1) for line in log]
    wrong = [(name, text) for name, text in subjects if len(text) > WIDEST or text.endswith(".")]
    for name, text in wrong:
        print(f"{name} {text}\n  rule: at most {WIDEST} columns and no full stop at the end; it has {len(text)}")
    print(f"commit subjects: {len(subjects)} read, {len(wrong)} problems")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
