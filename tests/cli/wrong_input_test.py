#!/usr/bin/env python3
"""Every wrong configuration, config.json, safetensors file, token file, tokenizer, reference and checkpoint of a table
is refused with its error and exit code 2 before any rank starts; none crashes or hangs.

usage: wrong_input_test.py FIVEFOLD

Each row names a fault, how to plant it in a fresh copy of a good input, and what the error must say.
"""
import json
import pathlib
import shutil
import struct
import sys
import tempfile

from wrong_inputs import (ASKED, GOOD_CONFIG, GOOD_MODEL, LIMIT_S, SHAPES, Input, changed, chat, checkpoint, cut, flip,
                          generate, gguf, jsonl, model, model_text, pack, reference, reshaped, run, safetensors,
                          setting, token_pair, tokenizer, tokens, toml, weights, without)

CASES = [
    # the configuration file
    ("missing file", lambda _: ["train", "nowhere.toml"], ["nowhere.toml"]),
    ("not TOML", toml("[run\nname = 1"), ["run.toml", "1"]),
    ("empty file", toml(""), ["model.name"]),
    ("binary file", toml("\x00\x01\x02"), ["run.toml"]),
    ("unknown section", toml(GOOD_CONFIG + "[paralel]\ndp = 1\n"), ["paralel", "parallel"]),
    ("unknown key", toml("dpp = 2", "dp = 2"), ["dpp", "dp"]),
    ("wrong type", toml('dp = "two"', "dp = 2"), ["parallel.dp"]),
    ("key twice", toml("dp = 2\ndp = 3", "dp = 2"), ["run.toml"]),
    ("unknown choice", setting("precision.compute=bf61"), ["precision.compute", "bf16"]),
    ("negative", setting("batch.sequence=-1"), ["batch.sequence"]),
    ("zero ranks", setting("parallel.dp=0"), ["parallel.dp"]),
    ("too large a number", setting("batch.sequence=99999999999999999999"), ["batch.sequence"]),
    ("not KEY=VALUE", setting("batch.sequence"), ["batch.sequence"]),
    ("ZeRO 4", setting("parallel.zero=4"), ["parallel.zero"]),
    ("global batch that does not divide", setting("batch.global=5"), ["batch.global", "4", "6"]),
    ("shard size that does not divide", setting("parallel.shard_size=3"), ["shard_size"]),
    ("heads that tp does not divide", setting("parallel.tp=3"), ["parallel.tp"]),
    ("more stages than layers", setting("parallel.pp=9"), ["parallel.pp"]),
    # 2 layers, 2 query heads and 1 KV head, 32 columns, 64 positions; 4 sequences of 16 tokens
    ("stages beyond embedding, layers and head", setting("parallel.pp=5", "parallel.dp=1"), ["parallel.pp", "pp = 4"]),
    ("more ranks than heads", setting("parallel.tp=4"), ["parallel.tp", "tp = 2"]),
    ("heads over tp and Ulysses", setting("parallel.tp=2", "parallel.cp=2", "parallel.cp_kind=ulysses"),
     ["parallel.cp", "cp_kind = ring"]),
    ("heads over Ulysses alone", setting("parallel.cp=4", "parallel.cp_kind=ulysses"), ["parallel.cp", "cp = 2"]),
    ("chunks without a pipeline", setting("parallel.vpp=2"), ["parallel.vpp", "pp = 2"]),
    ("one chunk of an interleaved schedule", setting("parallel.pp=2", "parallel.schedule=interleaved"),
     ["parallel.vpp", "vpp = 2"]),
    ("one chunk of a V", setting("parallel.pp=2", "parallel.schedule=zbv"), ["parallel.vpp", "vpp = 2"]),
    ("two chunks of 1F1B", setting("parallel.pp=2", "parallel.vpp=2"), ["parallel.vpp", "interleaved"]),
    ("more chunks than places", setting("parallel.dp=1", "parallel.pp=3", "parallel.vpp=2", "parallel.schedule=zbv"),
     ["parallel.vpp", "pp = 2 with vpp = 2"]),
    ("microbatches that pp does not divide",
     setting("parallel.dp=1", "parallel.pp=2", "parallel.vpp=2", "parallel.schedule=interleaved", "batch.global=3"),
     ["batch.global", "2 or 4"]),
    ("too few microbatches for DualPipeV",
     setting("parallel.pp=2", "parallel.vpp=2", "parallel.schedule=dualpipev"), ["batch.global", "8 or more"]),
    ("shards over ranks of tp", setting("parallel.dp=1", "parallel.tp=2", "parallel.shard_size=2"),
     ["parallel.shard_size", "shard_size = 1"]),
    ("shards at level 0", setting("parallel.zero=0", "parallel.shard_size=2"), ["parallel.shard_size", "zero = 1"]),
    ("expert ranks of a dense model", setting("parallel.ep=2"), ["parallel.ep", "ep = 1"]),
    ("more threads than a process takes", setting("parallel.dp=200", "parallel.tp=2", "batch.global=200"),
     ["parallel.dp", "dp = 128"]),
    ("an unknown schedule", setting("parallel.schedule=1f2b"), ["parallel.schedule", "1f1b"]),
    ("an unknown kind of context parallelism", setting("parallel.cp_kind=rings"), ["parallel.cp_kind", "ring"]),
    ("sizes that blocks of fp8 scales do not divide", setting("precision.compute=fp8", "precision.fp8=block"), ["128", "bf16"]),
    ("adapter of a linear that is not there", setting("method.kind=lora", "method.targets=q_prj"), ["method.targets", "q_proj"]),
    ("another backend", setting("comm.backend=nccl"), ["comm.backend", "local"]),
    ("bf16 gradients under accumulation", setting("precision.grads=bf16"), ["precision.grads", "fp32"]),
    ("a context beyond the model's", setting("batch.sequence=128"), ["batch.sequence", "64"]),
    ("no length", toml("", "steps = 2\n"), ["run.steps"]),
    ("two lengths", toml("steps = 2\ntokens = 100000\n", "steps = 2\n"), ["run.tokens"]),
    ("no data", toml("", '[data]\ntrain = "text.txt"\n'), ["data.train"]),
    ("a run name that leaves its folder", setting('run.name="../x"'), ["run.name"]),
    ("an unknown model", setting("model.config=", "model.name=lama-3.1-8b"), ["lama-3.1-8b", "llama-3.1-8b"]),
    ("unknown hardware", setting("hardware.name=h1000"), ["h1000"]),
    ("a bad size", setting("limits.memory=12parsecs"), ["limits.memory"]),
    ("an unknown command", lambda _: ["trian", "run.toml"], ["trian", "train"]),
    ("an unknown option", lambda _: ["train", "run.toml", "--fast"], ["--fast"]),
    # config.json
    ("model: missing", setting("model.config=nowhere.json"), ["nowhere.json"]),
    ("model: not JSON", model_text("{"), ["config.json"]),
    ("model: an array", model_text("[1]"), ["config.json"]),
    ("model: deep nesting", model_text("[" * 100000), ["config.json"]),
    ("model: unknown architecture", model(architectures=["LamaForCausalLM"]), ["LamaForCausalLM", "LlamaForCausalLM"]),
    ("model: missing key", model(hidden_size=None), ["hidden_size"]),
    ("model: wrong type", model(num_hidden_layers="two"), ["num_hidden_layers"]),
    ("model: negative", model(intermediate_size=-4), ["intermediate_size"]),
    ("model: huge", model(vocab_size=10**15), ["vocab_size"]),
    ("model: KV heads do not divide heads", model(num_key_value_heads=3), ["num_key_value_heads"]),
    ("model: unknown activation", model(hidden_act="silly"), ["hidden_act"]),
    ("model: experts are for the planner only", model(architectures=["MixtralForCausalLM"], model_type="mixtral",
                                                      num_local_experts=4, num_experts_per_tok=2), ["model"]),
    ("model: a vocabulary below the tokenizer's", model(vocab_size=100), ["data.tokenizer", "257"]),
    # weights
    ("weights: missing folder", setting("model.weights=nowhere"), ["nowhere"]),
    ("weights: empty file", weights(lambda h, d: b""), ["model.safetensors"]),
    ("weights: header beyond the file", weights(lambda h, d: struct.pack("<Q", 1 << 20) + b"{}"), ["model.safetensors"]),
    ("weights: huge header", weights(lambda h, d: struct.pack("<Q", 1 << 62) + b"{}"), ["header"]),
    ("weights: header is not JSON", weights(lambda h, d: struct.pack("<Q", 2) + b"{x" + d), ["model.safetensors"]),
    ("weights: truncated data", weights(lambda h, d: pack(h, d[:-4])), ["model.safetensors"]),
    ("weights: a missing tensor", weights(lambda h, d: pack(*safetensors(without(dict(SHAPES), "model.norm.weight")))),
     ["model.norm.weight"]),
    ("weights: another shape", weights(lambda h, d: reshaped("model.norm.weight", [17])), ["model.norm.weight", "[17]"]),
    ("weights: shape and bytes disagree", weights(lambda h, d: pack(changed(h, "model.norm.weight", "shape", [15]), d)),
     ["model.norm.weight"]),
    ("weights: negative shape", weights(lambda h, d: pack(changed(h, "model.norm.weight", "shape", [-16]), d)),
     ["model.norm.weight"]),
    ("weights: overflowing shape",
     weights(lambda h, d: pack(changed(h, "model.norm.weight", "shape", [1 << 62, 1 << 62]), d)), ["model.norm.weight"]),
    ("weights: unknown dtype", weights(lambda h, d: pack(changed(h, "model.norm.weight", "dtype", "F31"), d)), ["F31"]),
    ("weights: integers", weights(lambda h, d: pack(changed(h, "model.norm.weight", "dtype", "I32"), d)),
     ["model.norm.weight", "int32"]),
    ("weights: offsets overlap",
     weights(lambda h, d: pack(changed(h, "model.norm.weight", "data_offsets", [0, 64]), d)), ["model.safetensors"]),
    # token files and texts
    ("data: missing file", setting("data.train=nowhere.txt"), ["nowhere.txt"]),
    ("data: a text without a sample", lambda i: (i.write("short.txt", "abc"),
                                               ["train", "run.toml", "--set", "data.train=short.txt"])[1], ["sequence"]),
    ("data: bad magic", tokens(magic=b"MMIDIDY\x00\x00"), ["tokens.idx"]),
    ("data: another version", tokens(version=9), ["tokens.idx", "9"]),
    ("data: unknown dtype code", tokens(code=77), ["tokens.idx", "77"]),
    ("data: truncated index", tokens(cut_idx=9), ["tokens.idx"]),
    ("data: truncated tokens", tokens(cut_bin=4), ["tokens.bin"]),
    ("data: a negative length", tokens(lengths=[-200]), ["tokens.idx"]),
    ("data: a pointer out of range", tokens(pointers=[1 << 40]), ["tokens.idx"]),
    ("data: a wrong document index", tokens(documents=[0, 7]), ["tokens.idx"]),
    ("data: JSONL that is not JSON", jsonl('{"text": "fine"}\n{"text": \n'), ["text.jsonl:2"]),
    ("data: JSONL without text", jsonl('{"txt": "fine"}\n'), ["text.jsonl:1"]),
    ("chat: a line that is not JSON", chat('{"prompt": "a", "completion": "b"}\n{"prompt"\n'), ["chat.jsonl:2"]),
    ("chat: a role that nobody has", chat('{"messages": [{"role": "tool", "content": ""}]}\n'),
     ["chat.jsonl:1", "tool"]),
    ("chat: nothing to learn from", chat('{"messages": [{"role": "user", "content": "a"}]}\n'), ["assistant"]),
    ("chat: no template beside bytes", chat('{"prompt": "a", "completion": "b"}\n', "auto"),
     ["data.chat_template", "zephyr"]),
    ("chat: unknown template", chat('{"prompt": "a", "completion": "b"}\n', "llama3"),
     ["data.chat_template", "llama-3"]),
    ("gguf: not GGUF", gguf(b"GGML" + bytes(60)), ["model.gguf", "GGUF"]),
    ("gguf: cut off", gguf(b"GGUF" + struct.pack("<IQQ", 3, 1, 1)), ["model.gguf"]),
    ("gguf: no model", gguf(b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(8)), ["general.architecture"]),
    ("tokenizer: missing", setting("data.tokenizer=nowhere.json"), ["nowhere.json"]),
    ("tokenizer: not JSON", tokenizer("{"), ["tokenizer.json"]),
    ("tokenizer: unsupported model", tokenizer('{"model": {"type": "Unigram", "vocab": []}}'), ["Unigram"]),
    ("tokenizer: merge of unknown tokens",
     tokenizer('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}'), ["tokenizer.json", "merge"]),
    # references
    ("reference: missing", lambda _: ["check", "--reference", "nowhere"], ["nowhere"]),
    ("reference: batch is not JSON", reference(batch="]"), ["batch.json"]),
    ("reference: a token beyond the vocabulary", reference(batch='{"input_ids": [[999]], "labels": [[1]]}'), ["999"]),
    ("reference: ragged rows", reference(batch='{"input_ids": [[1, 2], [3]], "labels": [[1, 2], [3]]}'), ["input_ids"]),
    ("reference: empty rows", reference(batch='{"input_ids": [[]], "labels": [[]]}'), ["input_ids", "empty"]),
    ("reference: a target that is -100 only in 64 bits",
     reference(batch='{"input_ids": [[1]], "targets": [[18446744073709551516]]}'), ["18446744073709551516"]),
    ("reference: lengths that are no list",
     reference(batch='{"input_ids": [[1]], "labels": [[1]], "document_lengths": [1]}'), ["document_lengths"]),
    ("reference: deep nesting", reference(expected="[" * 200000), ["expected.json", "nested"]),
    ("reference: no loss", reference(expected='{"grad_norm": 1}'), ["expected.json: loss"]),
    ("reference: damaged gradients", reference(grads=b"\x01\x02"), ["grads.safetensors"]),
    ("reference: fewer rows than there are", reference(
        batch='{"input_ids": [[1, 2], [3, 4]], "labels": [[1, 2], [3, 4]]}', arguments=["--set", "batch.global=1"]),
     ["batch.global"]),
    # checkpoints
    ("checkpoint: a flipped byte", checkpoint(lambda c: flip(c / "rank-00001.safetensors", -5)), ["rank-00001.safetensors"]),
    ("checkpoint: a truncated shard", checkpoint(lambda c: cut(c / "rank-00000.safetensors", 1000)),
     ["rank-00000.safetensors"]),
    ("checkpoint: a missing shard", checkpoint(lambda c: (c / "rank-00001.safetensors").unlink()),
     ["rank-00001.safetensors"]),
    ("checkpoint: a missing manifest", checkpoint(lambda c: (c / "manifest.json").unlink()), ["manifest.json"]),
    ("checkpoint: a truncated manifest", checkpoint(lambda c: cut(c / "manifest.json", 200)), ["manifest.json"]),
    ("checkpoint: an edited manifest", checkpoint(lambda c: (c / "manifest.json").write_text(
        (c / "manifest.json").read_text().replace('"step": 2', '"step": 3').replace('"step":2', '"step":3'))),
     ["manifest.json"]),
    ("checkpoint: another model", checkpoint(lambda c: None, "train", "run.toml", "--set", "run.steps=4", "--set",
                                             "model.config=other.json"), ["other.json"]),
    ("checkpoint: converted although damaged",
     checkpoint(lambda c: flip(c / "rank-00000.safetensors", -5), "convert", "runs/run", "hub"), ["rank-00000.safetensors"]),
    ("checkpoint: resume from nowhere", setting("checkpoint.resume=nowhere"), ["nowhere"]),
    # generate: the model has 64 positions and the vocabulary of bytes
    ("generate: no prompt", generate("--tokenizer", "bytes"), ["--prompt", "--prompt-file"]),
    ("generate: two prompts", generate(*ASKED, "--prompt-file", "text.txt"), ["--prompt"]),
    ("generate: a prompt file that is not there", generate("--prompt-file", "nowhere.txt"), ["nowhere.txt"]),
    ("generate: no folder", generate(*ASKED, weights="nowhere"), ["nowhere", "config.json"]),
    ("generate: a folder without weights", generate(*ASKED, weights="."), ["holds no weights"]),
    ("generate: no tokenizer", generate("--prompt", "abc"), ["tokenizer.json", "--tokenizer"]),
    ("generate: more tokens than positions", generate(*ASKED, "--max-tokens", "62"), ["--max-tokens", "61"]),
    ("generate: a prompt without room", generate("--tokenizer", "bytes", "--prompt", "a" * 64), ["--prompt", "63"]),
    ("generate: no new tokens", generate(*ASKED, "--max-tokens", "0"), ["--max-tokens"]),
    ("generate: a type it does not compute in", generate(*ASKED, "--dtype", "fp8"), ["--dtype", "fp32"]),
    ("generate: a negative temperature", generate(*ASKED, "--temperature", "-1"), ["--temperature"]),
    ("generate: a temperature that is none", generate(*ASKED, "--temperature", "nan"), ["--temperature"]),
    ("generate: draws that nobody asked for", generate(*ASKED, "--top-k", "3"), ["--top-k", "--temperature 1"]),
    ("generate: no tokens to draw from", generate(*ASKED, "--temperature", "1", "--top-k", "0"), ["--top-k"]),
    ("generate: a share above one", generate(*ASKED, "--temperature", "1", "--top-p", "1.5"), ["--top-p"]),
    ("generate: no threads", generate(*ASKED, "--threads", "0"), ["--threads"]),
    ("generate: an unknown model", generate(*ASKED, "--model", "lama-3.1-8b"), ["lama-3.1-8b", "llama-3.1-8b"]),
    ("generate: weights of another model", generate(*ASKED, "--model", "other.json", files={
        "other.json": json.dumps(GOOD_MODEL | {"hidden_size": 32})}), ["shape", "[257, 32]"]),
    ("generate: a tokenizer beyond the vocabulary", generate(*ASKED, files={
        "model/config.json": json.dumps(GOOD_MODEL | {"vocab_size": 97})}), ["--tokenizer", "97"]),
    ("generate: an end that is no token", generate(*ASKED, files={
        "model/generation_config.json": '{"eos_token_id": "end"}'}), ["generation_config.json", "eos_token_id"]),
    ("generate: experts", generate(*ASKED, files={"model/config.json": json.dumps(GOOD_MODEL | {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
        "num_experts_per_tok": 2})}), ["experts"]),
    ("generate: a damaged checkpoint",
     checkpoint(lambda c: flip(c / "rank-00000.safetensors", -5), "generate", "runs/run", "--prompt", "abc"),
     ["rank-00000.safetensors"]),
    ("reconcile: no run", lambda _: ["reconcile", "nowhere"], ["nowhere"]),
]


def main():
    failures = 0
    for name, plant, words in CASES:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="fivefold-wrong-"))
        try:
            arguments = plant(Input(folder))
            result = run(folder, *arguments)
            missing = [word for word in words if word not in result.stderr]
            if result.returncode != 2 or missing:
                failures += 1
                print(f"FAIL {name}: exit {result.returncode}, missing {missing}\n  {' '.join(arguments)}\n"
                      f"  {result.stderr.strip()[:600]}")
        except subprocess.TimeoutExpired:
            failures += 1
            print(f"FAIL {name}: hangs")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    # The good input, so that no row passes because everything is refused.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fivefold-right-"))
    Input(folder)
    good = run(folder, "train", "run.toml", "--quiet", "--set", "model.weights=model")
    shutil.rmtree(folder, ignore_errors=True)
    if good.returncode != 0:
        failures += 1
        print(f"FAIL the good input: exit {good.returncode}: {good.stderr[:600]}")
    print(f"{len(CASES)} wrong inputs, {failures} failures")
    return 1 if failures else 0


sys.exit(main())
