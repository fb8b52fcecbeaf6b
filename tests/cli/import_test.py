#!/usr/bin/env python3
"""import_test.py FIVEFOLD: export and import from outside: files, JSON, exit codes."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
PLANS = pathlib.Path(__file__).resolve().parents[1] / "exporters" / "plans"


def run(folder, *arguments):
    return subprocess.run([PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


def expect(condition, what):
    if not condition:
        sys.exit(f"import_test: {what}")


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    plan = str(PLANS / "megatron-dense-pipeline.toml")
    written = run(folder, "export", plan, "--to", "megatron", "--out", "job")
    expect(written.returncode == 0 and os.access(folder / "job/run_megatron.sh", os.X_OK), written.stderr)
    listed = json.loads(run(folder, "export", plan, "--to", "torchtitan", "--json").stdout)
    expect({"key", "value", "why", "nearest"} == set(listed["not_expressed"][0]), listed["not_expressed"])
    expect(run(folder, "export", plan, "--to", "megatrn").stderr.find("megatron") > 0, "no hint at the nearest target")
    expect(run(folder, "export", plan, "--to", "trl").returncode == 2, "TRL has no pipeline")

    read = run(folder, "import", "job/run_megatron.sh", "--gpu", "dgx-h100", "--out", "back.toml", "--json")
    expect(read.returncode == 0, read.stderr)
    explained = json.loads(read.stdout)
    expect(explained["plan"]["fits"] and explained["plan"]["step_time"] > 0, explained["plan"])
    expect(sum(line["bytes"] for line in explained["plan"]["memory"]) < explained["plan"]["needed"], "lines above the need")
    again = run(folder, "export", "back.toml", "--to", "megatron", "--out", "again")
    expect(again.returncode == 0, again.stderr)
    expect((folder / "job/run_megatron.sh").read_text() == (folder / "again/run_megatron.sh").read_text(),
           "the second export differs from the first")

    command = "torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 48 --hidden-size 5120 --num-attention-heads 40 " \
              "--seq-length 4096 --micro-batch-size 8 --vocab-size 50257 --bf16".split()
    large = run(folder, "import", "--gpu", "dgx-a100-80gb", "--", *command)
    expect(large.returncode == 3 and "does not fit" in large.stdout, large.stdout + large.stderr)
    expect(run(folder, "import", "gone.sh").returncode == 2, "a file that is not there")
    (folder / "broken.yaml").write_text("base_model: [\n")
    expect("broken.yaml:" in run(folder, "import", "broken.yaml").stderr, "no line of the broken YAML")
print("import_test: ok")
