#!/usr/bin/env python3
"""A pretrained model of 135 million parameters under a stated limit of memory: full fine-tuning in fp32 is refused, and
runs under the limit by each remedy alone; LoRA and QLoRA lower the loss of held-out conversations, and the merged model
answers in the form that it was trained on.

    lab_test.py PROGRAM SOURCE

FIVEFOLD_SMOLLM2 names the model's folder, as `make lab` leaves it in runs/smollm2; without it the test is skipped
(exit code 77).
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
LAB = pathlib.Path(sys.argv[2]).resolve() / "examples" / "lab"
LIMIT = 2_400_000_000  # bytes: states of 16 bytes a parameter leave 248 MB, activations and logits need 0.45 GB
PROMPT = "How many bytes are 3 KiB?"
# Alone each brings the run under the limit. The last is of two ranks.
REMEDIES = {
    "smaller microbatch": ["batch.micro=1"],
    "bf16": ["precision.compute=bf16"],
    "8-bit states": ["precision.optimizer_state=8bit"],
    "recompute": ["recompute.kind=full"],
    "LoRA": ["method.kind=lora"],
    "QLoRA": ["method.kind=qlora"],
    "ZeRO": ["parallel.dp=2", "parallel.zero=1", "batch.micro=2"],
}
failures = []


def expect(condition, text):
    if not condition:
        failures.append(text)
        print("FAILED:", text, flush=True)


class Lab:
    def __init__(self, model, folder):
        self.model, self.folder = model, pathlib.Path(folder)
        self.common = {"model.config": f"{model}/config.json", "model.weights": model,
                       "data.train": LAB / "instructions.jsonl", "data.validation": LAB / "held-out.jsonl",
                       "data.tokenizer": f"{model}/tokenizer.json", "data.format": "chat", "run.directory": folder,
                       "checkpoint.resume": "none"}

    def train(self, name, config, settings):
        command = [PROGRAM, "train", *config, "--quiet", "--set", f"run.name={name}"]
        for setting in [f"{key}={value}" for key, value in self.common.items()] + settings:
            command += ["--set", setting]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)

    def record(self, name, kind):
        lines = [json.loads(line) for path in sorted((self.folder / name / "record").glob("rank-*.jsonl"))
                 for line in path.open()]
        return [line for line in lines if line["line"] == kind]

    def answer(self, weights):
        done = subprocess.run([PROGRAM, "generate", str(weights), "--chat", "--prompt", PROMPT, "--max-tokens", "40",
                               "--quiet"], capture_output=True, text=True, check=True, timeout=300)
        return done.stdout


def remedies(lab):
    full = ["precision.compute=fp32", "batch.sequence=128", "batch.micro=4", "batch.global=4", "optimizer.lr=1e-4",
            "run.steps=1", f"limits.memory={LIMIT}"]
    refused = lab.train("full", [], full)
    expect(refused.returncode != 0, "full fine-tuning in fp32 is not refused")
    expect("limits.memory" in refused.stderr + refused.stdout, f"the refusal names no limit: {refused.stderr[-500:]}")
    expect(not lab.record("full", "step"), "full fine-tuning made a step")
    for name, settings in REMEDIES.items():
        run = name.replace(" ", "-")
        done = lab.train(run, [], full + settings)
        expect(done.returncode == 0, f"{name}: {done.stderr[-800:]}")
        if done.returncode != 0:
            continue
        peaks = [line["peak_total"] for line in lab.record(run, "step")]
        expect(peaks and max(peaks) <= LIMIT, f"{name}: {max(peaks)} bytes at the peak")
        print(f"{name}: {max(peaks) / 2**20:.0f} MiB at the peak", flush=True)


def held_out_loss(lab, name):
    return lab.record(name, "evaluation")[-1]["loss"]


def learning(lab):
    config = [str(LAB / "lab.toml")]
    before = lab.answer(lab.model)
    expect("Answer:" not in before, f"the pretrained model answers in the trained form: {before}")
    for kind in ("lora", "qlora"):
        first = [f"method.kind={kind}", "run.steps=1", "run.validate_every=1", "lr.warmup_steps=0",
                 "optimizer.lr=1e-12"]
        trained = [f"method.kind={kind}", "run.steps=24", "run.validate_every=24"]
        for name, settings in ((f"{kind}-first", first), (kind, trained)):
            done = lab.train(name, config, settings)
            expect(done.returncode == 0, f"{name}: {done.stderr[-800:]}")
        start, end = held_out_loss(lab, f"{kind}-first"), held_out_loss(lab, kind)
        print(f"{kind}: held-out loss {start:.3f} -> {end:.3f}", flush=True)
        expect(end < 0.75 * start, f"{kind}: held-out loss {start} -> {end}")
        merged = lab.folder / f"{kind}-merged"
        subprocess.run([PROGRAM, "convert", str(lab.folder / kind), str(merged), "--merge", "--base", lab.model,
                        "--quiet"], check=True, timeout=300, capture_output=True)
        after = lab.answer(merged)
        print(after.strip(), flush=True)
        expect(after.startswith("Log:") and "Answer:" in after, f"{kind}: the answer has another form: {after}")


def main():
    model = os.environ.get("FIVEFOLD_SMOLLM2")
    if not model:
        print("FIVEFOLD_SMOLLM2 names no model folder")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(model, folder)
        remedies(lab)
        learning(lab)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
