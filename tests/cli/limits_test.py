#!/usr/bin/env python3
"""What the machine refuses, or takes away in the middle: too little memory, a full disk, folders that cannot be made, a
reader that goes away, a signal at any moment. Nothing hangs, the error says what and where, and a run that was stopped
goes on to the end of the unbroken one.

    limits_test.py PROGRAM
"""

import json
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
LIMIT_S = 100
STEPS = 60
CONFIG = f"""[run]
name = "run"
steps = {STEPS}
[model]
config = "config.json"
[parallel]
dp = 2
zero = 1
threads = 1
[batch]
global = 4
sequence = 32
[data]
train = "text.txt"
[checkpoint]
every = 7
"""
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 257,
    "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
}


def new_folder():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fivefold-limits-"))
    (folder / "run.toml").write_text(CONFIG)
    (folder / "config.json").write_text(json.dumps(MODEL))
    (folder / "text.txt").write_text("".join(f"line {i * i % 97} of a text, long enough\n" for i in range(400)))
    return folder


def largest_file(limit):
    """Makes writes past `limit` bytes of a file fail, as on a full disk."""
    def apply():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return apply


def train(folder, *settings, **options):
    arguments = [word for setting in settings for word in ("--set", setting)]
    return subprocess.run([PROGRAM, "train", "run.toml", "--quiet", "--json", *arguments], cwd=folder,
                          capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, **options)


def expect(result, code, *words):
    missing = [word for word in words if word not in result.stderr]
    assert result.returncode == code and not missing, \
        f"exit {result.returncode} instead of {code}, missing {missing}: {result.stderr[:600]}"


def memory(folder):
    """A plan over the limit starts no rank and lists remedies. Every remedy that is said to fit runs under the limit,
    scratch of kernels included."""
    refused = train(folder, "limits.memory=300KiB")
    expect(refused, 3, "limits.memory", "300.0 KiB a rank", "fivefold plan")
    assert json.loads(refused.stdout)["does_not_fit"]["each"], "no remedies"
    assert not (folder / "runs" / "run" / "record").exists(), "ranks were started"
    expect(train(folder, "limits.memory=300MiB", "run.steps=2"), 0)
    shutil.rmtree(folder / "runs")
    # A limit that a smaller microbatch meets.
    large = ("batch.global=256", "batch.micro=128", "run.steps=2")
    peak = peak_bytes(folder, *large)
    limit = f"limits.memory={int(0.8 * peak)}"
    refused = train(folder, *large, limit)
    expect(refused, 3)
    fitting = [r for r in json.loads(refused.stdout)["does_not_fit"]["each"] if r["fits"]]
    assert fitting, refused.stdout
    for remedy in fitting:
        expect(train(folder, *large, limit, *remedy["set"], f"run.name={remedy['remedy'].replace(' ', '-')}"), 0)


def plan(folder, limit, *arguments):
    return subprocess.run([PROGRAM, "plan", "run.toml", "--memory", str(limit), *arguments], cwd=folder,
                          capture_output=True, text=True, timeout=LIMIT_S)


def planned(folder):
    """What `plan` finds under a limit runs under it: full training, with a limit of exactly what it needs; and below the
    least that full training needs LoRA, then QLoRA, which the file that it writes says."""
    settings = ("--set", "batch.global=256", "--set", "run.steps=2")
    nothing = plan(folder, 1024, "--json", *settings)
    expect(nothing, 3)
    least = {method["method"]: method["smallest_peak"] for method in json.loads(nothing.stdout)["methods_that_do_not_fit"]}
    assert least["full"] > least["lora"] > least["qlora"], least
    for method, bytes_ in least.items():
        found = plan(folder, bytes_, "--json", "--out", f"{method}.toml", *settings)
        expect(found, 0)
        assert json.loads(found.stdout)["method"] == method, found.stdout
        run = subprocess.run([PROGRAM, "train", f"{method}.toml", "--quiet", "--json", "--set", f"run.name={method}"],
                             cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
        expect(run, 0)
        config = (folder / "runs" / method / "config.toml").read_text()
        assert f'kind = "{method}"' in config and f"memory = {bytes_}" in config, config


def peak_bytes(folder, *settings):
    arguments = [word for setting in settings for word in ("--set", setting)]
    run = subprocess.run([PROGRAM, "explain", "run.toml", "--json", *arguments], cwd=folder, capture_output=True,
                         text=True, timeout=LIMIT_S)
    return json.loads(run.stdout)["ranks"][0]["memory"]["peak"]


def full_disk(folder):
    # No room for the tokens of the text; then for those and no record; then for all but a checkpoint.
    expect(train(folder, preexec_fn=largest_file(4096)), 4, "runs/.tokens/text-", "File too large")
    expect(train(folder), 0)
    shutil.rmtree(folder / "runs" / "run")
    expect(train(folder, preexec_fn=largest_file(4096)), 4, "runs/run/record/rank-", "File too large")
    expect(train(folder, "run.steps=2", preexec_fn=largest_file(100_000)), 4, "runs/run/checkpoints", "File too large")
    # What is there is enough to go on from, or to start again.
    expect(train(folder, "run.steps=2"), 0)


def folders(folder):
    (folder / "taken").write_text("a file")
    expect(train(folder, "run.directory=taken"), 2, "taken/run", "choose another run.directory")
    expect(train(folder, "run.directory=/proc/fivefold"), 2, "/proc/fivefold", "choose another run.directory")
    (folder / "text.txt").unlink()
    (folder / "text.txt").mkdir()
    expect(train(folder), 2, "text.txt")


def closed_pipe(folder):
    """A reader that takes one line of the tables and leaves: the run is done and whole."""
    process = subprocess.Popen([PROGRAM, "train", "run.toml"], cwd=folder, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=LIMIT_S)
    assert (folder / "runs" / "run" / "checkpoints" / f"step-{STEPS}").is_dir()
    with open("/dev/full", "w") as full:
        result = subprocess.run([PROGRAM, "explain", "run.toml"], cwd=folder, stdout=full, stderr=subprocess.PIPE,
                                text=True, timeout=LIMIT_S)
    expect(result, 4, "output could not be written")


def shards(folder):
    files = sorted((folder / "runs" / "run" / "checkpoints" / f"step-{STEPS}").glob("*.safetensors"))
    assert files
    return [file.read_bytes() for file in files]


def signals(folder):
    """SIGINT, SIGTERM and SIGKILL at moments of all kinds, until the run is done: the weights and states are those of
    the run that nobody disturbed."""
    expect(train(folder), 0)
    wanted = shards(folder)
    shutil.rmtree(folder / "runs")
    moments = random.Random(1)
    ends = []
    while len(ends) < 40:
        process = subprocess.Popen([PROGRAM, "train", "run.toml", "--quiet"], cwd=folder, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        kind = moments.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]) if len(ends) < 30 else None
        if kind is not None:
            time.sleep(moments.uniform(0.0, 0.8))
            process.send_signal(kind)
        _, errors = process.communicate(timeout=LIMIT_S)
        ends.append(process.returncode)
        # Done, stopped with everything saved, killed, or ended by the signal before the run had begun.
        assert process.returncode in (0, -signal.SIGKILL, -signal.SIGINT, -signal.SIGTERM), (ends, errors[:600])
        if (folder / "runs" / "run" / "checkpoints" / f"step-{STEPS}").is_dir() and kind is None:
            break
    assert shards(folder) == wanted, ends


def main():
    failures = 0
    for test in (memory, planned, full_disk, folders, closed_pipe, signals):
        folder = new_folder()
        try:
            test(folder)
            print(f"ok   {test.__name__}")
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failures += 1
            print(f"FAIL {test.__name__}: {error}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failures else 0


sys.exit(main())
