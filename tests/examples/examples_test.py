#!/usr/bin/env python3
"""examples_test.py TEST CMAKE SOURCE BUILD WORK SETTING...: one TEST of the installation or of a project in examples/.

`install` installs BUILD and moves the result to WORK/prefix, as an installation may be moved; every header that an
installed header includes is there. The others configure
(with the SETTINGs), build and run a project against that prefix, and look at what it prints.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TEST, CMAKE, SOURCE, BUILD, WORK = sys.argv[1], sys.argv[2], *map(Path, sys.argv[3:6])
SETTINGS = sys.argv[6:]
PREFIX = WORK / "prefix"
PROGRAM = PREFIX / "bin" / "fivefold"
# An installation is found without any of these.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("FIVEFOLD_")}


def run(*command, folder=WORK, status=0):
    """What the command prints, both streams; fails unless it ends with `status`."""
    result = subprocess.run([str(word) for word in command], cwd=folder, env=ENVIRONMENT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != status:
        sys.exit(f"{' '.join(map(str, command))}: exit code {result.returncode}\n{result.stdout}")
    return result.stdout


def expect(condition, message):
    if not condition:
        sys.exit(message)


def configure(source, build, status=0):
    return run(CMAKE, "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={PREFIX}", "-DCMAKE_BUILD_TYPE=Release",
               *SETTINGS, status=status)


def build_example(name):
    build = WORK / name
    configure(SOURCE / "examples" / name, build)
    run(CMAKE, "--build", build)
    return build


def install():
    staging = WORK / "staging"
    for folder in (staging, PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
    WORK.mkdir(exist_ok=True)
    run(CMAKE, "--install", BUILD, "--prefix", staging)
    staging.rename(PREFIX)
    headers = PREFIX / "include" / "fivefold"
    for header in headers.rglob("*.h"):
        for included in re.findall(r'^#include "(.+)"', header.read_text(), re.MULTILINE):
            expect((headers / included).exists(), f"{header} includes {included}, which is not installed")
    expect("llama-3-8b" in run(PROGRAM, "plan", "--list", "models"), "the installed program knows no models")


def planner():
    """The peaks are those that the program prints as JSON for the same layouts."""
    printed = run(build_example("planner") / "zero_levels", "llama-3.2-1b", "dgx-h100", 8)
    levels = re.findall(r"^zero = (\d): peak (\S+ \S+) of", printed, re.MULTILINE)
    expect(len(levels) == 4, printed)
    for zero, peak in levels:
        explained = run(PROGRAM, "explain", "--json", "--set", "model.name=llama-3.2-1b", "--set",
                        "hardware.name=dgx-h100", "--set", "parallel.dp=8", "--set", f"parallel.zero={zero}", "--set",
                        "batch.sequence=1024")
        right = json.loads(explained)["ranks"][0]["memory"]["peak"] / 2**30
        expect(peak == f"{right:.2f} GiB", f"zero = {zero}: {peak}, and the program says {right} GiB")
    for arguments in ("llama-3.2-1c", "dgx-h100", 8), ("gpt2", "nowhere", 8), ("gpt2", "dgx-h100", "x"):
        run(WORK / "planner" / "zero_levels", *arguments, status=2)


def training():
    program = build_example("training") / "train_text"
    folder = SOURCE / "examples" / "training"
    printed = run(program, folder, SOURCE / "LICENSE")
    losses = [float(loss) for loss in re.findall(r"^step \d+ of 12: loss ([\d.]+)", printed, re.MULTILINE)]
    expect(len(losses) == 12 and losses[-1] < losses[0], printed)
    expect(len(re.findall(r"validation loss", printed)) == 2, printed)
    for rank in 0, 1:
        for quantity in "memory.peak_total", "traffic.bytes.all_gather.shard.parameters":
            expect(re.search(rf"^rank {rank}: {re.escape(quantity)} .*: ok$", printed, re.MULTILINE), printed)
    expect("no such file" in run(program, folder, "nowhere.txt", status=2).lower(), "a missing text is accepted")


def operation():
    build = build_example("operation")
    has_engine = any(PREFIX.glob("lib*/**/libfivefold_engine.so"))
    for test in ["softcap_test"] + ["softcap_autograd_test"] * has_engine:
        print(run(build / test), end="")


def package():
    """What the examples do not ask for: everything at once, twice; and what is not there, with its reason."""
    project = WORK / "package"
    project.mkdir(exist_ok=True)

    def write(*lines):
        (project / "CMakeLists.txt").write_text("\n".join(
            ["cmake_minimum_required(VERSION 3.25)", "project(package LANGUAGES CXX)", *lines, ""]))

    def refused(arguments, reason):
        write(f"find_package(fivefold {arguments})")
        printed = configure(project, project / "build", status=1)
        expect(reason in " ".join(printed.split()), f"find_package(fivefold {arguments})\n{printed}")

    (project / "main.cc").write_text('#include "spec/model_named.h"\n'
                                     "int main() { return fivefold::list_named_models().empty() ? 1 : 0; }\n")
    find = "find_package(fivefold REQUIRED)"
    write(find, find, "add_executable(main main.cc)", "target_link_libraries(main PRIVATE fivefold::fivefold)")
    configure(project, project / "build")
    run(CMAKE, "--build", project / "build")
    run(project / "build" / "main")
    refused("REQUIRED COMPONENTS planer", "component planer: unknown")
    refused("1.0 REQUIRED", 'compatible with requested version "1.0"')
    if not any(PREFIX.glob("lib*/**/libfivefold_engine.so")):
        for component in "engine", "operations":
            refused(f"REQUIRED COMPONENTS {component}", "built without the training engine")


if __name__ == "__main__":
    {"install": install, "planner": planner, "training": training, "operation": operation, "package": package}[TEST]()
