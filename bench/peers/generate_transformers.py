#!/usr/bin/env python3
"""Continues a text with transformers' `model.generate`, greedy, and prints one JSON line: what the peer of
generate_compare.py measures. Seconds are those of one call after one that warms up; tokens per second leave out the
first new token, which waits for the prompt."""

import argparse
import json
import resource
import time

import torch
import transformers


class Clock(transformers.generation.streamers.BaseStreamer):
    """When each token came."""

    def __init__(self):
        self.times = []

    def put(self, value):
        self.times.append(time.perf_counter())

    def end(self):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--dtype", choices=["bf16", "fp32"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[arguments.dtype]
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.weights, dtype=dtype).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.weights)
    inputs = tokenizer(arguments.prompt, return_tensors="pt")

    def generate(tokens):
        clock = Clock()
        start = time.perf_counter()
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=tokens, pad_token_id=0, streamer=clock)
        # The first entry is the prompt.
        return ids[0, inputs["input_ids"].shape[1]:].tolist(), [t - start for t in clock.times[1:]]

    generate(8)
    ids, times = generate(arguments.tokens)
    print(json.dumps({"ids": ids, "prompt_time": times[0],
                      "tokens_per_s": (len(times) - 1) / (times[-1] - times[0]),
                      "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                      "versions": {"torch": torch.__version__, "transformers": transformers.__version__}}))


if __name__ == "__main__":
    main()
