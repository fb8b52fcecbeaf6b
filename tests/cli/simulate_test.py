#!/usr/bin/env python3
"""Training on a simulated network: the same losses to the bit, steps that take what the links take, a plan that knows it,
and calls in the record with what was waited for. The network is so slow that the machine's own speed hardly counts.

    simulate_test.py PROGRAM
"""

import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
LATENCY_S = {"node": 1e-3, "network": 20e-3}
CONFIG = """[run]
name = "run"
steps = 6
[model]
name = "demo-tiny"
[parallel]
dp = 4
zero = 1
threads = 1
[batch]
global = 4
sequence = 32
[data]
train = "text.txt"
[comm]
simulate = "two-nodes.toml"
"""


def link(name):
    source = 'kind = "assumed", source = "test"'
    return f"""[{name}]
bytes_per_s = {{ value = 1e12, {source} }}
latency_s = {{ value = {LATENCY_S[name.split('.')[0]]}, {source} }}
"""


# A machine that nobody has measured: its times have no bounds, since tests run on busy ones.
def fivefold(folder, command, *settings):
    arguments = [word for setting in settings for word in ("--set", setting)]
    run = subprocess.run([PROGRAM, *command, "--json", *arguments], cwd=folder, capture_output=True, text=True,
                         timeout=200, stdin=subprocess.DEVNULL,
                         env={**os.environ, "XDG_CACHE_HOME": str(folder)})
    assert run.returncode == 0, f"exit {run.returncode} of {command}: {run.stderr[:600]}"
    return json.loads(run.stdout)


KEYS = ("kind", "group", "purpose")
GATHERS = ("all_gather", "shard", "parameters")


def counted_calls(step):
    return collections.Counter({tuple(row[key] for key in KEYS): row["calls"] for row in step["traffic"]})


def logged_calls(step):
    return collections.Counter(tuple(call[key] for key in KEYS) for call in step["calls"])


def check_gathers(name, steps):
    """Over all steps none is missing or there twice, but for what the last step may leave under way."""
    counted = sum(counted_calls(step)[GATHERS] for step in steps)
    logged = sum(logged_calls(step)[GATHERS] for step in steps)
    open_calls = counted_calls(steps[-1])[GATHERS]
    assert counted - open_calls <= logged <= counted, f"{name}: {logged} gathers instead of {counted}"


def check_calls(name, step):
    """Each collective of the step is there with what of it the rank waited for: of a slow network most of the step."""
    counted, logged = counted_calls(step), logged_calls(step)
    # Levels 1 and 2 gather after the step: those calls may end in the next one.
    for calls in (counted, logged):
        del calls[GATHERS]
    assert logged == counted, f"{name}: {logged} instead of {counted}"
    for call in step["calls"]:
        assert -1e-6 <= call["exposed"] <= call["end"] - call["begin"] + 1e-6, f"{name}: {call}"
    exposed = sum(call["exposed"] for call in step["calls"])
    # A call that the step before began may have been waited for there.
    assert exposed <= 1.05 * step["seconds"] + 0.1, f"{name}: {exposed} s exposed in {step['seconds']} s"
    if not name.startswith("plain"):
        assert exposed > 0.5 * step["seconds"], f"{name}: {exposed} s exposed in {step['seconds']} s"


def train(folder, name, *settings):
    """Losses, the median step after the first two, and the plan."""
    fivefold(folder, ["train", "run.toml", "--quiet"], f"run.name={name}", *settings)
    directory = folder / "runs" / name
    lines = [json.loads(line) for line in sorted((directory / "record").glob("rank-*"))[0].read_text().splitlines()]
    steps = [line for line in lines if line.get("line") == "step"]
    assert len(steps) == 6, [line.get("line") for line in lines]
    for step in steps[2:]:
        check_calls(name, step)
    check_gathers(name, steps)
    plan = json.loads((directory / "plan.json").read_text())
    return [step["loss"] for step in steps], statistics.median(step["seconds"] for step in steps[2:]), plan["time"]


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fivefold-simulate-"))
    (folder / "run.toml").write_text(CONFIG)
    (folder / "text.txt").write_text("".join(f"line {i * i % 97} of a text, long enough\n" for i in range(400)))
    (folder / "two-nodes.toml").write_text('gpu = "l4"\n[node]\ndevices = 2\n' + link("node.link") + link("network"))
    # The count of tokens and the loss alone go up and down a tree over four ranks on two nodes: 4 latencies each.
    for zero in (0, 1, 3):
        losses, _, time = train(folder, f"plain-{zero}", f"parallel.zero={zero}", "comm.simulate=")
        assert time["hardware"] == "this-machine", time["hardware"]
        same, step_s, time = train(folder, f"zero-{zero}", f"parallel.zero={zero}")
        assert same == losses, f"zero = {zero}: {same} instead of {losses}"
        assert time["hardware"] == "this-machine, links of two-nodes", time["hardware"]
        assert time["step"] > 4 * LATENCY_S["network"], time
        assert step_s > 8 * LATENCY_S["network"], step_s
        # Late threads of a busy machine only make it longer.
        assert step_s > 0.75 * time["step"], f"zero = {zero}: {step_s} s a step, predicted {time['step']}"
        rows = fivefold(folder, ["reconcile", f"runs/zero-{zero}"])["rows"]
        hidden = {row["quantity"]: row for row in rows if row["quantity"].startswith("time.hidden.")}
        expected = {0: {"replicate.gradients"}}.get(zero, {"shard.gradients", "shard.parameters"})
        assert {name.removeprefix("time.hidden.") for name in hidden} == expected, hidden
        assert all(row["predicted"] is not None for row in hidden.values()), hidden
        print(f"zero = {zero}: {step_s:.3f} s a step, predicted {time['step']:.3f} s")
    # Pairs of a node gather; only the sums over replicas cross.
    _, hybrid_s, _ = train(folder, "hybrid", "parallel.zero=3", "parallel.shard_size=2")
    assert hybrid_s < 0.75 * step_s, f"hybrid {hybrid_s} s, all four ranks {step_s} s"
    print(f"zero = 3 over pairs: {hybrid_s:.3f} s a step")


main()
