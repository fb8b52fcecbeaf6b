#!/usr/bin/env python3
"""lint.text ROOT: what no text file of the repository may hold, and the length limit of source files."""

import re
import sys
from pathlib import Path

import tree

MAX_LINES = 400
SOURCE_SUFFIXES = tree.CPP_SUFFIXES + (".cmake", ".py", ".sh")
# Source files that may be longer, each with its reason beside it.
# Tables of cases read best whole.
MAY_BE_LONG = {"src/spec/validate_test.cc"}

# The patterns are written so that they do not match themselves.
EVERYWHERE = [
    (re.compile(r"(?<![\w.~/])/(?:work|root|home|Users)/\w"), "a path of one machine"),
    (re.compile(r"\b(?:pypi|pythonhosted|npmjs|crates|debian|ubuntu|download\.pytorch)\.(?:org|com|io)\b"),
     "the host of a package registry"),
    (re.compile(r"\b(?:[Cc]o-[Aa]uthored-[Bb]y|[Gg]enerated [w]ith)\b|@a[u]thor\b"),
     "words on who wrote it"),
    (re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]X)\b(?!\(#\d+\))"), "open work without an issue: write it as NAME(#7)"),
    (re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE), "a merge conflict"),
    (re.compile(r"[ \t]+$", re.MULTILINE), "white space at the end of a line"),
]
CPP_ONLY = [
    (re.compile(r"^[ \t]*// *(?:if|for|while|return|auto|const|int|void|std::|[\w.]+(?:->|\.)\w+\()[^`\n]*[;{][ \t]*$",
                re.MULTILINE), "commented-out code"),
]


def is_checked(path):
    """The licence is quoted, not written here; test data may be malformed on purpose."""
    return path.name != "LICENSE" and not {"corpus", "golden", "testdata"} & set(path.parts)


def find_in_text(path, text):
    findings = []
    for pattern, problem in EVERYWHERE + (CPP_ONLY if path.suffix in tree.CPP_SUFFIXES else []):
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            findings.append(f"{path}:{line}: {problem}: {match[0].strip()}")
    if not text.endswith("\n"):
        findings.append(f"{path}: no newline at the end")
    lines = text.count("\n")
    if path.suffix in SOURCE_SUFFIXES and lines > MAX_LINES and str(path) not in MAY_BE_LONG:
        findings.append(f"{path}: {lines} lines, over {MAX_LINES}: look for the second noun in it")
    return findings


def find(root):
    """(findings, number of files checked). Files that are not UTF-8 text are data and not checked."""
    findings, checked = [], 0
    for path in filter(is_checked, tree.project_files(root)):
        content = (root / path).read_bytes()
        if not content or b"\0" in content:
            continue
        try:
            text = content.decode()
        except UnicodeDecodeError:
            continue
        checked += 1
        findings += find_in_text(path, text)
    return findings, checked


if __name__ == "__main__":
    sys.exit(tree.report("text", *find(Path(sys.argv[1]).resolve())))
