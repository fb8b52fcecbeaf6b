#!/usr/bin/env python3
"""make_seeds.py FOLDER [RUN...]: seeds for the fuzzers in FOLDER/TARGET/, from the files of this repository, and from
the records and checkpoints of runs that fivefold made, whose folders may be given."""

import json
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def token_file(type_code, element, documents):
    """A pair as one input of token_file_fuzz: length of the index, index, tokens."""
    tokens = [token for document in documents for token in document]
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, type_code, len(documents), len(documents) + 1)
    index += struct.pack(f"<{len(documents)}i", *map(len, documents))
    size, offset = struct.calcsize("<" + element), 0
    for document in documents:
        index += struct.pack("<q", offset)
        offset += size * len(document)
    index += struct.pack(f"<{len(documents) + 1}q", *range(len(documents) + 1))
    return struct.pack("<H", len(index)) + index + struct.pack(f"<{len(tokens)}{element}", *tokens)


def safetensors(tensors, metadata=None):
    """A file of zeros from (name, dtype, bytes of an element, shape) entries."""
    header, offset = {"__metadata__": metadata} if metadata else {}, 0
    for name, dtype, size, shape in tensors:
        end = offset + size
        for dim in shape:
            end = offset + (end - offset) * dim
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(offset)


GGUF_TYPES = {"u32": (4, "<I"), "f32": (6, "<f"), "bool": (7, "<?"), "u8": (0, "<B"), "i64": (11, "<q")}
GGUF_BLOCKS = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22),
               "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
               "Q6_K": (14, 256, 210), "BF16": (30, 1, 2)}


def gguf(values, tensors):
    """A file from {key: text, list of texts or of whole numbers, or (type, value)} and (name, type, shape, innermost
    first) entries, whose bytes are zeros."""
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    pairs, infos, data = b"", b"", b""
    for key, value in values.items():
        pairs += text(key)
        if isinstance(value, str):
            pairs += struct.pack("<I", 8) + text(value)
        elif isinstance(value, list):
            of_text = not value or isinstance(value[0], str)
            pairs += struct.pack("<IIQ", 9, 8 if of_text else 5, len(value))
            pairs += b"".join(text(item) if of_text else struct.pack("<i", item) for item in value)
        else:
            number, layout = GGUF_TYPES[value[0]]
            pairs += struct.pack("<I", number) + struct.pack(layout, value[1])
    for name, kind, shape in tensors:
        number, count, size = GGUF_BLOCKS[kind]
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        infos += struct.pack("<IQ", number, len(data))
        elements = 1
        for dim in shape:
            elements *= dim
        data += bytes(elements // count * size)
        data += bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + pairs + infos
    return head + bytes(-len(head) % 32) + data


def small_gguf_llama():
    values = {"general.architecture": "llama", "llama.block_count": ("u32", 1), "llama.context_length": ("u32", 8),
              "llama.embedding_length": ("u32", 4), "llama.feed_forward_length": ("u32", 2),
              "llama.attention.head_count": ("u32", 1), "llama.attention.layer_norm_rms_epsilon": ("f32", 1e-5),
              "llama.rope.freq_base": ("f32", 1e4)}
    tensors = [("token_embd.weight", "F32", [4, 2]), ("output_norm.weight", "F32", [4])]
    layer = {"attn_norm": [4], "ffn_norm": [4], "attn_q": [4, 4], "attn_k": [4, 4], "attn_v": [4, 4],
             "attn_output": [4, 4], "ffn_gate": [4, 2], "ffn_up": [4, 2], "ffn_down": [2, 4]}
    return values, tensors + [(f"blk.0.{name}.weight", "F16", shape) for name, shape in layer.items()]


def gguf_tokenizer(pre):
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"],
            "tokenizer.ggml.token_type": [1, 1, 4, 3], "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.bos_token_id": ("u32", 3), "tokenizer.ggml.add_bos_token": ("bool", True),
            "tokenizer.chat_template": "<|im_start|>"}


def gguf_seeds():
    values, tensors = small_gguf_llama()
    yield "gguf", "llama", gguf(values, tensors)
    yield "gguf", "tokenizer", gguf(gguf_tokenizer("smollm"), [])
    yield "gguf", "both", gguf({**values, **gguf_tokenizer("llama-bpe")}, tensors)
    yield "gguf", "blocks", gguf({"general.alignment": ("u32", 64), "k": ("i64", -1), "n": ("u8", 9)},
                                 [(kind, kind, [256, 1]) for kind in GGUF_BLOCKS if kind != "F32"])
    gpt2 = {key.replace("llama.", "gpt2."): value for key, value in values.items()}
    gpt2 |= {"general.architecture": "gpt2", "gpt2.attention.layer_norm_epsilon": ("f32", 1e-5)}
    layer = {"attn_qkv": 12, "attn_output": 4, "ffn_up": 2, "attn_norm": 4, "ffn_norm": 4}
    named = [("token_embd.weight", "F32", [4, 2]), ("position_embd.weight", "F32", [4, 8]),
             ("output_norm.weight", "F32", [4]), ("output_norm.bias", "F32", [4])]
    for name, rows in layer.items():
        named += [(f"blk.0.{name}.weight", "F32", [rows] if "norm" in name else [4, rows]),
                  (f"blk.0.{name}.bias", "F32", [rows])]
    named += [("blk.0.ffn_down.weight", "F32", [2, 4]), ("blk.0.ffn_down.bias", "F32", [4])]
    yield "gguf", "gpt2", gguf(gpt2, named)
    values["llama.rope.scaling.type"] = "yarn"
    values |= {"llama.rope.scaling.factor": ("f32", 2.0), "llama.rope.scaling.original_context_length": ("u32", 4)}
    yield "gguf", "yarn", gguf(values, tensors)


# What each kind of template is known by.
CHAT_TEMPLATES = {
    "chatml": "'<|im_start|>system\nBe kind.<|im_end|>\n' '<|im_start|>' + message['role'] + '\n'",
    "llama-3": "'<|start_header_id|>' + message['content'] | trim + '<|eot_id|>'",
    "gemma": "'<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n'",
    "phi-3": "'<|user|>\n' + message['content'] + '<|end|>\n'",
    "zephyr": "'<|user|>\n' + message['content'] + eos_token",
    "llama-2": "'[INST] <<SYS>>\n' + content.strip() + ' [/INST]' + eos_token",
    "mistral": "'[INST] ' + message['content'] + ' [/INST]' + message['content'] + eos_token + ' '",
    "thoughts": "<|im_start|><|im_end|><think>"}


def chat_seeds():
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": " u\n"},
                {"role": "assistant", "content": "caf\u00e9"}, {"role": "user", "content": "v"}]
    lines = [{"messages": messages}, {"messages": messages[1:3], "id": 1}, {"prompt": "p", "completion": "c" * 60},
             {"instruction": "i", "input": "x", "output": "o"}]
    yield "conversations", "forms", "\n\n".join(map(json.dumps, lines)).encode()
    yield "conversations", "roles", json.dumps({"messages": [{"role": "tool", "content": ""}]}).encode()
    for name, text in CHAT_TEMPLATES.items():
        config = {"chat_template": text, "eos_token": {"content": "</s>"}, "bos_token": "<s>"}
        yield "chat_template", name, json.dumps(config).encode() + b"\0" + json.dumps(lines[1]).encode()
    yield "chat_template", "list", json.dumps({"chat_template": [
        {"name": "default", "template": CHAT_TEMPLATES["chatml"]}]}).encode()


def small_tokenizer(tokenizer):
    """The file with a few of its merges and of its single characters; everything else is left whole."""
    model = tokenizer["model"]
    model["merges"] = model["merges"][:8]
    kept = {token for token in model["vocab"] if token.isascii() and token.isalpha() and len(token) == 1}
    kept |= {model.get("unk_token")} | {token["content"] for token in tokenizer["added_tokens"]} | {"<0x0A>", "<0xFF>"}
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        kept |= {left, right, left + right}
    model["vocab"] = {token: number for token, number in model["vocab"].items() if token in kept}
    return json.dumps(tokenizer, ensure_ascii=False).encode()


def settings():
    """Each key of docs/configuration.md as KEY=VALUE, with its default."""
    lines, section = [], ""
    for line in (ROOT / "docs/configuration.md").read_text().splitlines():
        if line.startswith("## ["):
            section = line[4:].split("]")[0]
        elif section and line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            lines.append(f"{section}.{cells[0].strip('`')}={cells[2].strip('`')}")
    return lines


def column_blocks():
    """A manifest's content: a 4 x 7 matrix in one file, its columns cut into [0, 3) and [3, 7)."""
    digest = "xxh3:0123456789abcdef"
    pieces = [{"range": [begin, end], "columns": columns, "file": "f", "file_range": [at, at + end - begin],
               "hash": digest} for begin, end, columns, at in ((0, 5, [0, 3], 16), (5, 12, [0, 3], 21),
                                                               (0, 16, [3, 7], 28))]
    return {"format_version": 2, "step": 1, "samples_consumed": 0, "tokens_consumed": 0, "seed": 0,
            "generator_state": "", "configuration": "", "world_size": 1,
            "files": [{"name": "f", "bytes": 44, "header_bytes": 16, "header_hash": digest}],
            "tensors": [{"kind": "params", "tensor": "w", "dtype": "uint8", "shape": [4, 7], "pieces": pieces}]}


def receipt(content):
    return {"step": content["step"], "nonce": "n", "rank": 0, "file": content["files"][0],
            "tensors": content["tensors"]}


def adapter(modules, rank, dtype="F32", size=4, **settings):
    """An adapter of (name, outputs, inputs) modules as one input of peft_fuzz: adapter_config.json, NUL, tensors."""
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 8, "lora_dropout": 0.05,
              "bias": "none", "target_modules": sorted({name.split(".")[-1] for name, _, _ in modules}),
              "init_lora_weights": True, "rank_pattern": {}, "modules_to_save": None, **settings}
    tensors = []
    for name, outputs, inputs in modules:
        stem = f"base_model.model.{name}"
        tensors += [(f"{stem}.lora_A.weight", dtype, size, [rank, inputs]),
                    (f"{stem}.lora_B.weight", dtype, size, [outputs, rank])]
        if settings.get("use_dora"):
            tensors.append((f"{stem}.lora_magnitude_vector", dtype, size, [outputs]))
    return json.dumps(config).encode() + b"\0" + safetensors(tensors, {"format": "pt"})


def repository_seeds():
    for path in sorted((ROOT / "configs/models").glob("*.json")):
        yield "model_config", path.stem, path.read_bytes()
    for folder in ("gpus", "clusters"):
        for path in sorted((ROOT / "configs" / folder).glob("*.toml")):
            yield "hardware", path.stem, path.read_bytes()
    yield "hardware", "round-node", (ROOT / "tests/golden/plan/round-node.toml").read_bytes()
    for path in sorted((ROOT / "configs/runs").glob("*.toml")):
        yield "run_config", path.stem, path.read_bytes()
    keys = settings()
    for begin in range(0, len(keys), 16):
        yield "run_config", f"settings-{begin}", "\n".join(keys[begin:begin + 16]).encode()
    for path in sorted((ROOT / "src/data/testdata").glob("*.json")):
        if not path.name.endswith(".expected.json"):
            yield "tokenizer", path.stem, small_tokenizer(json.loads(path.read_text())) + b"\0"
    reference = ROOT / "docs/guide/reference"
    files = [(reference / name).read_bytes() for name in ("batch.json", "expected.json")]
    yield "reference", "guide", b"\0".join(files)
    packed = {"input_ids": [[1, 2, 3]], "labels": [[1, 2, 3]], "position_ids": [[0, 1, 0]],
              "document_lengths": [[2, 1]]}
    expected = {"loss": 1.5, "grad_norm": 2, "grad_norms": {"a": 1.0}}
    gradients = safetensors([("a", "F32", 4, [2, 3])])
    yield "reference", "packed", b"\0".join([json.dumps(packed).encode(), json.dumps(expected).encode(), gradients])


def written_seeds():
    yield "safetensors", "empty", safetensors([])
    yield "safetensors", "mixed", safetensors(
        [("w", "BF16", 2, [2, 3]), ("b", "F32", 4, []), ("e", "F8_E4M3", 1, [0, 7]), ("i", "I64", 8, [1])],
        {"format": "pt"})
    yield "manifest", "column-blocks", json.dumps(column_blocks()).encode()
    yield "manifest", "column-blocks-receipt", json.dumps(receipt(column_blocks())).encode()
    llama = [("model.layers.0.self_attn.q_proj", 3, 2), ("model.layers.0.mlp.up_proj", 4, 2)]
    yield "peft", "lora", adapter(llama, 2)
    yield "peft", "dora", adapter(llama, 1, "BF16", 2, use_dora=True, base_model_name_or_path="base")
    yield "peft", "all-linear", adapter(llama, 2, use_rslora=True, target_modules="all-linear")
    yield "peft", "conv1d", adapter([("transformer.h.0.attn.c_attn", 6, 2)], 1, fan_in_fan_out=True)
    yield "peft", "patterns", adapter(llama, 2, rank_pattern={"q_proj": 4})
    yield "peft", "pissa", adapter(llama, 2, init_lora_weights="pissa")
    yield "token_file", "uint16", token_file(8, "H", [[1, 2, 3], [4], [], [5, 6, 7, 8, 299]])
    yield "token_file", "int32", token_file(4, "i", [[1, 2, 3, 0], [4, 5, 300]])
    yield "token_file", "uint8", token_file(1, "B", [list(range(20))])
    yield "token_file", "int64", token_file(5, "q", [[7, -1]])
    config = {"eos_token": {"content": "b"}, "bos_token": "a"}
    tokenizer = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 7}, "merges": ["a b"]},
                 "post_processor": {"type": "RobertaProcessing", "cls": ["a", 0], "sep": ["b", 1]},
                 "decoder": {"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 1}]}}
    yield "tokenizer", "small", json.dumps(tokenizer).encode() + b"\0" + json.dumps(config).encode()
    yield "text_source", "text", b"One line.\nAnother.\n\n \t\nA new paragraph\r\n\r\nand more"
    yield "text_source", "jsonl", b'{"text": "caf\\u00e9 \\ud83d\\ude00"}\n\n{"id": 1, "text": ""}\n{"text": "x\\n"}\n'


def schedule_seeds():
    for path in sorted((ROOT / "src/schedule/testdata").glob("*.csv")):
        yield "schedule_csv", path.stem, path.read_bytes()
    two_ranks = {
        "exchange": ("F0 SendF0>1 F1 SendF1>1 RecvB0<1 BW0 F2 SendF2>1 +RecvB1<1 BW1 RecvB2<1 BW2",
                     "RecvF0<0 F0 RecvF1<0 BW0 SendB0>0 F1 BW1 RecvF2<0 +SendB1>0 F2 BW2 SendB2>0"),
        "computations": ("F0 F1 B0 W0 BW1", "F0 BW0 F1 B1 W1")}
    for name, ranks in two_ranks.items():
        lines = [f"pipeline ranks=2 chunks=1 microbatches={ranks[0].count(' F') + 1} placement=loop  # {name}"]
        lines += [f"rank {rank}: {actions}" for rank, actions in enumerate(ranks)]
        yield "schedule_text", name, "\n".join(lines).encode()
    yield "schedule_text", "overlapped", (b"pipeline ranks=1 chunks=2 microbatches=3 placement=v\n"
                                          b"rank 0: F0.0 F1.0 F0.1 BW1.0 F1.1&BW0.0 F0.2&BW1.1 F1.2&BW0.1 BW1.2 B0.2 W0.2\n")
    yield "schedule_csv", "computations", b"0F0,,0F1,0I0,0W0,0B1\r\n,1F0,1B0,1F1,1B1\r\n"
    yield "schedule_csv", "parameters", b"0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n"


LOGS = {
    "megatron": """------------------------ arguments ------------------------
  tensor_model_parallel_size ...................... 8
-------------------- end of arguments ---------------------
[Rank 0] (after 10 iterations) memory (MB) | allocated: 9909.08 | max allocated: 50277.15 | reserved: 1.0 | max reserved: 53386.0
 iteration       10/    1000 | elapsed time per iteration (ms): 9552.8 | throughput per GPU (TFLOP/s/GPU): 34.0 | lm loss: 1.08E+01 |
 iteration       20/    1000 | elapsed time per iteration (ms): 1000.0 | global batch size:    64 | grad norm: 1.5 |
(min, max) time across ranks (ms):
    forward-backward ...............................: (810.82, 824.28)
""",
    "torchtitan": """CUDA capacity: NVIDIA H100 with 79.10GiB memory
\x1b[31mstep:  1  \x1b[32mloss: 12.2721  grad_norm:  4.0  memory: 40.00GiB(50.57%)  tps: 1,234  tflops: 71.41  mfu: 7.22%
3 CUDA memory allocation retries.
step: 10  loss:  9.5000  memory: 50.25GiB(63.53%)  wps: 6,667  mfu: 39.04%
""",
    "trainer": """{'loss': 2.6031, 'grad_norm': '1.88', 'learning_rate': 5e-07, 'epoch': 0.2, 'memory(GiB)': 33.5}
 50%|#####     | 50/100 [02:48<02:30,  3.00s/it]
{'train_runtime': 318.5, 'train_samples_per_second': 2.512, 'train_steps_per_second': 0.314, 'train_loss': 2.3}
""",
    "trainer_state": """{"log_history": [{"loss": 2.5, "step": 10}, {"train_runtime": 40.0, "train_loss": 1, "step": 20}]}""",
    "nvidia_smi": """index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]
0, NVIDIA A100, 70000 MiB, 81920 MiB, 90 %
""",
    "nvidia_smi_table": """| NVIDIA-SMI 535.54.03 |
|   1  NVIDIA A800-SXM4-80GB          On  | 00000000:61:00.0 Off |                    0 |
| N/A   53C    P0             332W / 400W |  73895MiB / 81920MiB |     96%      Default |
""",
    "messages": """  File "/x/functional.py", line 3059, in cross_entropy
Tried to allocate 786.00 MiB. GPU 3 has a total capacity of 31.73 GiB of which 88.19 MiB is free. this process has 31.64 GiB memory in use. Of the allocated memory 28.80 GiB is allocated by PyTorch, and 1.68 GiB is reserved by PyTorch but unallocated.
Tried to allocate 4.00 GiB (GPU 1; 11.17 GiB total capacity; 7.25 GiB already allocated; 1.33 GiB free; 8.25 GiB cached)
|  PyTorch CUDA memory summary, device ID 2  |
| Allocated memory      | 682537 KiB |  65430 MiB |   3115 GiB |
""",
}


def log_seeds():
    for name, text in LOGS.items():
        yield "foreign_log", name, text.encode()
    for path in sorted((ROOT / "src/record/testdata").glob("*")):
        yield "pickle" if path.suffix == ".pickle" else "foreign_log", path.stem, path.read_bytes()


def run_seeds(run):
    for path in sorted(run.glob("record/rank-*.jsonl")):
        # Lines of the first two steps, and the first of every other kind, without most of the program.
        kept, seen = [], {}
        for line in path.read_text().splitlines():
            value = json.loads(line)
            kind = value["line"]
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] > (2 if kind == "step" else 1):
                continue
            for key in ("instructions", "times", "calls", "configuration", "model_config"):
                if key in value:
                    value[key] = value[key][:3]
            kept.append(json.dumps(value))
        yield "run_record", f"{run.name}-{path.stem}", "\n".join(kept).encode() + b"\n"
    for path in sorted(run.glob("checkpoints/step-*/manifest.json")):
        content = json.loads(path.read_text())["content"]
        content["tensors"] = content["tensors"][:4]
        content["configuration"] = ""
        yield "manifest", f"{run.name}-{path.parent.name}", json.dumps(content).encode()
        yield "manifest", f"{run.name}-{path.parent.name}-receipt", json.dumps(receipt(content)).encode()


def main():
    folder = Path(sys.argv[1])
    seeds = [*repository_seeds(), *written_seeds(), *gguf_seeds(), *chat_seeds(),
             *schedule_seeds(), *log_seeds()]
    for run in sys.argv[2:]:
        seeds += run_seeds(Path(run))
    for target, name, content in seeds:
        (folder / target).mkdir(parents=True, exist_ok=True)
        (folder / target / name).write_bytes(content)
    print(f"{len(seeds)} seeds in {folder}")


if __name__ == "__main__":
    main()
