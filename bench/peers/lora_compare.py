#!/usr/bin/env python3
"""Runs LoRA fine-tuning with Transformers and PEFT (lora_peft.py) and with fivefold in turn, on the same pretrained
weights, adapter, batch and length, in bf16, without and with recomputation of layers; then QLoRA with fivefold beside
its LoRA. Prints medians over the pairs. See README.md beside this file."""

import argparse
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from compare import instruction_set, spread

HERE = Path(__file__).resolve().parent
MIB = 1 << 20


def finish(command):
    """The output of a command that succeeds, and the processor seconds it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Peft:
    def __init__(self, options, recompute):
        self.command = [sys.executable, str(HERE / "lora_peft.py"), f"weights={options.weights}",
                        f"sequence={options.sequence}", f"micro={options.micro}", f"rank={options.rank}",
                        f"threads={options.threads}", f"checkpointing={int(recompute)}",
                        f"adapter={options.peft_adapter}"]

    def run(self, steps):
        output, _ = finish(self.command + [f"steps={steps}"])
        line = json.loads(output.splitlines()[-1])
        return {"step_s": line["step_s"], "cpu_step_s": line["cpu_step_s"], "rss": line["peak_rss"] - line["base_rss"],
                "whole_rss": line["peak_rss"], "trained": line["trained"]}


class Fivefold:
    """Trains on words of the model's own tokenizer; the step times and resident bytes are those of the run's record."""

    def __init__(self, options, kind, recompute, folder):
        text = Path(folder) / "text.txt"
        if not text.exists():
            text.write_text("".join(f"Line {i} of {i * i % 977} lines, a ship at sea.\n" for i in range(20000)))
        self.runs = Path(folder)
        settings = {
            "model.config": f"{options.weights}/config.json", "model.weights": options.weights, "method.kind": kind,
            "method.rank": options.rank, "method.alpha": 2 * options.rank, "batch.micro": options.micro,
            "batch.sequence": options.sequence, "precision.compute": "bf16", "optimizer.lr": 2e-4,
            "optimizer.weight_decay": 0.0, "parallel.threads": options.threads,
            "recompute.kind": "full" if recompute else "none", "data.train": text,
            "data.tokenizer": f"{options.weights}/tokenizer.json", "run.directory": folder, "checkpoint.resume": "none",
        }
        self.command = [options.program, "train", "--quiet"]
        for key, value in settings.items():
            self.command += ["--set", f"{key}={value}"]
        self.count = 0
        self.start_cpu = None

    def train(self, steps):
        self.count += 1
        name = f"run-{id(self)}-{self.count}"
        _, cpu = finish(self.command + ["--set", f"run.steps={steps}", "--set", f"run.name={name}"])
        lines = [json.loads(line) for line in (self.runs / name / "record" / "rank-0.jsonl").open()]
        seconds = [line["seconds"] for line in lines if line["line"] == "step"]
        process = next(line for line in lines if line["line"] == "process")
        return seconds[1:], cpu, process

    def run(self, steps):
        if self.start_cpu is None:
            self.start_cpu = self.train(1)[1]
        seconds, cpu, process = self.train(steps + 1)
        idle = process["rss_idle"] or process["rss_before_model"]
        return {"step_s": statistics.median(seconds), "cpu_step_s": (cpu - self.start_cpu) / steps,
                "rss": process["rss_peak"] - idle, "whole_rss": process["rss_peak"]}


def compare(sides, pairs, steps):
    """Ratios second / first over alternating pairs, and the medians of each side."""
    rows = [[side.run(steps) for side in sides] for _ in range(pairs)]
    quantities = ("step_s", "cpu_step_s", "rss", "whole_rss")
    ratios = {}
    for quantity in quantities:
        values = sorted(second[quantity] / first[quantity] for first, second in rows)
        ratios[quantity] = {"median": statistics.median(values), "least": values[0], "most": values[-1]}
    medians = [{quantity: statistics.median(row[side][quantity] for row in rows) for quantity in quantities}
               for side in (0, 1)]
    return {"ratios": ratios, "first": medians[0], "second": medians[1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True, help="folder of SmolLM2-135M as `fivefold convert` writes it")
    parser.add_argument("--program", default=str(HERE.parents[1] / "build" / "fivefold"))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peft-adapter", choices=["fp32", "bf16"], default="fp32",
                        help="type of PEFT's adapters; fp32 is what it makes by itself")
    parser.add_argument("--cases", nargs="+", choices=["lora", "lora-recompute", "qlora"],
                        default=["lora", "lora-recompute", "qlora"])
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    options.weights = str(Path(options.weights).resolve())
    results = []
    print("lora: fivefold / PEFT, tokens/s and memory. qlora: fivefold's QLoRA / its LoRA, time of a step and memory.\n"
          f"{'case':16}{'wall':>19}{'processor':>19}{'RSS':>19}{'RSS, libraries too':>20}")
    with tempfile.TemporaryDirectory() as folder:
        for case in options.cases:
            recompute = case.endswith("recompute")
            first = Fivefold(options, "lora", False, folder) if case == "qlora" else Peft(options, recompute)
            second = Fivefold(options, case.split("-")[0], recompute, folder)
            result = compare((first, second), options.pairs, options.steps)
            ratios, speed = result["ratios"], case != "qlora"
            print(f"{case:16}{spread(ratios['step_s'], speed):>19}{spread(ratios['cpu_step_s'], speed):>19}"
                  f"{spread(ratios['rss']):>19}{spread(ratios['whole_rss']):>20}", flush=True)
            for name, side in (("first", result["first"]), ("second", result["second"])):
                print(f"  {name:7} {side['step_s']:.2f} s a step, {side['cpu_step_s']:.2f} s of processors, "
                      f"{side['rss'] / MIB:.0f} MiB, with libraries {side['whole_rss'] / MIB:.0f} MiB", flush=True)
            results.append({"case": case, **result})
    if options.out:
        document = {"date": datetime.date.today().isoformat(), "load_average": os.getloadavg(),
                    "instruction_set": instruction_set(), "settings": vars(options), "results": results}
        Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
