#!/usr/bin/env python3
"""make_dora.py ORACLES [FOLDER]: references of DoRA by PEFT, for dora_oracle_test.cc.

ORACLES holds the reference models (docs/formats/reference.md). For each case FOLDER/NAME gets an adapter as PEFT saves
it, whose A, B and magnitudes are all off their start, its gradients, and losses: at the start, and after each of five
AdamW updates. fp32, one thread. Made with torch 2.13.0, transformers 5.24.0 and peft 0.21.2."""

import json
import math
import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)

LLAMA = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
# Name, model, its linears in NF4, targets, rank, alpha, rsLoRA.
CASES = [("llama", "01_llama_gqa_untied", False, LLAMA, 4, 8, False),
         ("llama_nf4", "01_llama_gqa_untied", True, LLAMA, 4, 8, False),
         ("qwen2_some", "04_qwen2_qkv_bias", False, ["down_proj", "q_proj", "up_proj", "v_proj"], 3, 6, True),
         ("gpt2", "05_gpt2", False, ["c_attn", "c_fc", "c_proj"], 4, 8, False)]
ADAMW = {"lr": 2e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def base(oracles, model, nf4):
    loaded = AutoModelForCausalLM.from_pretrained(oracles / model, dtype=torch.float32, attn_implementation="eager")
    if nf4:  # a plain model that holds the weights as they come out of NF4 with double quantisation
        values = load_file(oracles / "11_nf4_qlora/case01_dequantised_double.safetensors")
        loaded.load_state_dict(values, strict=False)
        names = dict(loaded.named_parameters())
        assert len(values) == 14 and all(name in names for name in values)
    return loaded


def mean_loss(model, batch):
    logits = model(input_ids=torch.tensor(batch["input_ids"]), use_cache=False).logits
    targets = torch.tensor(batch["targets"]).reshape(-1)
    return F.cross_entropy(logits.reshape(targets.numel(), -1), targets, ignore_index=-100)


def name_on_disk(name):
    return name.replace(".default.weight", ".weight").replace("lora_magnitude_vector.weight", "lora_magnitude_vector")


def trained(model):
    return {name_on_disk(name): p for name, p in model.named_parameters() if p.requires_grad}


def gradients(model, batch):
    model.zero_grad()
    loss = mean_loss(model, batch)
    loss.backward()
    grads = {name: p.grad.clone() for name, p in trained(model).items()}
    return loss.item(), grads


def global_norm(tensors):
    return math.sqrt(sum(float(t.double().norm()) ** 2 for t in tensors))


def make(oracles, folder, seed, name, model, nf4, targets, rank, alpha, rs):
    generator = torch.Generator().manual_seed(seed)
    batch = json.loads((oracles / model / "batch.json").read_text())
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM", use_dora=True,
                        use_rslora=rs, target_modules=sorted(targets), fan_in_fan_out=model == "05_gpt2")
    adapted = get_peft_model(base(oracles, model, nf4), config)
    start = {n: p.detach().clone() for n, p in trained(adapted).items() if n.endswith("magnitude_vector")}
    with torch.no_grad():
        for tensor, p in trained(adapted).items():
            if tensor.endswith("magnitude_vector"):
                p.mul_(0.7 + 0.6 * torch.rand(p.shape, generator=generator))
            else:
                scale = 0.5 if "lora_B" in tensor else 1.0
                p.copy_(torch.randn(p.shape, generator=generator) / math.sqrt(p.shape[1]) * scale)
    out = folder / name
    adapted.peft_config["default"].base_model_name_or_path = model
    adapted.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    settings = json.loads((out / "adapter_config.json").read_text())
    settings["target_modules"] = sorted(targets)  # PEFT writes a set
    (out / "adapter_config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    save_file(start, out / "magnitudes.safetensors", {"format": "pt"})

    def fresh():
        return PeftModel.from_pretrained(base(oracles, model, nf4), out, is_trainable=True).eval()
    loss, grads = gradients(fresh(), batch)
    # Adam's first update takes the signs of the gradients: none may be noise.
    if min((g.abs().min() / g.norm()).item() for g in grads.values()) < 5e-6:
        return False
    save_file(grads, out / "grads.safetensors", {"format": "pt"})
    stepped, losses = fresh(), []
    optimizer = torch.optim.AdamW(trained(stepped).values(), **ADAMW)
    for _ in range(5):
        gradients(stepped, batch)
        optimizer.step()
        with torch.no_grad():
            losses.append(mean_loss(stepped, batch).item())
    expected = {"model": model, "nf4": nf4, "loss": loss, "grad_norm": global_norm(grads.values()),
                "losses_after_adamw": losses}
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(name, loss, losses)
    return True


def main():
    oracles = Path(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent
    for case in CASES:
        seed = 100
        while not make(oracles, folder, seed, *case):
            seed += 1


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    main()
