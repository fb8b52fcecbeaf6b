#!/usr/bin/env python3
"""`fivefold generate` from outside: a tiny model learns a sentence by heart and says it, from its run, a checkpoint and
a Hub folder alike; draws, the length, the end of a text, and what is printed.

usage: generate_test.py FIVEFOLD
"""
import json
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
SENTENCE = "Grüße an alle. "
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 257,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
}
RUN = """[run]
name = "fox"
steps = 120
[model]
config = "config.json"
[batch]
micro = 4
sequence = 64
[precision]
compute = "fp32"
[optimizer]
lr = 5e-3
[data]
train = "text.txt"
"""
failures = 0


def check(condition, what, *shown):
    global failures
    if not condition:
        failures += 1
        print("FAIL", what, *shown)


def run(folder, *arguments):
    result = subprocess.run([PROGRAM, *arguments], cwd=folder, capture_output=True, timeout=120,
                            stdin=subprocess.DEVNULL)
    check(result.returncode == 0, arguments, result.stderr.decode(errors="replace")[-600:])
    return result


def generate(folder, *arguments):
    return json.loads(run(folder, "generate", *arguments, "--json").stdout)


def main():
    with tempfile.TemporaryDirectory(prefix="fivefold-generate-") as name:
        folder = pathlib.Path(name)
        (folder / "config.json").write_text(json.dumps(MODEL))
        (folder / "text.txt").write_text(SENTENCE * 200)
        (folder / "run.toml").write_text(RUN)
        run(folder, "train", "run.toml", "--quiet")

        prompt = ("--prompt", SENTENCE * 2 + "Gr", "--max-tokens", "60", "--dtype", "fp32")
        said = generate(folder, "runs/fox", *prompt)
        check(said["text"].startswith(SENTENCE[2:]), "the sentence", said["text"])
        check(len(said["ids"]) == 60 and not said["stopped"], "length", said["ids"])
        check(said["memory"]["accounts"]["kv_cache"] == said["memory"]["predicted"]["kv_cache"], "cache", said["memory"])
        check(said["memory"]["accounts"]["params"] == said["memory"]["predicted"]["params"], "weights", said["memory"])
        check(generate(folder, "runs/fox/checkpoints/step-120", *prompt)["ids"] == said["ids"], "from a checkpoint")
        check(generate(folder, "runs/fox/checkpoints", *prompt)["ids"] == said["ids"], "from a folder of checkpoints")
        run(folder, "convert", "runs/fox", "hub", "--dtype", "fp32")
        hub = generate(folder, "hub", *prompt, "--tokenizer", "bytes")
        check(hub["ids"] == said["ids"], "from a Hub folder", hub["text"])
        check(generate(folder, "runs/fox", *prompt, "--model", "config.json", "--threads", "1")["ids"] == said["ids"],
              "with the model named, on one thread")

        # The text goes to stdout as it comes, in whole characters; remarks to stderr.
        plain = run(folder, "generate", "runs/fox", *prompt)
        check(plain.stdout.decode() == said["text"] + "\n", "printed", plain.stdout)
        check(b"tokens/s" in plain.stderr and b"kv_cache" in plain.stderr, "remarks", plain.stderr)
        check(run(folder, "generate", "runs/fox", *prompt, "--quiet").stderr == b"", "quiet")
        (folder / "prompt.txt").write_text(prompt[1])
        check(generate(folder, "runs/fox", "--prompt-file", "prompt.txt", *prompt[2:])["ids"] == said["ids"],
              "a prompt from a file")

        # Draws: a function of the seed; the likeliest token alone is the greedy text.
        drawn = generate(folder, "runs/fox", *prompt, "--temperature", "3", "--seed", "5")
        check(drawn["ids"] == generate(folder, "runs/fox", *prompt, "--temperature", "3", "--seed", "5")["ids"], "seed")
        check(drawn["ids"] != generate(folder, "runs/fox", *prompt, "--temperature", "3", "--seed", "6")["ids"], "seeds")
        check(generate(folder, "runs/fox", *prompt, "--temperature", "3", "--top-k", "1")["ids"] == said["ids"], "top-k")
        check(generate(folder, "runs/fox", *prompt, "--temperature", "1", "--top-p", "1e-6")["ids"] == said["ids"],
              "top-p")

        # The ids that end a text: one that config.json names, or a list in generation_config.json.
        (folder / "hub" / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, ord(".")]}))
        ended = generate(folder, "hub", *prompt, "--tokenizer", "bytes")
        check(ended["stopped"] and ended["text"] == SENTENCE[2:].split(".")[0] + ".", "the end", ended["text"])

        # Without --max-tokens what the model has room for, up to 256.
        room = generate(folder, "runs/fox", "--prompt", "G" * 250)
        check(len(room["ids"]) == 6, "room", room["ids"])
    print(f"{failures} failures")
    return 1 if failures else 0


sys.exit(main())
