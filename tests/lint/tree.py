"""What the lint checks share: the files of the tree, the #include lines of a file, and how findings are reported."""

import os
import re
import subprocess
import sys
from pathlib import Path

CPP_SUFFIXES = (".h", ".cc")

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def project_files(root):
    """Paths relative to root, sorted: what git tracks or would track. A tree without git (an unpacked archive): all
    files outside hidden and build folders."""
    if (root / ".git").exists():
        command = ["git", "-c", f"safe.directory={root}", "-C", str(root), "ls-files", "-z", "--cached", "--others",
                   "--exclude-standard"]
        names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
        return sorted(Path(name) for name in names if name and (root / name).is_file())
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith((".", "build"))]
        found += [(Path(folder) / name).relative_to(root) for name in names]
    return sorted(found)


def cpp_files(root):
    return [path for path in project_files(root) if path.suffix in CPP_SUFFIXES]


def includes(text):
    """The (line number, included name) pairs of a source text, quoted and angled alike."""
    return [(text.count("\n", 0, match.start()) + 1, match[1] or match[2]) for match in _INCLUDE.finditer(text)]


def included_project_files(root, path):
    """Project files (relative to root) that `path` includes, itself included, followed through src/."""
    seen, pending = set(), [path]
    while pending:
        current = pending.pop()
        if current in seen or not (root / current).is_file():
            continue
        seen.add(current)
        pending += [Path("src") / name for _, name in includes((root / current).read_text())]
    return sorted(seen)


def report(check, findings, checked):
    """Prints the findings, one a line, and returns the exit code. A check that saw no file has failed."""
    if not checked:
        findings = [f"lint.{check}: found no file to check"]
    for finding in findings:
        print(finding)
    print(f"lint.{check}: {checked} files, {len(findings)} findings", file=sys.stderr)
    return 1 if findings else 0
