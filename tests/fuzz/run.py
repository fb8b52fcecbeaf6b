#!/usr/bin/env python3
"""run.py BUILD WORK TARGET [--cpu-seconds N]: fuzzes one target for N seconds of CPU time (600), through as many crashes
as come up, and prints its row of the table in README.md.

BUILD is the folder of the `fuzz` preset. WORK/TARGET holds the growing corpus (put seeds there first: make_seeds.py),
WORK/found the inputs that failed. The exit code is 1 when there are any.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX_BYTES = {"run_record": 8192, "token_file": 1024, "text_source": 1024}  # of an input; elsewhere 4096


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fuzz_once(command, log, budget_s):
    """Runs until a crash or until the CPU time is used up. Returns the CPU time used."""
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    used = 0.0
    while process.poll() is None:
        try:
            used = cpu_seconds(process.pid)
        except (FileNotFoundError, ProcessLookupError):
            break
        if used >= budget_s:
            process.send_signal(signal.SIGINT)
            process.wait()
            break
        time.sleep(0.5)
    return used


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("target")
    parser.add_argument("--cpu-seconds", type=float, default=600)
    options = parser.parse_args()
    corpus, found = options.work / options.target, options.work / "found"
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    log_path = options.work / f"{options.target}.log"
    corpora = [str(folder) for folder in (corpus, HERE / "corpus" / options.target) if folder.is_dir()]
    command = [str(options.build / "tests/fuzz" / f"fuzz_{options.target}"), *corpora,
               f"-dict={HERE / 'dict' / options.target}.dict",
               f"-max_len={MAX_BYTES.get(options.target, 4096)}", "-timeout=10", "-rss_limit_mb=2048",
               "-print_final_stats=1", f"-artifact_prefix={found}/{options.target}-"]
    used = 0.0
    with open(log_path, "wb") as log:
        while used < options.cpu_seconds:
            round_s = fuzz_once(command, log, options.cpu_seconds - used)
            used += max(round_s, 1.0)  # a target that cannot start ends as well
    text = log_path.read_text(errors="replace")
    executions = sum(map(int, re.findall(r"stat::number_of_executed_units: *(\d+)", text)))
    edges = max(map(int, re.findall(r" cov: (\d+)", text)), default=0)
    failures = len(re.findall(r"Test unit written to", text))
    print(f"| {options.target} | {used / 60:.1f} | {executions:,} | {edges:,} | {failures} |")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
