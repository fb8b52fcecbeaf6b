#!/usr/bin/env python3
"""A trainer as a user of Transformers would write it, with what peer_torch.py has no switch for: the GPT-2 model and
accumulation of gradients. Takes the settings of a BenchCase (KEY=NUMBER); one process; prints one JSON line."""

import json
import resource
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

DEFAULTS = dict(hidden=512, layers=8, heads=8, kv_heads=4, ffn=1408, vocab=8192, sequence=512, micro=4, accumulation=1,
                threads=1, bf16=0, gpt2=0, recompute_every=0, steps=6)


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def build(c):
    if c["gpt2"]:
        return GPT2LMHeadModel(GPT2Config(
            vocab_size=c["vocab"], n_positions=c["sequence"], n_embd=c["hidden"], n_layer=c["layers"],
            n_head=c["heads"], n_inner=c["ffn"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
            attn_implementation="sdpa"))
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=c["vocab"], hidden_size=c["hidden"], intermediate_size=c["ffn"], num_hidden_layers=c["layers"],
        num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"], max_position_embeddings=c["sequence"],
        use_cache=False, tie_word_embeddings=False, attn_implementation="sdpa"))


def main():
    c = dict(DEFAULTS, **{key: int(value) for key, value in (word.split("=") for word in sys.argv[1:])})
    torch.set_num_threads(c["threads"])
    base = peak_mib()
    torch.manual_seed(0)
    model = build(c)
    if c["recompute_every"]:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    generator = torch.Generator().manual_seed(1)

    def step():
        optimizer.zero_grad(set_to_none=True)
        for _ in range(c["accumulation"]):
            ids = torch.randint(0, c["vocab"], (c["micro"], c["sequence"]), generator=generator)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(c["bf16"])):
                loss = model(input_ids=ids, labels=ids).loss / c["accumulation"]
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step()
    seconds = []
    for _ in range(c["steps"]):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"step_s": sorted(seconds)[len(seconds) // 2], "peak_rss_mib": peak_mib(), "base_rss_mib": base}))


if __name__ == "__main__":
    main()
