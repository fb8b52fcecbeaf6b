#!/usr/bin/env python3
"""Makes the reference folder that this script lies in (docs/formats/reference.md), with PyTorch and its autograd.

A Llama of 6,736 parameters is written out in plain operators; loss and gradients of one batch come from autograd, in
fp32 on one thread. Rows have unequal numbers of valid targets, as batches do.
"""

import json
import struct
from pathlib import Path

import torch
import torch.nn.functional as F

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 16, 32, 2, 4, 2, 4, 64
ROWS, SEQUENCE, THETA, EPS, IGNORED = 4, 16, 10000.0, 1e-5, -100

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCAB, "max_position_embeddings": SEQUENCE, "hidden_act": "silu", "rms_norm_eps": EPS,
    "rope_theta": THETA, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def make_weights(generator):
    """Wider than an initialisation, and no norm at 1, so that every gradient is clear of rounding."""
    def matrix(rows, columns):
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    def norm():
        return 1 + 0.2 * torch.randn(HIDDEN, generator=generator)

    weights = {"model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=generator)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights[prefix + "input_layernorm.weight"] = norm()
        weights[prefix + "self_attn.q_proj.weight"] = matrix(HEADS * HEAD_DIM, HIDDEN)
        weights[prefix + "self_attn.k_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        weights[prefix + "self_attn.v_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        weights[prefix + "self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM)
        weights[prefix + "post_attention_layernorm.weight"] = norm()
        weights[prefix + "mlp.gate_proj.weight"] = matrix(FFN, HIDDEN)
        weights[prefix + "mlp.up_proj.weight"] = matrix(FFN, HIDDEN)
        weights[prefix + "mlp.down_proj.weight"] = matrix(HIDDEN, FFN)
    weights["model.norm.weight"] = norm()
    weights["lm_head.weight"] = matrix(VOCAB, HIDDEN)
    return {name: tensor.requires_grad_() for name, tensor in weights.items()}


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rotate(x):
    """RoPE on [batch, heads, sequence, head_dim], pairs (i, i + head_dim / 2)."""
    frequencies = THETA ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    angles = torch.outer(torch.arange(x.shape[2]).float(), frequencies)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def attention(x, weights, prefix):
    def heads(name, count):
        projected = x @ weights[f"{prefix}{name}_proj.weight"].T
        return projected.view(x.shape[0], x.shape[1], count, HEAD_DIM).transpose(1, 2)

    q, k, v = rotate(heads("q", HEADS)), rotate(heads("k", KV_HEADS)), heads("v", KV_HEADS)
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * HEAD_DIM**-0.5
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1) @ weights[prefix + "o_proj.weight"].T


def logits(weights, ids):
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        x = x + attention(rms_norm(x, weights[prefix + "input_layernorm.weight"]), weights, prefix + "self_attn.")
        y = rms_norm(x, weights[prefix + "post_attention_layernorm.weight"])
        gate, up = (y @ weights[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (F.silu(gate) * up) @ weights[prefix + "mlp.down_proj.weight"].T
    return rms_norm(x, weights["model.norm.weight"]) @ weights["lm_head.weight"].T


def write_safetensors(path, tensors):
    header, offset, data = {}, 0, b""
    for name, tensor in tensors.items():
        content = tensor.detach().contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + len(content)]}
        offset += len(content)
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def main():
    folder = Path(__file__).resolve().parent
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(20)
    weights = make_weights(generator)
    ids = torch.randint(VOCAB, (ROWS, SEQUENCE), generator=generator)
    targets = torch.cat([ids[:, 1:], torch.full((ROWS, 1), IGNORED)], dim=1)
    targets[1, :9] = IGNORED    # a prompt that is not learned
    targets[2, 3:] = IGNORED    # a short row
    loss = F.cross_entropy(logits(weights, ids).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    loss.backward()

    gradients = {name: tensor.grad for name, tensor in weights.items()}
    norms = {name: gradient.double().norm().item() for name, gradient in gradients.items()}
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "batch.json", {"input_ids": ids.tolist(), "targets": targets.tolist()})
    write_json(folder / "expected.json", {
        "loss": loss.item(), "grad_norm": sum(norm**2 for norm in norms.values()) ** 0.5, "grad_norms": norms})
    write_safetensors(folder / "model.safetensors", weights)
    write_safetensors(folder / "grads.safetensors", gradients)
    print(f"{sum(w.numel() for w in weights.values())} parameters, loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
