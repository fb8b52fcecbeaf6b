#!/usr/bin/env python3
"""lint.tidy ROOT CLANG_TIDY BUILD: clang-tidy with the checks of .clang-tidy on the sources outside the engine.

Tests are left out: including GoogleTest doubles the time. A file found clean is not looked at again until it, a header
of the project that it includes, the checks or its compile command change: BUILD/tidy holds one stamp, named by the hash
of all these, for each clean file.
"""

import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import tree

# Clang 19 rejects target_clones on a function template, which GCC takes.
NO_CLONES = "--extra-arg=-DFIVEFOLD_KERNELS_ONE_VARIANT"


def sources(root, build):
    """Path relative to root -> compile command."""
    wanted = {path for path in tree.cpp_files(root)
              if path.suffix == ".cc" and path.parts[0] == "src" and path.parts[1] != "engine"
              and not path.name.endswith("_test.cc")}
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["file"])
        if path.is_relative_to(root) and path.relative_to(root) in wanted:
            commands[path.relative_to(root)] = entry["command"]
    return commands


def stamp_name(root, path, command, version):
    digest = hashlib.sha256(f"{version}\n{command}\n".encode())
    digest.update((root / ".clang-tidy").read_bytes())
    for file in tree.included_project_files(root, path):
        digest.update(str(file).encode() + b"\0" + (root / file).read_bytes())
    return digest.hexdigest()


def find(root, clang_tidy, build):
    """(findings, number of files checked)"""
    commands = sources(root, build)
    version = subprocess.run([clang_tidy, "--version"], check=True, capture_output=True, text=True).stdout
    stamps = build / "tidy"
    stamps.mkdir(exist_ok=True)

    def check(path):
        stamp = stamps / stamp_name(root, path, commands[path], version)
        if stamp.exists():
            return None
        command = [clang_tidy, "--quiet", NO_CLONES, "-p", str(build), str(root / path)]
        result = subprocess.run(command, cwd=root, capture_output=True, text=True)
        if result.returncode:
            return result.stdout.strip() or result.stderr
        stamp.touch()
        return None

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        findings = [finding for finding in pool.map(check, sorted(commands)) if finding]
    return findings, len(commands)


if __name__ == "__main__":
    sys.exit(tree.report("tidy", *find(Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3]).resolve())))
