#!/usr/bin/env python3
"""lint.format ROOT CLANG_FORMAT: every C++ file is as clang-format would write it."""

import subprocess
import sys
from pathlib import Path

import tree


def find(root, clang_format):
    """(findings, number of files checked)"""
    files = tree.cpp_files(root)
    if not files:
        return [], 0
    command = [clang_format, "--dry-run", "--Werror", "--style=file", *map(str, files)]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    unformatted = sorted({line.split(":")[0] for line in result.stderr.splitlines() if "clang-format-violations" in line})
    findings = [f"{path}: run clang-format -i on it" for path in unformatted]
    if result.returncode and not findings:
        findings = [result.stderr]
    return findings, len(files)


if __name__ == "__main__":
    sys.exit(tree.report("format", *find(Path(sys.argv[1]).resolve(), sys.argv[2])))
