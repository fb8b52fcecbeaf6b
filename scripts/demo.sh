#!/usr/bin/env bash
# The short demonstration that `make demo` runs after the build: plans, trains and reconciles the run of
# configs/runs/demo.toml on the King James Version of the Bible, which the Debian package bible-kjv brings. The first
# call also measures the machine. The text and the run are kept in runs/; a second call trains again from the start, in
# the same folder.
set -euo pipefail
cd "$(dirname "$0")/.."

fivefold=${FIVEFOLD:-build/fivefold}
config=configs/runs/demo.toml
text=runs/kjv
machine=${FIVEFOLD_MACHINE:-${XDG_CACHE_HOME:-$HOME/.cache}/fivefold/this-machine.toml}

# One verse a line, without its reference; every 400th verse is kept for validation.
write_text() {
  if [[ -s $text/train.txt && -s $text/validation.txt ]]; then
    return
  fi
  if ! command -v bible >/dev/null; then
    echo "demo: the text comes from the package bible-kjv, which is not installed" >&2
    exit 2
  fi
  mkdir -p "$text"
  bible -f gen1:1-rev22:21 </dev/null 2>/dev/null | sed 's/^[^ ]* //' >"$text/verses.tmp"
  awk 'NR % 400 == 0' "$text/verses.tmp" >"$text/validation.txt"
  awk 'NR % 400 != 0' "$text/verses.tmp" >"$text/train.tmp"
  rm "$text/verses.tmp"
  mv "$text/train.tmp" "$text/train.txt"
}

show() {
  printf '\n$ fivefold %s\n' "$*"
  "$fivefold" "$@"
}

write_text
if [[ ! -e $machine ]]; then
  show calibrate
fi
show plan "$config" --gpus 2
rm -rf runs/demo
# Ends with the reconciliation.
show train "$config"
printf '\nThe tables again: %s reconcile runs/demo\n' "$fivefold"
