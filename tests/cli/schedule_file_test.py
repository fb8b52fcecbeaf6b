#!/usr/bin/env python3
"""A run under a schedule from a file: the losses of 1F1B, a plan that is met exactly, and no more need of the file once
the run has begun.

    schedule_file_test.py PROGRAM
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
CONFIG = """[run]
name = "run"
steps = 3
[model]
name = "demo-tiny"
[parallel]
pp = 2
stages = "balanced"
[batch]
global = 4
sequence = 32
[lr]
schedule = "constant"
[data]
train = "text.txt"
"""
# All inputs' gradients first on rank 0; rank 1 takes its microbatches in another order.
SCHEDULE = """0F0,0F1,0F2,0F3,0I1,0I0,0I3,0I2,0W0,0W1,0W2,0W3
1F1,1B1,1F0,1B0,1F3,1I3,1F2,1I2,1W2,1W3
"""
FROM_FILE = ["parallel.schedule=file", "parallel.schedule_file=made.csv"]


# A machine that nobody has measured: its times have no bounds, since tests run on busy ones.
def fivefold(folder, command, *settings):
    arguments = [word for setting in settings for word in ("--set", setting)]
    run = subprocess.run([PROGRAM, *command, "--json", *arguments], cwd=folder, capture_output=True, text=True,
                         timeout=200, stdin=subprocess.DEVNULL,
                         env={**os.environ, "XDG_CACHE_HOME": str(folder)})
    assert run.returncode == 0, f"exit {run.returncode} of {command}: {run.stderr[:600]}"
    return json.loads(run.stdout)


def losses(folder, name):
    text = (folder / "runs" / name / "record" / "rank-1.jsonl").read_text()
    return [line["loss"] for line in map(json.loads, text.splitlines()) if line["line"] == "step"]


def main():
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "run.toml").write_text(CONFIG)
        (folder / "text.txt").write_text("A schedule says who computes what and when. " * 400)
        (folder / "made.csv").write_text(SCHEDULE)
        fivefold(folder, ["train", "run.toml", "--quiet"], "run.name=usual", "run.steps=5")
        fivefold(folder, ["train", "run.toml", "--quiet"], "run.name=made", *FROM_FILE)
        (folder / "made.csv").unlink()
        fivefold(folder, ["train", "runs/made", "--quiet"], "run.steps=5")
        usual, made = losses(folder, "usual"), losses(folder, "made")
        assert len(usual) == len(made) == 5, (usual, made)
        # bf16: the order of accumulation differs.
        assert all(abs(a - b) < 2e-3 for a, b in zip(usual, made)), (usual, made)
        rows = fivefold(folder, ["reconcile", "runs/made"])["rows"]
        exact = [row for row in rows if row["quantity"].startswith(("traffic.", "program."))]
        assert len(exact) > 10 and all(row["predicted"] == row["measured"] for row in exact), exact
    print("ok")


if __name__ == "__main__":
    main()
