#!/usr/bin/env python3
"""readme_test.py ROOT: the files that README.md and README.zh.md quote (<!-- file: PATH --> before a block) are as
quoted, and every relative link in the Markdown files of the project leads to a file."""

import re
import sys
from pathlib import Path

from guide_test import parse

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def quoted_files(root, name):
    problems = []
    blocks = [block for block in parse((root / name).read_text()) if block.is_file()]
    for block in blocks:
        path = block.note("file")
        if (root / path).read_text().rstrip("\n").split("\n") != block.lines:
            problems.append(f"{name}:{block.first}: not what {path} holds")
    return problems or ([] if blocks else [f"{name}: quotes no file"])


def links(root):
    pages = [page for page in root.rglob("*.md")
             if not any(part.startswith((".", "build")) for part in page.relative_to(root).parts)]
    problems = [] if pages else [f"{root}: no Markdown files"]
    for page in pages:
        for target in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
            if "://" not in target and not (page.parent / target).exists():
                problems.append(f"{page.relative_to(root)}: {target} does not exist")
    return problems


def main(root):
    problems = quoted_files(root, "README.md") + quoted_files(root, "README.zh.md") + links(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
