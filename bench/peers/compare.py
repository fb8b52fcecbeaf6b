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
# Layout -> settings of BenchCase that both sides have.
LAYOUTS = {
    "single": "dp=1 threads=2",
    "ddp": "dp=2 threads=1 zero=1",
    "fsdp2": "dp=2 threads=1 zero=3",
}
# Shape -> settings of BenchCase, without those of the layout. `micro` is of all ranks together.
SHAPES = {
    "base": "hidden=512 layers=8 heads=8 kv_heads=4 ffn=1408 vocab=8192 sequence=512 micro=4",
    "wide": "hidden=1024 layers=4 heads=16 kv_heads=8 ffn=2816 vocab=8192 sequence=2048 micro=2",
    "head80": "hidden=640 layers=4 heads=8 kv_heads=4 ffn=1728 vocab=8192 sequence=1000 micro=2",
    "head128": "hidden=1024 layers=4 heads=8 kv_heads=2 ffn=2816 vocab=8192 sequence=512 micro=4",
    "vocab128k": "hidden=512 layers=4 heads=8 kv_heads=4 ffn=1408 vocab=128256 sequence=512 micro=2",
    "gpt2": "gpt2=1 hidden=512 layers=8 heads=8 ffn=2048 vocab=8192 sequence=512 micro=4",
    "accumulation8": "hidden=512 layers=8 heads=8 kv_heads=4 ffn=1408 vocab=8192 sequence=512 micro=2 accumulation=8",
    "recompute": "hidden=512 layers=8 heads=8 kv_heads=4 ffn=1408 vocab=8192 sequence=512 micro=4 recompute_every=1",
}
# Settings of a BenchCase as switches of peer_torch.py.
PEER_SWITCHES = {"hidden": "hidden", "layers": "layers", "heads": "heads", "kv_heads": "kv-heads", "ffn": "ffn",
                 "vocab": "vocab", "sequence": "seq", "micro": "batch", "threads": "threads"}


def settings_of(layout, shape, precision):
    settings = dict(word.split("=") for word in (LAYOUTS[layout] + " " + SHAPES[shape]).split())
    settings["micro"] = str(int(settings["micro"]) // int(settings["dp"]))
    settings["bf16"] = str(int(precision == "bf16"))
    return settings


def children_cpu():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def instruction_set():
    """The widest of the processor that the kernels of both sides use."""
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), "").split()
    return next((flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if flag in flags), "baseline")


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
    def __init__(self, script, layout, settings):
        self.processes = int(settings["dp"])
        if "gpt2" in settings or "accumulation" in settings:  # peer_torch.py has neither
            if layout != "single":
                sys.exit("GPT-2 and accumulation are compared in one process")
            own = Path(__file__).resolve().parent / "transformers_trainer.py"
            own_settings = {key: value for key, value in settings.items() if key != "dp"}
            self.command = [sys.executable, str(own)] + [f"{key}={value}" for key, value in own_settings.items()]
            self.steps = "steps={}"
            return
        precision = "bf16" if settings["bf16"] == "1" else "fp32"
        self.command = [sys.executable, script, "--mode", layout, "--precision", precision]
        for key, switch in PEER_SWITCHES.items():
            self.command += ["--" + switch, settings[key]]
        if "recompute_every" in settings:
            self.command.append("--recompute")
        self.steps = "--steps={}"

    def run(self, steps):
        line, cpu = run(self.command + [self.steps.format(steps)], self.processes)
        return {"step_s": line["step_s"], "cpu_s": cpu,
                "rss": self.processes * (line["peak_rss_mib"] - line["base_rss_mib"]) * MIB}


class Fivefold:
    def __init__(self, program, settings):
        self.command = [program] + [f"{key}={value}" for key, value in settings.items()]

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
        values = sorted(ours[quantity] / peer[quantity] for peer, ours in rows)
        ratios[quantity] = {"median": statistics.median(values), "least": values[0], "most": values[-1]}
    peer, ours = ({key: statistics.median(row[side][key] for row in rows) for key in ("step_s", "cpu_step_s", "rss")}
                  for side in (0, 1))
    return {"ratios": ratios, "peer": peer, "fivefold": ours}


def spread(ratio, invert=False):
    low, median, high = ratio["least"], ratio["median"], ratio["most"]
    if invert:
        low, median, high = 1 / high, 1 / median, 1 / low
    return f"{median:5.2f} ({low:.2f}-{high:.2f})"


def main():
    here = Path(__file__).resolve()
    shared = os.environ.get("FIVEFOLD_SHARED")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default=shared and str(Path(shared) / "peers" / "peer_torch.py"),
                        help="the reference trainer (default: peers/peer_torch.py in FIVEFOLD_SHARED)")
    parser.add_argument("--run-case", default=str(here.parents[2] / "build" / "bench" / "prediction" / "run_case"))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["base"])
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    if not options.peer:
        parser.error("give --peer, or set FIVEFOLD_SHARED")
    results = []
    print("fivefold / peer: median (least-most)")
    print(f"{'shape':14}{'layout':7} {'type':5}{'tokens/s':>19}{'per CPU second':>19}{'RSS':>19}")
    for shape in options.shapes:
        for layout in options.layouts:
            for precision in options.precisions:
                settings = settings_of(layout, shape, precision)
                sides = Peer(options.peer, layout, settings), Fivefold(options.run_case, settings)
                result = compare(sides, options.pairs, options.steps)
                ratios = result["ratios"]
                print(f"{shape:14}{layout:7} {precision:5}{spread(ratios['step_s'], True):>19}"
                      f"{spread(ratios['cpu_step_s'], True):>19}{spread(ratios['rss']):>19}", flush=True)
                results.append({"shape": shape, "layout": layout, "precision": precision, **result})
    if options.out:
        document = {"date": datetime.date.today().isoformat(), "pairs": options.pairs, "steps": options.steps,
                    "load_average": os.getloadavg(), "instruction_set": instruction_set(), "results": results}
        Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
