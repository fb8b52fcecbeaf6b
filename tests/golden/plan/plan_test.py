#!/usr/bin/env python3
"""plan_test.py PROGRAM [--update]: what `plan` and `explain` print on a machine of round figures, compared with files.

--update writes the files instead; read the difference before committing it.
"""

import difflib
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NODE = str(HERE / "round-node.toml")

# File: arguments, exit code.
CASES = {
    "explain-8b-zero3.txt": (["explain", "--set", "model.name=llama-3.1-8b", "--set", "parallel.dp=8", "--set",
                              "parallel.zero=3", "--set", "batch.sequence=4096", "--set", "hardware.name=" + NODE,
                              "--formulas"], 0),
    "explain-recompute.txt": (["explain", "--set", "model.name=smollm2-1.7b", "--set", "parallel.dp=16", "--set",
                               "parallel.zero=2", "--set", "parallel.shard_size=8", "--set", "batch.global=64", "--set",
                               "batch.sequence=2048", "--set", "recompute.kind=full", "--set",
                               "hardware.name=" + NODE], 0),
    "compare-zero.txt": (["explain", "--set", "model.name=llama-3.1-8b", "--set", "parallel.dp=8", "--set",
                          "hardware.name=" + NODE, "--compare", "parallel.zero=0,1,2,3"], 0),
    "plan-8b.txt": (["plan", "--model", "llama-3.1-8b", "--gpu", NODE, "--gpus", "8", "--sequence", "4096"], 0),
    "plan-no-fit.txt": (["plan", "--model", "llama-3.1-8b", "--gpu", NODE, "--gpus", "1", "--sequence", "4096"], 3),
    "plan-cards.txt": (["plan", "--model", "llama-3.2-3b", "--gpu", NODE, "--cards", "1,2,8", "--sequence", "2048"], 0),
}


def main():
    program, update = sys.argv[1], "--update" in sys.argv[2:]
    failures = 0
    for name, (arguments, code) in CASES.items():
        run = subprocess.run([program] + arguments, capture_output=True, text=True, timeout=60)
        if run.returncode != code:
            print(f"{name}: exit code {run.returncode}, expected {code}\n{run.stderr}")
            failures += 1
        path = HERE / name
        if update:
            path.write_text(run.stdout)
        expected = path.read_text() if path.exists() else ""
        if run.stdout != expected:
            print("".join(difflib.unified_diff(expected.splitlines(True), run.stdout.splitlines(True), name, "printed")))
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
