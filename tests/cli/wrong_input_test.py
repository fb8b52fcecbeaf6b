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
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
LIMIT_S = 60

GOOD_CONFIG = """[run]
name = "run"
steps = 2
[model]
config = "model/config.json"
[parallel]
dp = 2
zero = 3
[batch]
global = 4
micro = 1
sequence = 16
[data]
train = "text.txt"
"""
GOOD_MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 257,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
}
SHAPES = {"model.embed_tokens.weight": [257, 16], "model.norm.weight": [16]}
for layer in range(2):
    prefix = f"model.layers.{layer}."
    SHAPES |= {prefix + "input_layernorm.weight": [16], prefix + "post_attention_layernorm.weight": [16],
               prefix + "self_attn.q_proj.weight": [16, 16], prefix + "self_attn.k_proj.weight": [8, 16],
               prefix + "self_attn.v_proj.weight": [8, 16], prefix + "self_attn.o_proj.weight": [16, 16],
               prefix + "mlp.gate_proj.weight": [32, 16], prefix + "mlp.up_proj.weight": [32, 16],
               prefix + "mlp.down_proj.weight": [16, 32]}


def run(folder, *arguments):
    return subprocess.run([PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S,
                          stdin=subprocess.DEVNULL, errors="replace")


def safetensors(shapes, dtype="F32", size=4):
    header, at = {}, 0
    for name, shape in shapes.items():
        count = 1
        for dim in shape:
            count *= dim
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + count * size]}
        at += count * size
    return header, bytes(at)


def pack(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Input:
    """A folder with everything a good run needs."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "model").mkdir()
        (folder / "run.toml").write_text(GOOD_CONFIG)
        self.model(GOOD_MODEL)
        self.weights(pack(*safetensors(SHAPES)))
        (folder / "text.txt").write_text("a text that is long enough to be cut into samples\n" * 40)

    def model(self, config):
        (self.folder / "model" / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))

    def weights(self, data):
        (self.folder / "model" / "model.safetensors").write_bytes(data)

    def write(self, name, data):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())


def setting(*settings):
    return lambda _: ["train", "run.toml"] + [a for s in settings for a in ("--set", s)]


def toml(text, old=None):
    def plant(inputs):
        inputs.write("run.toml", GOOD_CONFIG.replace(old, text) if old else text)
        return ["train", "run.toml"]
    return plant


def model(**changes):
    def plant(inputs):
        config = dict(GOOD_MODEL)
        for key, value in changes.items():
            config.pop(key, None) if value is None else config.__setitem__(key, value)
        inputs.model(config)
        return ["train", "run.toml"]
    return plant


def model_text(text):
    def plant(inputs):
        inputs.model(text)
        return ["train", "run.toml"]
    return plant


def weights(make):
    def plant(inputs):
        header, data = safetensors(SHAPES)
        inputs.weights(make(header, data))
        return ["train", "run.toml", "--set", "model.weights=model"]
    return plant


def without(header, name):
    del header[name]
    return header


def changed(header, name, key, value):
    header[name][key] = value
    return header


def reshaped(name, shape):
    shapes = dict(SHAPES)
    shapes[name] = shape
    return pack(*safetensors(shapes))


# A token file of one document.
def token_pair(inputs, tokens, magic=b"MMIDIDX\x00\x00", version=1, code=4, lengths=None, pointers=None, documents=None,
               cut_bin=0, cut_idx=0):
    data = struct.pack(f"<{len(tokens)}i", *tokens)
    lengths = [len(tokens)] if lengths is None else lengths
    pointers = [0] if pointers is None else pointers
    documents = [0, 1] if documents is None else documents
    index = magic + struct.pack("<QBQQ", version, code, len(lengths), len(documents))
    index += struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(pointers)}q", *pointers)
    index += struct.pack(f"<{len(documents)}q", *documents)
    inputs.write("tokens.bin", data[:len(data) - cut_bin])
    inputs.write("tokens.idx", index[:len(index) - cut_idx])
    return ["train", "run.toml", "--set", "data.format=megatron", "--set", "data.train=tokens"]


def tokens(**changes):
    return lambda inputs: token_pair(inputs, **({"tokens": list(range(200))} | changes))


def jsonl(text):
    def plant(inputs):
        inputs.write("text.jsonl", text)
        return ["train", "run.toml", "--set", "data.format=jsonl", "--set", "data.train=text.jsonl"]
    return plant


def tokenizer(text):
    def plant(inputs):
        inputs.write("tokenizer.json", text)
        return ["train", "run.toml", "--set", "data.tokenizer=tokenizer.json"]
    return plant


# A finished run whose checkpoint `damage` changes; the run is asked to go on, or its weights to be converted.
def checkpoint(damage, *arguments):
    def plant(inputs):
        done = run(inputs.folder, "train", "run.toml", "--quiet")
        assert done.returncode == 0, done.stderr
        damage(inputs.folder / "runs" / "run" / "checkpoints" / "step-2")
        return list(arguments) or ["train", "run.toml", "--set", "run.steps=4"]
    return plant


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(bytes(data))


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def reference(**files):
    def plant(inputs):
        batch = {"input_ids": [[1, 2, 3, 4]], "labels": [[1, 2, 3, 4]]}
        expected = {"loss": 1.0, "grad_norm": 1.0}
        inputs.write("model/batch.json", files.get("batch", json.dumps(batch)))
        inputs.write("model/expected.json", files.get("expected", json.dumps(expected)))
        if "grads" in files:
            inputs.write("model/grads.safetensors", files["grads"])
        return ["check", "--reference", "model"] + files.get("arguments", [])
    return plant


def generate(*arguments, files=None, weights="model"):
    def plant(inputs):
        for name, text in (files or {}).items():
            inputs.write(name, text)
        return ["generate", weights, *arguments]
    return plant


# A prompt with a tokenizer that the good model has.
ASKED = ("--tokenizer", "bytes", "--prompt", "abc")

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
    ("fp8 is not in the engine yet", setting("precision.compute=fp8"), ["precision.compute"]),
    ("LoRA is not in the engine yet", setting("method.kind=lora"), ["method.kind", "full"]),
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
