#!/usr/bin/env python3
"""guide_test.py PROGRAM GUIDE [--engine] [--update]: runs the commands of the guide and compares what they print.

GUIDE holds a folder a language with the same chapters (en/01-ledger.md, zh/01-ledger.md). Every ```console block of
a chapter is run: lines that begin with "$ " are commands for bash, a command that ends in a backslash goes on in the
next line, and what follows up to the next command is what it must print, on both streams, without blank lines at the
end. All blocks of a chapter run in one new folder, in order, with GUIDE/reference in it. The languages must hold the
same blocks.

Comments right before a block say what it is:
  <!-- file: NAME -->        a ```toml or ```json block that is written to NAME instead of being run
  <!-- exit: N -->           the last command's exit code, when it is not 0
  <!-- varies: PATTERN -->   text that matches is another on every machine or call; may be repeated
  <!-- approximately: X -->  numbers may differ by X of their size: results of floating point on other processors
  <!-- needs: engine -->     not run without --engine

--update writes what the commands print into every language instead of comparing.
"""

import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

COMMENT = re.compile(r"<!-- (file|exit|varies|approximately|needs): (.*) -->")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
COMMAND_TIMEOUT_S = 240


@dataclass
class Block:
    language: str
    first: int                    # index of the line after the opening fence
    lines: list
    notes: dict = field(default_factory=dict)

    def note(self, key, default=None):
        return self.notes.get(key, [default])[-1]

    def is_file(self):
        return "file" in self.notes

    def same(self, other):
        return (self.language, self.lines, self.notes) == (other.language, other.lines, other.notes)


def parse(text):
    """The console and file blocks of a chapter."""
    blocks, notes, block = [], {}, None
    for index, line in enumerate(text.split("\n")):
        if block is not None:
            if line == "```":
                if block.language == "console" or block.is_file():
                    blocks.append(block)
                block, notes = None, {}
            else:
                block.lines.append(line)
        elif line.startswith("```"):
            block = Block(line[3:].strip(), index + 1, [], notes)
        elif match := COMMENT.fullmatch(line):
            notes.setdefault(match[1], []).append(match[2])
        elif line:
            notes = {}
    if block is not None:
        raise ValueError(f"the block of line {block.first} does not end")
    return blocks


def commands(block):
    """[(command lines, expected output lines)] of a console block."""
    result, continued = [], False
    for line in block.lines:
        if continued:
            result[-1][0].append(line)
        elif line.startswith("$ "):
            result.append(([line], []))
        elif not result:
            raise ValueError(f"line {block.first + 1}: output without a command")
        else:
            result[-1][1].append(line)
            continue
        continued = line.endswith("\\")
    return result


def run(command_lines, folder, environment):
    """(exit code, printed lines)"""
    done = subprocess.run(["bash", "-c", "\n".join(command_lines)[2:]], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_TIMEOUT_S)
    return done.returncode, [line.rstrip() for line in done.stdout.rstrip().split("\n") if done.stdout.strip()]


def mask(line, patterns):
    for pattern in patterns:
        line = pattern.sub("<varies>", line)
    return line


def close(expected, actual, share):
    """Equal text around numbers, and numbers that differ by at most `share` of their size."""
    if NUMBER.sub("#", expected) != NUMBER.sub("#", actual):
        return False
    pairs = zip(NUMBER.findall(expected), NUMBER.findall(actual))
    values = [(float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs]
    return all(abs(a - b) <= share * max(abs(a), abs(b)) for a, b in values)


def same_output(expected, actual, block):
    patterns = [re.compile(pattern) for pattern in block.notes.get("varies", [])]
    share = float(block.note("approximately", 0))
    if len(expected) != len(actual):
        return False
    return all(close(mask(a, patterns), mask(b, patterns), share) for a, b in zip(expected, actual))


class Chapter:
    """One chapter in all its languages."""

    def __init__(self, paths, environment, engine):
        self.paths, self.environment, self.engine = paths, environment, engine
        self.texts = [path.read_text() for path in paths]
        self.blocks = [parse(text) for text in self.texts]
        self.problems, self.outputs, self.count = [], [], 0

    def compare_languages(self):
        first = self.blocks[0]
        for path, blocks in zip(self.paths[1:], self.blocks[1:]):
            if len(blocks) != len(first):
                self.problems.append(f"{path}: {len(blocks)} blocks, {self.paths[0]} has {len(first)}")
            for a, b in zip(first, blocks):
                if not a.same(b):
                    self.problems.append(f"{path}:{b.first}: not the block of {self.paths[0]}:{a.first}")
                    break

    def run_blocks(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(self.paths[0].parent.parent / "reference", Path(folder) / "reference")
            environment = {**self.environment, "HOME": folder, "XDG_CACHE_HOME": f"{folder}/.cache"}
            for block in self.blocks[0]:
                if block.note("needs") == "engine" and not self.engine:
                    self.outputs.append(block.lines)
                elif block.is_file():
                    (Path(folder) / block.note("file")).write_text("\n".join(block.lines) + "\n")
                    self.outputs.append(block.lines)
                else:
                    self.outputs.append(self.run_block(block, folder, environment))

    def run_block(self, block, folder, environment):
        where = f"{self.paths[0]}:{block.first}"
        printed, steps = [], commands(block)
        for index, (command, expected) in enumerate(steps):
            code, actual = run(command, folder, environment)
            self.count += 1
            printed += command + actual
            wanted = int(block.note("exit", 0)) if index == len(steps) - 1 else 0
            if code != wanted:
                self.problems.append(f"{where}: {command[0]}: exit code {code}, not {wanted}\n  " + "\n  ".join(actual))
            if not same_output(expected, actual, block):
                difference = difflib.unified_diff(expected, actual, "in the guide", "printed", lineterm="")
                self.problems.append(f"{where}: {command[0]}\n" + "\n".join(difference))
        return printed

    def update(self):
        """Writes what was printed; leaves lines as they are that differ only where they may."""
        for path, text, blocks in zip(self.paths, self.texts, self.blocks):
            lines = text.split("\n")
            for block, output in reversed(list(zip(blocks, self.outputs))):
                if not same_output(block.lines, output, block):
                    lines[block.first:block.first + len(block.lines)] = output
            path.write_text("\n".join(lines))


def program_environment(program, folder):
    """The program under its name on the search path, and nothing of the caller's settings for it."""
    (Path(folder) / "fivefold").symlink_to(Path(program).resolve())
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FIVEFOLD")}
    return {**environment, "PATH": f"{folder}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", "NO_COLOR": "1",
            "COLUMNS": "120"}


def main(arguments):
    flags = {argument for argument in arguments if argument.startswith("--")}
    program, guide = [argument for argument in arguments if argument not in flags]
    languages = sorted(path for path in Path(guide).iterdir() if any(path.glob("*.md")))
    names = sorted({path.name for language in languages for path in language.glob("*.md")})
    problems, count = [], 0
    with tempfile.TemporaryDirectory() as folder:
        environment = program_environment(program, folder)
        for name in names:
            chapter = Chapter([language / name for language in languages], environment, "--engine" in flags)
            chapter.run_blocks()
            count += chapter.count
            if "--update" in flags:
                chapter.update()
            else:
                chapter.compare_languages()
                problems += chapter.problems
    if not count:
        problems.append(f"{guide}: no commands")
    for problem in problems:
        print(problem)
    print(f"guide: {count} commands of {len(names)} chapters in {len(languages)} languages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
