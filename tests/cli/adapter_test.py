#!/usr/bin/env python3
"""An adapter from its run to PEFT's format, into a second run and into the weights of its base: the loss of the first
step is the same wherever the adapter lies.

    adapter_test.py PROGRAM
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
CONFIG = """[run]
name = "base"
steps = 1
[model]
config = "config.json"
[precision]
compute = "fp32"
[parallel]
threads = 1
[batch]
global = 4
sequence = 64
[optimizer]
lr = 0.02
[data]
train = "text.txt"
"""
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 257,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
}
LORA = ["--set", "model.weights=base", "--set", "method.kind=lora", "--set", "method.rank=4", "--set", "method.alpha=6"]
QLORA = [*LORA[:3], "method.kind=qlora", *LORA[4:]]


def header_of(path):
    data = path.read_bytes()
    return json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])


class Adapter(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        (cls.folder / "run.toml").write_text(CONFIG)
        (cls.folder / "config.json").write_text(json.dumps(MODEL))
        (cls.folder / "text.txt").write_text("a text that is read again and again. " * 400)
        cls.fivefold("train", "run.toml", "--quiet")
        cls.fivefold("convert", "runs/base", "base", "--dtype", "fp32")
        for name, method in (("lora", LORA), ("qlora", QLORA)):
            cls.train(name, *method, "--set", "run.steps=4")
            cls.exported = cls.fivefold("convert", f"runs/{name}", f"{name}-adapter")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def start(cls, *arguments):
        return subprocess.run([PROGRAM, *arguments], cwd=cls.folder, capture_output=True, text=True, timeout=200,
                              stdin=subprocess.DEVNULL, env={**os.environ, "XDG_CACHE_HOME": str(cls.folder)})

    @classmethod
    def fivefold(cls, *arguments):
        run = cls.start(*arguments)
        assert run.returncode == 0, f"exit {run.returncode} of {arguments}: {run.stderr[:900]}"
        return run.stdout

    @classmethod
    def train(cls, name, *arguments):
        """The loss of each step."""
        cls.fivefold("train", "run.toml", "--quiet", "--set", f"run.name={name}", *arguments)
        lines = (cls.folder / f"runs/{name}/record/rank-0.jsonl").read_text().splitlines()
        return [line["loss"] for line in map(json.loads, lines) if line["line"] == "step"]

    def test_a_run_becomes_a_folder_that_peft_reads(self):
        config = json.loads((self.folder / "lora-adapter/adapter_config.json").read_text())
        self.assertEqual((config["peft_type"], config["r"], config["lora_alpha"]), ("LORA", 4, 6))
        self.assertEqual(config["target_modules"],
                         ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"])
        self.assertEqual(config["base_model_name_or_path"], "base")
        header = header_of(self.folder / "lora-adapter/adapter_model.safetensors")
        self.assertEqual(header.pop("__metadata__"), {"format": "pt"})
        self.assertEqual(len(header), 2 * 7 * 2)
        self.assertEqual(header["base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight"]["shape"], [32, 4])
        self.assertIn("rank 4, alpha 6, 28 tensors", self.exported)

    def test_a_run_goes_on_from_the_folder_and_from_the_merged_weights_with_one_loss(self):
        untrained = self.train("untrained", *LORA)[0]
        adapted = self.train("adapted", *LORA, "--set", "method.adapter=lora-adapter")[0]
        self.assertGreater(abs(untrained - adapted), 0.05)
        printed = self.fivefold("convert", "lora-adapter", "merged", "--merge")
        self.assertIn("14 matrices with 1.5 x B A", printed)
        merged = self.train("merged", "--set", "model.weights=merged")[0]
        self.assertAlmostEqual(merged, adapted, delta=1e-5)
        # A checkpoint is merged as its folder is.
        self.fivefold("convert", "runs/lora", "merged-2", "--merge")
        self.assertEqual((self.folder / "merged/model.safetensors").read_bytes(),
                         (self.folder / "merged-2/model.safetensors").read_bytes())

    def test_generate_adds_the_folder_to_the_weights(self):
        self.fivefold("convert", "lora-adapter", "merged-3", "--merge")
        said = [self.fivefold("generate", *weights, "--tokenizer", "bytes", "--prompt", "a text", "--max-tokens", "24",
                              "--dtype", "fp32", "--quiet")
                for weights in (["merged-3"], ["base", "--adapter", "lora-adapter"], ["base"])]
        self.assertEqual(said[0], said[1])
        self.assertNotEqual(said[0], said[2])
        wrong = self.start("generate", "base", "--adapter", "base", "--tokenizer", "bytes", "--prompt", "a")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("adapter_config.json", wrong.stderr)

    def test_a_base_in_four_bits_is_merged_as_it_was_trained_or_as_it_was(self):
        metadata = header_of(self.folder / "qlora-adapter/adapter_model.safetensors")["__metadata__"]
        self.assertEqual(metadata["fivefold.base"], "nf4, double quantisation")
        adapted = self.train("q-adapted", *QLORA, "--set", "method.adapter=qlora-adapter")[0]
        printed = self.fivefold("convert", "qlora-adapter", "q-quantised", "--merge", "--merge-into", "quantised")
        self.assertRegex(printed, r"NF4 is off by [89]\.\d\d % of the norm")
        self.assertAlmostEqual(self.train("q-merged", "--set", "model.weights=q-quantised")[0], adapted, delta=1e-5)
        printed = self.fivefold("convert", "runs/qlora", "q-original", "--merge")
        self.assertIn("trained with the base in NF4", printed)
        self.assertRegex(printed, r"quantised to NF4 again, the result would lose \d")
        self.assertGreater(abs(self.train("q-off", "--set", "model.weights=q-original")[0] - adapted), 1e-4)

    def test_what_does_not_go_together_is_refused(self):
        other = ["train", "run.toml", *LORA, "--set", "run.name=other"]
        cases = [
            ([*other, "--set", "method.alpha=8", "--set", "method.adapter=lora-adapter"],
             ["method.alpha is 8, the adapter has 6", "--set method.alpha=6"]),
            ([*other, "--set", "method.targets=q_proj", "--set", "method.adapter=lora-adapter"],
             ["is of a module that the run does not adapt", "--set method.targets=down_proj,gate_proj,"]),
            ([*other, "--set", "method.adapter=base"], ["has no adapter_config.json"]),
            (["convert", "lora-adapter", "out"], ["--merge --base FOLDER"]),
            (["convert", "lora-adapter", "base", "--merge"], ["is the base's own folder"]),
            (["convert", "lora-adapter", "out", "--merge", "--merge-into", "nf4"], ["--merge-into", "quantised"]),
            (["convert", "lora-adapter", "out", "--merge", "--base", "nowhere"], ["nowhere/config.json"]),
            (["convert", "runs/base", "out", "--merge"], ["--merge", "without an adapter"]),
        ]
        for arguments, messages in cases:
            with self.subTest(arguments=arguments):
                run = self.start(*arguments)
                self.assertEqual(run.returncode, 2, run.stdout + run.stderr)
                for message in messages:
                    self.assertIn(message, run.stderr)
                self.assertFalse((self.folder / "out").exists())


if __name__ == "__main__":
    unittest.main()
