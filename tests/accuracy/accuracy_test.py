#!/usr/bin/env python3
"""accuracy_test.py PROGRAM PAGE SHARED [--update]: the scores in docs/accuracy.md are those of `fivefold validate` on
SHARED/published_runs (core.csv, and files of rows that state an outcome). FIVEFOLD_SHARED of the environment goes before
SHARED.

Fails when a figure of the page is off by more than 0.1 points in either direction, or a source comes or goes: an error
that grew is a fault, and one that fell must be written down, or it could grow back unseen. --update writes the page
instead; read the difference before committing it. Exit code 77: the runs are not there.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

TOLERANCE = 0.1  # points
BLOCK = re.compile(r"<!-- scores: (\S+) -->\n(.*?)<!-- end -->\n", re.DOTALL)
# Rows that state an outcome are in no core.csv, which holds runs that went well.
OUTCOMES = "fms_acceleration_finetune.csv"


def validate(program, csv, *flags):
    run = subprocess.run([program, "validate", str(csv), "--json", *flags], capture_output=True, text=True, timeout=300, check=True)
    return json.loads(run.stdout)["sources"]


def both(score):
    return f"{score['median_abs_pct']:.1f} / {score['p90_abs_pct']:.1f}" if score["n"] else ""


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|---|" + "--:|" * (len(header) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def memory_block(sources):
    rows = []
    for source in sources:
        for name, score in [(source["source"], source["memory"])] + [
                (f"{source['source']}: {part['part']}", part) for part in source["memory_parts"]]:
            if score["n"]:
                halves = [both(source["memory_fitted_half"]), both(source["memory_held_out_half"])]
                rows.append([name, str(score["n"]), both(score), f"{score['bias_pct']:+.1f}",
                             *(halves if score is source["memory"] else ["", ""])])
    return table(["source", "rows", "median / p90 %", "bias %", "fitted half", "other half"], rows)


def order_cells(score):
    return [f"{score['rank_correlation']:.2f}", f"{score['regret_pct']:.1f}"] if "rank_correlation" in score else ["", ""]


def throughput_block(sources, anchored):
    rows = []
    known = {source["source"]: source["throughput"] for source in anchored}
    for source in sources:
        score = source["throughput"]
        if not score["n"]:
            continue
        rows.append([source["source"], str(score["n"]), both(score), f"{score['bias_pct']:+.1f}",
                     both(source["throughput_fitted_half"]), both(source["throughput_held_out_half"]),
                     *order_cells(score), both(known[source["source"]])])
        for busy in source["throughput_busy"]:
            rows.append([f"{source['source']}: MFU of {100 * busy['least_mfu']:.0f} % or more", str(busy["n"]), both(busy),
                         f"{busy['bias_pct']:+.1f}", "", "", *order_cells(busy), ""])
    return table(["source", "rows", "median / p90 %", "bias %", "fitted half", "other half", "order", "regret p90 %",
                  "anchored"], rows)


def fit_block(sources):
    return table(["source", "rows", "failed", "right %", "false fit %", "false OOM %"],
                 [[source["source"], str(fit["n"]), str(fit["failed"])] +
                  [f"{100 * fit[key]:.1f}" for key in ("accuracy", "false_fit", "false_oom")]
                  for source in sources for fit in [source["fit"]] if fit["n"]])


def skipped_block(sources):
    rows = []
    for source in sources:
        for figure, prefix in [("memory", ""), ("throughput", "throughput_")]:
            measured = source[prefix + "measured"]
            rows += [[source["source"], f"{figure}: {reason}", str(count), f"{100 * count / measured:.1f}"]
                     for reason, count in source[prefix + "reasons"].items()]
    return table(["source", "reason", "rows", "of the source %"], rows)


def compare(name, page, now):
    """Problems: lines by their first cell (and the reason), figures within TOLERANCE."""
    def lines(text):
        cells = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines()]
        words = 2 if name == "skipped" else 1
        return {tuple(row[:words]): " ".join(row[words:]) for row in cells[2:]}

    old, new = lines(page), lines(now)
    problems = [f"{name}: {', '.join(key)}: only {'in the page' if key in old else 'printed'}"
                for key in old.keys() ^ new.keys()]
    for key in old.keys() & new.keys():
        figures = [[float(figure) for figure in re.findall(r"[-+]?[\d.]+", text)] for text in (old[key], new[key])]
        if len(figures[0]) != len(figures[1]) or any(abs(a - b) > TOLERANCE + 1e-9 for a, b in zip(*figures)):
            problems.append(f"{name}: {', '.join(key)}: page {old[key]}, now {new[key]}")
    return problems


def main():
    program, page, update = sys.argv[1], Path(sys.argv[2]), "--update" in sys.argv[4:]
    folder = Path(os.environ.get("FIVEFOLD_SHARED", sys.argv[3])) / "published_runs"
    if not (folder / "core.csv").exists():
        print(f"{folder}: no core.csv")
        return 77
    core = validate(program, folder / "core.csv")
    blocks = {"memory": memory_block(core), "throughput": throughput_block(core, validate(program, folder / "core.csv", "--anchor")),
              "skipped": skipped_block(core)}
    if (folder / OUTCOMES).exists():
        blocks["fit"] = fit_block(validate(program, folder / OUTCOMES))
    text = page.read_text()
    if update:
        page.write_text(BLOCK.sub(lambda m: f"<!-- scores: {m[1]} -->\n{blocks.get(m[1], m[2])}<!-- end -->\n", text))
        return 0
    in_page = {match[1]: match[2] for match in BLOCK.finditer(text)}
    problems = [f"the page has no scores of {name}" for name in blocks.keys() - in_page.keys()]
    for name in blocks.keys() & in_page.keys():
        problems += compare(name, in_page[name], blocks[name])
    for problem in sorted(problems):
        print(problem)
    if problems:
        print("an error that grew: find out why. One that fell: write the page anew with --update")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
