#!/usr/bin/env python3
"""Runs transformers' `model.generate` and `fivefold generate` in turn on the same weights and prompt, greedy, batch 1,
and prints the ratio of tokens per second: the median over the pairs, because load from outside moves both of a pair
alike. See README.md beside this file."""

import argparse
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROMPT = "A ship leaves the harbour at dawn, and by noon the coast is only a grey line. The captain"


def last_json(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{run.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = json.loads(run.stdout[run.stdout.index("{"):])
    result["cpu"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return result


def measure(arguments, tokens):
    common = ["--prompt", arguments.prompt, "--dtype", arguments.dtype, "--threads", str(arguments.threads)]
    peer = last_json([sys.executable, str(HERE / "generate_transformers.py"), "--weights", arguments.weights,
                      "--tokens", str(tokens), *common])
    own = last_json([arguments.program, "generate", arguments.weights, "--max-tokens", str(tokens), "--json",
                     "--quiet", *common])
    if len(peer["ids"]) != tokens or len(own["ids"]) != tokens:
        sys.exit("the text ended early: choose another --prompt or fewer --tokens")
    return peer, own


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True, help="Hub folder")
    parser.add_argument("--program", default="build/fivefold")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--out", help="JSON file to write")
    arguments = parser.parse_args()
    few = max(2, arguments.tokens // 8)
    start = [side["cpu"] for side in measure(arguments, few)]  # processor time but for the tokens after these
    rows = []
    for pair in range(arguments.pairs):
        peer, own = measure(arguments, arguments.tokens)
        same = next((i for i, (a, b) in enumerate(zip(peer["ids"], own["ids"])) if a != b), len(own["ids"]))
        rows.append({"peer": peer["tokens_per_s"], "fivefold": own["tokens_per_s"],
                     "ratio": own["tokens_per_s"] / peer["tokens_per_s"],
                     "cpu_ratio": (peer["cpu"] - start[0]) / (own["cpu"] - start[1]),
                     "fivefold_cpu_ms": 1e3 * (own["cpu"] - start[1]) / (arguments.tokens - few),
                     "prompt_ratio": peer["prompt_time"] / own["prompt_time"], "same_first_tokens": same,
                     "fivefold_peak_mib": own["memory"]["peak"] / 2**20, "peer_peak_rss_mib": peer["peak_rss_mib"]})
        print(f"pair {pair + 1}: transformers {peer['tokens_per_s']:.1f} tokens/s, fivefold "
              f"{own['tokens_per_s']:.1f}, ratio {rows[-1]['ratio']:.2f}, by processor time {rows[-1]['cpu_ratio']:.2f}; first {same} tokens equal", flush=True)
    result = {"date": datetime.date.today().isoformat(), "model": Path(arguments.weights).name,
              "dtype": arguments.dtype, "threads": arguments.threads, "tokens": arguments.tokens,
              "versions": peer["versions"], "load": os.getloadavg(), "pairs": rows,
              "median": {key: statistics.median(row[key] for row in rows) for key in rows[0]}}
    print(f"median: transformers {result['median']['peer']:.1f} tokens/s, fivefold {result['median']['fivefold']:.1f}, "
          f"ratio {result['median']['ratio']:.2f}, by processor time {result['median']['cpu_ratio']:.2f}; time to the first token x {result['median']['prompt_ratio']:.2f}")
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
