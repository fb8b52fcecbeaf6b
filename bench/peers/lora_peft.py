#!/usr/bin/env python3
"""LoRA fine-tuning as a user of Transformers and PEFT would write it: a base in bf16, adapters on every linear of the
layers as PEFT makes them, fused AdamW. Takes KEY=VALUE settings; prints one JSON line."""

import json
import resource
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
DEFAULTS = dict(weights="", sequence="256", micro="4", rank="8", threads="2", checkpointing="0", adapter="fp32",
                steps="5")


def peak_rss():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    c = dict(DEFAULTS, **dict(word.split("=", 1) for word in sys.argv[1:]))
    torch.set_num_threads(int(c["threads"]))
    base = peak_rss()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(c["weights"], dtype=torch.bfloat16, attn_implementation="sdpa")
    model.config.use_cache = False
    adapter = LoraConfig(r=int(c["rank"]), lora_alpha=2 * int(c["rank"]), lora_dropout=0.0, target_modules=TARGETS,
                         task_type="CAUSAL_LM")
    model = get_peft_model(model, adapter, autocast_adapter_dtype=c["adapter"] == "fp32")
    if c["checkpointing"] == "1":
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, weight_decay=0.0, fused=True)
    generator = torch.Generator().manual_seed(1)
    wall, cpu = [], []
    for _ in range(int(c["steps"]) + 1):  # the first one is not counted
        ids = torch.randint(0, model.config.vocab_size, (int(c["micro"]), int(c["sequence"])), generator=generator)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        wall.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - begin_cpu)
    print(json.dumps({"step_s": sorted(wall[1:])[len(wall[1:]) // 2], "cpu_step_s": sum(cpu[1:]) / len(cpu[1:]),
                      "peak_rss": peak_rss(), "base_rss": base, "trained": sum(p.numel() for p in trained)}))


if __name__ == "__main__":
    main()
