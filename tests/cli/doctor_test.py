#!/usr/bin/env python3
"""doctor_test.py PROGRAM: reconcile with logs of other frameworks, and doctor, from outside: exit codes, keys, errors."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = sys.argv.pop(1)
TITAN = """[model]
name = "llama-3.1-8b"
[hardware]
name = "dgx-h100"
[framework]
name = "fsdp2"
switches = ["cross_entropy=eager"]
[parallel]
dp = 8
zero = 3
[batch]
global = 16
micro = 2
sequence = 8192
[recompute]
kind = "selective"
"""
STEP = "[rank0]:- root - INFO - step: {}  loss: 9.0  memory: {}GiB(80.00%)  tps: {}  mfu: 38.00%\n"
OOM = ("CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is "
       "free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the allocated memory 75.00 GiB "
       "is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated.\n")

# As Megatron-LM's _print_args writes them, of some 400 the ones that matter, and some of every other kind.
ARGUMENTS = {
    "accumulate_allreduce_grads_in_fp32": "True", "add_bias_linear": "False", "attention_backend": "AttnBackend.auto",
    "attention_dropout": "0.0", "bf16": "True", "cp_comm_type": "['p2p']", "cross_entropy_loss_fusion": "False",
    "data_path": "['data/some text']", "ffn_hidden_size": "14336", "fp8": "None", "global_batch_size": "64",
    "group_query_attention": "True", "hidden_dropout": "0.0", "hidden_size": "4096", "max_position_embeddings": "8192",
    "micro_batch_size": "1", "normalization": "RMSNorm", "num_attention_heads": "32", "num_experts": "None",
    "num_layers": "32", "num_query_groups": "8", "params_dtype": "torch.bfloat16",
    "pipeline_model_parallel_size": "2", "position_embedding_type": "rope", "profile_ranks": "[0]",
    "seq_length": "8192", "sequence_parallel": "True", "split": "969, 30, 1", "swiglu": "True",
    "tensor_model_parallel_size": "4", "untie_embeddings_and_output_weights": "True",
    "use_distributed_optimizer": "True", "vocab_size": "None", "wandb_project": "", "world_size": "16",
}
MEGATRON = ("------------------------ arguments ------------------------\n" +
            "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in ARGUMENTS.items()) +
            "-------------------- end of arguments ---------------------\n"
            " > padded vocab (size: 128256) with 256 dummy tokens (new size: 128512)\n" +
            "".join(f" iteration {step:8d}/    1000 | elapsed time per iteration (ms): 5000.0 | global batch size:    64 |\n"
                    for step in (10, 20, 30)))


def fivefold(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60)


class Doctor(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name, text):
        path = Path(self.folder.name) / name
        path.write_text(text)
        return path

    def log(self, memory, pace):
        return self.write("log.txt", STEP.format(1, memory, 100) + STEP.format(10, memory, pace) + STEP.format(20, memory, pace))

    def test_reconcile_holds_a_log_against_its_configuration(self):
        config = self.write("titan.toml", TITAN)
        run = fivefold("reconcile", config, "--log", self.log("77.00", "6,667"))
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        run = fivefold("reconcile", config, "--log", self.log("50.00", "6,667"), "--json")
        self.assertEqual(run.returncode, 5, run.stdout + run.stderr)
        result = json.loads(run.stdout)
        self.assertFalse(result["pass"])
        for row in result["rows"]:
            self.assertEqual(list(row), ["quantity", "rank", "predicted", "measured", "difference", "bound", "pass", "cause"])
        memory = next(row for row in result["rows"] if row["quantity"] == "memory.peak.reserved")
        self.assertEqual(memory["measured"], 50 << 30)

    def test_the_logs_own_arguments_are_a_configuration(self):
        log = self.write("megatron.log", MEGATRON)
        run = fivefold("reconcile", "--log", log, "--hardware", "dgx-h100", "--json")
        self.assertIn(run.returncode, (0, 5), run.stderr)
        result = json.loads(run.stdout)
        pace = next(row for row in result["rows"] if row["quantity"] == "tokens_per_s.gpu")
        self.assertEqual(pace["measured"], 64 * 8192 / 5 / 16)
        self.assertFalse([note for note in result["notes"] if note.startswith("the log's run had")])
        run = fivefold("reconcile", "--log", log, "--hardware", "dgx-h100", "--set", "batch.micro=2", "--json")
        self.assertIn("the log's run had micro_batch_size = 1, the configuration 2", json.loads(run.stdout)["notes"])

        flags = " ".join(f"--{name}" if value == "True" else f"--{name} {value}" for name, value in ARGUMENTS.items()
                         if value not in ("None", "False", "") and name not in ("world_size", "split", "data_path",
                                                                                 "cp_comm_type", "profile_ranks"))
        script = self.write("run.sh", "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --vocab-size 128256 "
                            "--disable-bias-linear " + flags.replace("AttnBackend.", "") + "\n")
        same = json.loads(fivefold("reconcile", script, "--log", log, "--hardware", "dgx-h100", "--json").stdout)
        of_script = next(row for row in same["rows"] if row["quantity"] == "tokens_per_s.gpu")
        self.assertAlmostEqual(of_script["predicted"] / pace["predicted"], 1, delta=0.01)  # 128,256 words, and padded

    def test_several_logs_are_one_run(self):
        config = self.write("titan.toml", TITAN)
        smi = self.write("smi.csv", "index, memory.used [MiB], utilization.gpu [%]\n0, 81000 MiB, 99 %\n")
        run = fivefold("reconcile", config, "--log", self.log("77.00", "6,667"), "--log", smi, "--json")
        kinds = {row["quantity"] for row in json.loads(run.stdout)["rows"]}
        self.assertTrue({"memory.peak.reserved", "memory.peak.process", "tokens_per_s.gpu"} <= kinds, kinds)

    def test_remedies_need_what_is_said_of_them(self):
        config = self.write("titan.toml", TITAN)
        oom = self.write("oom.txt", OOM)
        run = fivefold("doctor", config, "--log", oom, "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        diagnosis = json.loads(run.stdout)
        self.assertEqual(diagnosis["symptom"], "oom")
        # 4 B x 8,192 x 128,256 is 3.91 GiB; here two sequences are one micro-batch: 2 B a word.
        self.assertIn("logits", diagnosis["steps"][0]["finding"])
        self.assertGreater(len(diagnosis["remedies"]), 3)
        for remedy in diagnosis["remedies"]:
            settings = sum((["--set", setting] for setting in remedy["set"]), [])
            again = json.loads(fivefold("doctor", config, "--symptom", "oom", *settings, "--json").stdout)
            self.assertEqual(again["need"], remedy["need"], remedy["remedy"])
            self.assertEqual(again["need"] <= again["capacity"], remedy["fits"], remedy["remedy"])

    def test_own_configurations_and_symptoms(self):
        own = ["--set", "model.name=llama-3.1-8b", "--set", "hardware.name=rtx-4090", "--set", "batch.sequence=2048"]
        diagnosis = json.loads(fivefold("doctor", *own, "--json").stdout)
        self.assertEqual(diagnosis["symptom"], "oom")
        self.assertGreater(diagnosis["need"], diagnosis["capacity"])
        config = self.write("titan.toml", TITAN)
        for symptom in ("oom", "slow", "scaling"):
            run = fivefold("doctor", config, "--symptom", symptom)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertTrue(run.stdout.startswith({"oom": "out of memory"}.get(symptom, symptom)), run.stdout)

    def test_bad_input_is_exit_code_2(self):
        config = self.write("titan.toml", TITAN)
        diary = self.write("diary.txt", "Dear diary\n")
        own = self.write("own.toml", TITAN.replace("fsdp2", "fivefold").replace('switches = ["cross_entropy=eager"]', ""))
        cases = [
            (["doctor"], "there is nothing to look at"),
            (["doctor", "--request", "many"], "--request"),
            (["doctor", "--symptom", "slow", "--request", "1GiB"], "fivefold doctor CONFIG --symptom slow"),
            (["doctor", config, "--log", diary], "is no log that is known"),
            (["doctor", config, "--log", "/nowhere.log"], "/nowhere.log"),
            (["doctor", config, "--symptom", "cold"], "--symptom"),
            (["reconcile", "--log", self.write("megatron.log", MEGATRON)], "nothing says which GPUs the run had"),
            (["reconcile", "--log", self.log("77", "1")], "no configuration is given"),
            (["doctor", diary], "is neither a configuration (TOML) nor a launch script"),
            (["reconcile", config, "--log", diary, "--from", "megatorn"], "did you mean megatron?"),
            (["reconcile", config, "--log", diary, "--from", "hf"], "no log_history"),
            (["reconcile", own, "--log", self.log("77", "1")], "say which framework the log is of"),
            (["reconcile"], "reconcile CONFIG --log FILE"),
        ]
        for arguments, message in cases:
            with self.subTest(arguments=arguments):
                run = fivefold(*arguments)
                self.assertEqual(run.returncode, 2, run.stdout + run.stderr)
                self.assertIn(message, run.stderr)


if __name__ == "__main__":
    unittest.main()
