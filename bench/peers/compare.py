#!/usr/bin/env python3
"""Runs a reference trainer and fivefold in turn; prints ratios of time and memory. See README.md beside this file."""

import argparse
import datetime
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
from pathlib import Path

MIB = 1024 * 1024
# Layout -> what the peer is given, what fivefold is given (fields of BenchCase), processes of the peer.
LAYOUTS = {
    "single": (["--threads", "2", "--batch", "4"], ["threads=2", "micro=4"], 1),
    "ddp": (["--mode", "ddp", "--threads", "1", "--batch", "2"], ["dp=2", "threads=1", "micro=2", "zero=1"], 2),
    "fsdp2": (["--mode", "fsdp2", "--threads", "1", "--batch", "2"], ["dp=2", "threads=1", "micro=2", "zero=3"], 2),
}


def children_cpu():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run(command, processes=1):
    """The JSON line that one of the processes prints, and the processor seconds that all of them took."""
    before = children_cpu()
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if processes > 1:
        environment.update(WORLD_SIZE=str(processes), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=dict(environment, RANK=str(rank), LOCAL_RANK=str(rank)))
               for rank in range(processes)]
    outputs = [process.communicate() for process in started]
    lines = [line for out, _ in outputs for line in out.splitlines() if line.startswith("{")]
    if any(process.returncode != 0 for process in started) or not lines:
        sys.exit(f"{' '.join(command)} failed:\n" + "\n".join(error[-2000:] for _, error in outputs))
    return json.loads(lines[-1]), children_cpu() - before


class Peer:
    def __init__(self, script, layout, precision):
        arguments, _, self.processes = LAYOUTS[layout]
        self.command = [sys.executable, script, "--precision", precision] + arguments

    def run(self, steps):
        line, cpu = run(self.command + ["--steps", str(steps)], self.processes)
        return {"step_s": line["step_s"], "cpu_s": cpu,
                "rss": self.processes * (line["peak_rss_mib"] - line["base_rss_mib"]) * MIB}


class Fivefold:
    def __init__(self, program, layout, precision):
        self.command = [program] + LAYOUTS[layout][1] + ["bf16=" + str(int(precision == "bf16"))]

    def run(self, steps):
        line, cpu = run(self.command + [f"steps={steps}"])
        return {"step_s": line["step_s"], "cpu_s": cpu, "rss": line["peak_rss"] - line["idle_rss"]}


def compare(sides, pairs, steps):
    """Median ratios, fivefold / peer, over alternating pairs; processor time is that of the steps after the first."""
    start = [side.run(1)["cpu_s"] for side in sides]
    rows = []
    for _ in range(pairs):
        results = [side.run(steps) for side in sides]
        for result, first in zip(results, start):
            result["cpu_step_s"] = (result["cpu_s"] - first) / (steps - 1)
        rows.append(results)
    ratios = {}
    for quantity in ("step_s", "cpu_step_s", "rss"):
        ratios[quantity] = statistics.median(ours[quantity] / peer[quantity] for peer, ours in rows)
    peer, ours = ({key: statistics.median(row[side][key] for row in rows) for key in ("step_s", "cpu_step_s", "rss")}
                  for side in (0, 1))
    return {"ratios": ratios, "peer": peer, "fivefold": ours}


def main():
    here = Path(__file__).resolve()
    shared = os.environ.get("FIVEFOLD_SHARED")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default=shared and str(Path(shared) / "peers" / "peer_torch.py"),
                        help="the reference trainer (default: peers/peer_torch.py in FIVEFOLD_SHARED)")
    parser.add_argument("--run-case", default=str(here.parents[2] / "build" / "bench" / "prediction" / "run_case"))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    if not options.peer:
        parser.error("give --peer, or set FIVEFOLD_SHARED")
    results = []
    print(f"{'layout':8} {'type':5} {'tokens/s':>9} {'CPU/step':>9} {'RSS':>6}   (fivefold / peer; tokens/s: higher is better)")
    for layout in options.layouts:
        for precision in options.precisions:
            sides = Peer(options.peer, layout, precision), Fivefold(options.run_case, layout, precision)
            result = compare(sides, options.pairs, options.steps)
            ratios = result["ratios"]
            print(f"{layout:8} {precision:5} {1 / ratios['step_s']:9.2f} {ratios['cpu_step_s']:9.2f} {ratios['rss']:6.2f}",
                  flush=True)
            results.append({"layout": layout, "precision": precision, **result})
    if options.out:
        document = {"date": datetime.date.today().isoformat(), "pairs": options.pairs, "steps": options.steps,
                    "load_average": os.getloadavg(), "results": results}
        Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
