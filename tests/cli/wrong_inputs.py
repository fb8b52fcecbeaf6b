"""The good inputs of wrong_input_test.py and the ways in which its rows damage them. Not a program."""
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


def chat(text, template="chatml"):
    def plant(inputs):
        inputs.write("chat.jsonl", text)
        return ["train", "run.toml", "--set", "data.format=chat", "--set", "data.train=chat.jsonl",
                "--set", f"data.chat_template={template}"]
    return plant


def gguf(content):
    def plant(inputs):
        inputs.write("model.gguf", content)
        return ["convert", "model.gguf", "hub"]
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
