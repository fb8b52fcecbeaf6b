#!/usr/bin/env python3
"""schedules_test.py PROGRAM PAGE [--update]: the blocks of docs/schedules.md that print_schedules draws, compared with
what it prints.

In the page a block stands between `<!-- drawn: NAME -->` and `<!-- end -->`; pictures are fenced. --update writes the
page instead; read the difference before committing it.
"""

import difflib
import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"<!-- drawn: (\S+) -->\n(.*?)<!-- end -->\n", re.DOTALL)


def main():
    program, page, update = sys.argv[1], Path(sys.argv[2]), "--update" in sys.argv[3:]
    printed = subprocess.run([program], capture_output=True, text=True, timeout=60, check=True).stdout
    parts = re.split(r"^== (\S+)\n", printed, flags=re.MULTILINE)[1:]
    blocks = {name: text if name == "table" else f"```\n{text}```\n" for name, text in zip(parts[::2], parts[1::2])}
    text = page.read_text()
    in_page = [match[1] for match in BLOCK.finditer(text)]
    failed = sorted(in_page) != sorted(blocks)
    if failed:
        print(f"blocks in the page: {sorted(in_page)}\nprinted: {sorted(blocks)}")
    expected = BLOCK.sub(lambda m: f"<!-- drawn: {m[1]} -->\n{blocks.get(m[1], m[2])}<!-- end -->\n", text)
    if update:
        page.write_text(expected)
    elif text != expected:
        print("".join(difflib.unified_diff(text.splitlines(True), expected.splitlines(True), page.name, "printed")))
        failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
