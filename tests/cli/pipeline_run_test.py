#!/usr/bin/env python3
"""What is left of a run with a pipeline: its step replayed beside the plan, pictures of both, and a trace of every rank.

    pipeline_run_test.py PROGRAM
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
CONFIG = """[run]
name = "run"
steps = 5
[model]
name = "demo-tiny"
[parallel]
pp = 2
vpp = 2
schedule = "zbv"
threads = 1
[batch]
global = 4
sequence = 64
[data]
train = "text.txt"
"""


class PipelineRun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        pathlib.Path(cls.folder.name, "run.toml").write_text(CONFIG)
        pathlib.Path(cls.folder.name, "text.txt").write_text("a text that is read again and again. " * 200)
        cls.fivefold("train", "run.toml", "--quiet", "--json")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def fivefold(cls, *arguments):
        run = subprocess.run([PROGRAM, *arguments], cwd=cls.folder.name, capture_output=True, text=True, timeout=200,
                             stdin=subprocess.DEVNULL, env={**os.environ, "COLUMNS": "120", "XDG_CACHE_HOME": cls.folder.name})
        assert run.returncode == 0, f"exit {run.returncode} of {arguments}: {run.stderr[:600]}"
        return run.stdout

    def test_reconcile_replays_the_step(self):
        rows = json.loads(self.fivefold("reconcile", "runs/run", "--json"))["rows"]
        bubbles = {row["rank"]: row for row in rows if row["quantity"] == "pipeline.bubble_replayed"}
        self.assertEqual(set(bubbles), {None, 0, 1})
        for row in bubbles.values():
            self.assertTrue(0 <= row["measured"] < 1, row)
            self.assertTrue(0 <= row["predicted"] < 1, row)
        # Rank 0 of a V has the loss too and may never wait; the other one does.
        self.assertTrue(bubbles[1]["measured"] > 0 and bubbles[1]["predicted"] > 0, bubbles[1])
        # The mean of the ranks is that of all.
        self.assertAlmostEqual(bubbles[None]["measured"], (bubbles[0]["measured"] + bubbles[1]["measured"]) / 2)
        # Each computation once on a core of its own: no longer than the CPU time of all ranks of a median step.
        replayed = next(row["measured"] for row in rows if row["quantity"] == "pipeline.step_replayed")
        records = [json.loads(line) for rank in (0, 1)
                   for line in pathlib.Path(self.folder.name, f"runs/run/record/rank-{rank}.jsonl").read_text().splitlines()]
        cpu = [sum(time[2] for time in record["times"]) for record in records if record["line"] == "step"]
        self.assertLess(replayed, 2 * max(cpu))
        self.assertGreater(replayed, min(cpu) / 2)

    def test_timeline_has_the_plan_above_the_measurement(self):
        lines = self.fivefold("reconcile", "runs/run", "--timeline").split("\nTimeline of a step\n")[1].splitlines()
        self.assertEqual([line for line in lines if "|" not in line][:3],
                         ["planned", "measured, step " + lines[3].split()[-1], "recorded CPU durations, replayed"])
        self.assertEqual([line[:6] for line in lines if "|" in line], ["rank 0", "rank 1"] * 3)
        self.assertTrue(all(len(line) <= 120 for line in lines if "|" in line))
        self.assertTrue(lines[1].startswith("rank 0  |F"))

    def test_trace_has_plan_and_measurement_of_every_rank(self):
        events = json.loads(pathlib.Path(self.folder.name, "runs/run/trace.json").read_text())["traceEvents"]
        tracks = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X" and event["tid"] % 2 == 0}
        self.assertEqual(tracks, {(1, 0), (1, 2), (2, 0), (2, 2)})


if __name__ == "__main__":
    unittest.main()
