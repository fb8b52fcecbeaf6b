#!/usr/bin/env python3
"""plan_test.py PROGRAM [--update]: what `plan` and `explain` print on a machine of round figures, compared with files.

--update writes the files instead; read the difference before committing it.
"""

import difflib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NODE = str(HERE / "round-node.toml")

PIPELINE = ["explain", "--set", "model.name=llama-3.1-8b", "--set", "parallel.pp=4", "--set", "batch.global=8", "--set",
            "batch.sequence=4096", "--set", "hardware.name=" + NODE, "--timeline"]

# File: arguments, exit code, columns of the terminal if not 100. Of --timeline only the picture.
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
    "compare-methods.txt": (["explain", "--set", "model.name=llama-3.1-8b", "--set", "hardware.name=" + NODE, "--compare",
                             "method.kind=full,lora,qlora", "--compare", "parallel.zero=1,9"], 0),
    "timeline-1f1b.txt": ([*PIPELINE, "--set", "parallel.schedule=1f1b"], 0),
    "timeline-narrow.txt": ([*PIPELINE, "--set", "parallel.schedule=zb1p"], 0, 70),
    "timeline-zbv-wide.txt": ([*PIPELINE, "--set", "parallel.schedule=zbv", "--set", "parallel.vpp=2"], 0, 200),
    "timeline-zero3.txt": (["explain", "--set", "model.name=smollm2-1.7b", "--set", "parallel.dp=8", "--set",
                            "parallel.zero=3", "--set", "batch.global=16", "--set", "batch.sequence=2048", "--set",
                            "recompute.kind=full", "--set", "hardware.name=" + NODE, "--timeline"], 0),
    "plan-8b.txt": (["plan", "--model", "llama-3.1-8b", "--gpu", NODE, "--gpus", "8", "--sequence", "4096"], 0),
    "plan-no-fit.txt": (["plan", "--model", "llama-3.1-8b", "--gpu", NODE, "--gpus", "1", "--sequence", "4096", "--method",
                         "full"], 3),
    "plan-adapter.txt": (["plan", "--model", "llama-3.1-8b", "--gpu", NODE, "--gpus", "1", "--sequence", "4096",
                          "--memory", "12GiB"], 0),
    "plan-cards.txt": (["plan", "--model", "llama-3.2-3b", "--gpu", NODE, "--cards", "1,2,8", "--sequence", "2048"], 0),
    # What people ask, with no flags beyond model, GPU and count.
    "plan-7b-on-24gb.txt": (["plan", "--model", "llama-2-7b", "--gpu", "rtx-4090", "--gpus", "1"], 0),
    "plan-8b-on-8.txt": (["plan", "--model", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "8"], 0),
    "plan-70b-on-64.txt": (["plan", "--model", "llama-3.1-70b", "--gpu", "h100-sxm-80gb", "--gpus", "64"], 0),
    "plan-mixtral-on-16.txt": (["plan", "--model", "mixtral-8x7b", "--gpu", "h100-sxm-80gb", "--gpus", "16"], 0),
    "plan-deepseek-v3-on-2048.txt": (["plan", "--model", "deepseek-v3", "--gpu", "h100-sxm-80gb", "--gpus", "2048"], 0),
    "plan-405b-on-16384.txt": (["plan", "--model", "llama-3.1-405b", "--gpu", "h100-sxm-80gb", "--gpus", "16384"], 0),
}


def main():
    program, update = sys.argv[1], "--update" in sys.argv[2:]
    failures = 0
    for name, (arguments, code, *columns) in CASES.items():
        environment = {**os.environ, "COLUMNS": str(*columns or [100])}
        run = subprocess.run([program] + arguments, capture_output=True, text=True, timeout=60, env=environment)
        if run.returncode != code:
            print(f"{name}: exit code {run.returncode}, expected {code}\n{run.stderr}")
            failures += 1
        path = HERE / name
        printed = run.stdout[run.stdout.find("\nTimeline\n") + 1:] if "--timeline" in arguments else run.stdout
        if update:
            path.write_text(printed)
        expected = path.read_text() if path.exists() else ""
        if printed != expected:
            print("".join(difflib.unified_diff(expected.splitlines(True), printed.splitlines(True), name, "printed")))
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
