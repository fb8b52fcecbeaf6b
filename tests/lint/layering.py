#!/usr/bin/env python3
"""lint.layering ROOT: which folder under src/ may include what. This table is the rule; a change to it is a design change."""

import sys
from pathlib import Path

import tree

# Folder -> the folders that it may include besides itself. A header allows that one only.
MAY_INCLUDE = {
    "base": [],
    "spec": ["base"],
    "schedule": ["base", "spec"],
    "planner": ["base", "spec", "schedule"],
    "comm": ["base", "spec/enums.h", "spec/network.h"],
    "store": ["base", "spec"],
    "data": ["base", "spec"],
    "record": ["base", "spec"],
    "kernels": ["base"],
    "runtime": ["base", "spec", "schedule", "comm", "record"],
    "engine": ["base", "spec", "schedule", "comm", "store", "data", "record", "kernels", "runtime"],
    "reconcile": ["base", "spec", "schedule", "planner", "record"],
    "report": ["base", "spec", "schedule", "planner", "record", "reconcile"],
    "exporters": ["base", "spec", "schedule", "planner", "record", "reconcile"],
    "cli": ["base", "spec", "schedule", "planner", "comm", "store", "data", "record", "kernels", "runtime", "engine",
            "reconcile", "report", "exporters"],
}

TORCH = ("ATen/", "c10/", "torch/", "caffe2/")
# Torch carries other versions of both, so none of their types may reach a header.
SOURCES_ONLY = ("fmt/", "google/protobuf/")


def check_include(path, name):
    """What is wrong with the file `path` including `name`, or None."""
    folder = path.parts[1]
    if name == "torch/torch.h":
        return "torch/torch.h takes 17 s a file to compile: include <ATen/ATen.h>"
    if name.startswith(TORCH):
        return None if folder == "engine" else "only src/engine may include Torch"
    if name.startswith(SOURCES_ONLY) or name.endswith(".pb.h"):
        return "fmt and protobuf only in .cc files" if path.suffix == ".h" else None
    target = name.split("/")[0]
    if target not in MAY_INCLUDE or "/" not in name or target == folder:
        return None
    allowed = MAY_INCLUDE[folder]
    if target in allowed or name in allowed:
        return None
    return f"src/{folder} may include only {', '.join(allowed) or 'itself'}"


def reaches_torch(root, path):
    """The file through which `path`, outside src/engine, gets Torch, or None."""
    for included in tree.included_project_files(root, path):
        if any(name.startswith(TORCH) for _, name in tree.includes((root / included).read_text())):
            return included
    return None


def find(root):
    """(findings, number of files checked)"""
    findings = []
    files = [path for path in tree.cpp_files(root) if path.parts[0] == "src"]
    for path in files:
        if len(path.parts) < 3 or path.parts[1] not in MAY_INCLUDE:
            findings.append(f"{path}: not in a folder of the layering table")
            continue
        for line, name in tree.includes((root / path).read_text()):
            problem = check_include(path, name)
            if problem:
                findings.append(f"{path}:{line}: includes {name}: {problem}")
        if path.parts[1] != "engine":
            through = reaches_torch(root, path)
            if through and through != path:
                findings.append(f"{path}: gets Torch through {through}")
    return findings, len(files)


if __name__ == "__main__":
    sys.exit(tree.report("layering", *find(Path(sys.argv[1]).resolve())))
