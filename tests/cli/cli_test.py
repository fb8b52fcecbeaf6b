#!/usr/bin/env python3
"""cli_test.py PROGRAM: what every user of the program relies on: exit codes, errors, JSON keys, closed pipes."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
LLAMA = ["--model", "llama-3.2-1b", "--gpu", "dgx-h100", "--gpus", "8", "--sequence", "2048"]
EXPLAIN = ["explain", "--set", "model.name=llama-3.2-1b", "--set", "hardware.name=dgx-h100", "--set", "parallel.dp=8"]


def fivefold(*arguments, **options):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, **options)


class Cli(unittest.TestCase):
    def test_help_and_version(self):
        self.assertIn("explain", fivefold("--help").stdout)
        self.assertRegex(fivefold("--version").stdout, r"^fivefold \d+\.\d+\.\d+\n$")
        for command in ("plan", "explain"):
            self.assertIn("--set KEY=VALUE", fivefold(command, "--help").stdout)

    def test_host_and_start_up_of_other_frameworks(self):
        offloaded = ["explain", "--set", "model.name=llama-2-7b", "--set", "hardware.name=dgx-a100-40gb", "--set",
                     "framework.name=deepspeed", "--set", "parallel.dp=4", "--set", "parallel.zero=3", "--set",
                     'framework.switches=["optimizer_on_host=on", "weights_on_host=on"]']
        run = fivefold(*offloaded)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("init=sharded, assumed", run.stdout)
        # 18 B x 6,738,415,616 and 4 x 2 GiB of processes.
        self.assertIn("training: 120.96 GiB of a node's host, 4 ranks", run.stdout)
        host = json.loads(fivefold(*offloaded, "--json").stdout)["host"]
        self.assertEqual(host["node"], 18 * 6738415616 + 4 * 2 * 2**30)

    def test_plan_says_when_gradients_should_be_reduced_once(self):
        run = fivefold("explain", "--set", "model.name=smollm2-1.7b", "--set", "hardware.name=v100-8-100g", "--set",
                       "parallel.dp=16", "--set", "parallel.zero=3", "--set", "batch.global=128", "--set",
                       "precision.compute=fp16")
        self.assertIn("use reduce = step", run.stderr)

    def test_bad_input_is_exit_code_2_with_every_problem(self):
        cases = [
            (["plam"], "did you mean plan?"),
            ([], "subcommand"),
            (["plan", "--gpus", "0"], "--gpus"),
            (["plan", "--unknown"], "--unknown"),
            (["plan", "--model", "llama-3.1-8c", "--gpu", "h100"], "did you mean llama-3.1-8b?"),
            (["plan", "--model", "llama-3.1-8b", "--gpu", "dgx-h10"], "did you mean dgx-h100?"),
            (["plan", *LLAMA, "--method", "qlor"], "did you mean qlora?"),
            (["plan", *LLAMA, "--cards", "1,x"], '"x" is no number of cards'),
            (["plan", *LLAMA, "--memory", "lots"], "limits.memory"),
            (["plan", *LLAMA, "--global-batch", "12", *sum((["--set", f"parallel.{k}=1"] for k in ("tp", "cp", "pp")), [])],
             "use 8 or 16"),
            (["plan", *LLAMA, "--minimize", "gpus", "--maximize", "throughput"], "--minimize"),
            (["explain"], "no model is given"),
            (["explain", "/nowhere.toml"], "/nowhere.toml"),
            ([*EXPLAIN, "--set", "parallel.zer=1"], "did you mean parallel.zero?"),
            ([*EXPLAIN, "--set", "parallel.ep=2"], "parallel.ep: 2 needs a model with experts"),
            ([*EXPLAIN, "--set", "comm.simulate=dgx-h10"],
             'comm.simulate: unknown name "dgx-h10"\n    -> did you mean dgx-h100?'),
            ([*EXPLAIN, "--set", "comm.simulate=/nowhere.toml"], "comm.simulate: /nowhere.toml: no such file"),
            ([*EXPLAIN, "--set", "comm.simulate=h100-sxm-80gb", "--set", "parallel.dp=16"],
             "comm.simulate: h100-sxm-80gb is one node of 8 devices without a network, the run has 16 ranks\n"
             "    -> use 8 ranks or fewer, or a cluster, for example simulate = dgx-h100"),
            (["plan", *LLAMA, "--set", "comm.simulate=l4", "--cards", "1,64"], "the run has 64 ranks"),
            ([*EXPLAIN, "--compare", "parallel.zero"], "is not KEY=VALUE"),
            ([*EXPLAIN, "--compare", "parallel.zero=8,9"], "(with parallel.zero = 9)"),
        ]
        for arguments, message in cases:
            with self.subTest(arguments=arguments):
                run = fivefold(*arguments)
                self.assertEqual(run.returncode, 2, run.stdout + run.stderr)
                self.assertIn(message, run.stderr)
                self.assertEqual(run.stdout, "")
        two = fivefold("plan", "--model", "llama-3.1-8c", "--gpu", "dgx-h10")
        self.assertIn("2 problems", two.stderr)

    def test_no_fit_is_exit_code_3_and_names_its_kind(self):
        run = fivefold("plan", *LLAMA, "--memory", "2GB", "--method", "full", "--json")
        self.assertEqual(run.returncode, 3)
        plan = json.loads(run.stdout)
        self.assertFalse(plan["fits"])
        self.assertIn(plan["does_not_fit"]["kind"], ("states", "activations", "one layer"))
        self.assertTrue(plan["does_not_fit"]["fixes"])

    def test_no_fit_lists_remedies_that_can_be_pasted(self):
        run = fivefold("plan", "--model", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "1", "--sequence", "4096",
                       "--memory", "30GB", "--method", "full", "--json")
        self.assertEqual(run.returncode, 3, run.stderr)
        remedies = json.loads(run.stdout)["does_not_fit"]["remedies"]
        kinds = [remedy["remedy"] for remedy in remedies["each"]]
        # One rank: nothing about sharding, which would say what follows anyway.
        self.assertIn(["method.kind=lora", "recompute.kind=full"], [remedy["set"] for remedy in remedies["each"]])
        self.assertIn("LoRA", kinds)
        self.assertLess(kinds.index("LoRA"), kinds.index("QLoRA"))
        for remedy in remedies["each"]:
            self.assertEqual(remedies["peak"] - remedy["saves"], remedy["peak"])
            self.assertEqual(remedy["fits"], remedy["peak"] <= remedy["capacity"])
            settings = sum((["--set", setting] for setting in remedy["set"]), [])
            explained = fivefold("explain", "--set", "model.name=llama-3.1-8b", "--set", "hardware.name=h100-sxm-80gb",
                                 "--set", "batch.sequence=4096", *settings, "--json")
            self.assertEqual(explained.returncode, 0, explained.stderr)
            memory = json.loads(explained.stdout)["ranks"][0]["memory"]
            self.assertEqual(memory["peak"], remedy["peak"], remedy["remedy"])

    def test_remedies_are_a_narrow_table_with_settings_that_a_shell_takes(self):
        run = fivefold("plan", *LLAMA, "--memory", "2GB", "--method", "full")
        table = run.stdout[run.stdout.index("\nRemedies"):].strip().split("\n\n")[0].split("\n")
        self.assertLessEqual(max(map(len, table)), 100)
        listed = json.loads(fivefold("plan", *LLAMA, "--memory", "2GB", "--method", "full", "--json").stdout)
        settings = [remedy["set"] for remedy in listed["does_not_fit"]["remedies"]["each"]]
        pasted = "\n".join(line for line in table if line.startswith("    --set")).replace(" \\\n", " ")
        self.assertEqual([line.replace("--set", "").split() for line in pasted.split("\n")], settings)

    def test_plan_goes_on_to_adapters_unless_the_method_is_set(self):
        model = ["--model", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "1", "--sequence", "512"]
        # 16, about 2 and 0.52 bytes for each of 8.03e9 parameters.
        for memory, methods in (("40GB", ["full", "lora"]), ("12GB", ["full", "lora", "qlora"])):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "found.toml")
                run = fivefold("plan", *model, "--memory", memory, "--json", "--out", path)
                self.assertEqual(run.returncode, 0, run.stderr)
                plan = json.loads(run.stdout)
                self.assertTrue(plan["fits"])
                self.assertEqual(plan["method"], methods[-1])
                unfit = plan["methods_that_do_not_fit"]
                self.assertEqual([method["method"] for method in unfit], methods[:-1])
                for method in unfit:
                    self.assertEqual(method["missing"], method["smallest_peak"] - method["capacity"])
                    self.assertGreater(method["missing"], 0)
                self.assertTrue(unfit[0]["fixes"] and unfit[0]["remedies"]["each"])
                text = fivefold("plan", *model, "--memory", memory).stdout
                self.assertIn("Full training does not fit 1 rank (states)", text)
                self.assertEqual("Nor does LoRA" in text, "qlora" in methods)
                # The file is the plan.
                explained = json.loads(fivefold("explain", path, "--json").stdout)
                self.assertEqual(explained["ranks"][0]["memory"]["peak"], plan["plans"][0]["memory"]["peak"])
                with open(path) as file:
                    self.assertIn(f'kind = "{methods[-1]}"', file.read())
            for kind in ("full", methods[-1]):
                plan = json.loads(fivefold("plan", *model, "--memory", memory, "--method", kind, "--json").stdout)
                self.assertEqual((plan["fits"], plan["method"]), (kind != "full", kind))
                self.assertNotIn("methods_that_do_not_fit", plan)

    def test_comparisons_keep_columns_that_are_not_valid(self):
        run = fivefold(*EXPLAIN, "--compare", "parallel.zero=1,9", "--compare", "batch.micro=1,2", "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        compared = json.loads(run.stdout)
        self.assertEqual(compared["keys"], ["parallel.zero", "batch.micro"])
        columns = compared["configurations"]
        self.assertEqual([(c["settings"]["parallel.zero"], c["settings"]["batch.micro"]) for c in columns],
                         [("1", "1"), ("1", "2"), ("9", "1"), ("9", "2")])
        self.assertEqual(["errors" in column for column in columns], [False, False, True, True])
        self.assertIn("0 to 3", columns[2]["errors"][0]["problem"])
        memory = columns[0]["ranks"][0]["memory"]
        self.assertEqual(columns[0]["counted_bytes"], 8 * memory["peak"])
        many = fivefold(*EXPLAIN, "--compare", "parallel.zero=0,1,2,3", "--compare", "batch.micro=1,2,4,8")
        self.assertEqual(many.returncode, 2)
        self.assertIn("16 configurations", many.stderr)

    def test_plan_json_has_the_documented_keys(self):
        plan = json.loads(fivefold("plan", *LLAMA, "--json").stdout)
        self.assertTrue(plan["fits"])
        self.assertEqual(len(plan["steps"]), 5)
        self.assertGreater(plan["evaluated"], 50)
        self.assertGreaterEqual(plan["wall_time"], 0)
        for key in ("gpus", "parallel", "batch", "precision", "recompute", "memory", "step_time", "tokens_per_s", "mfu",
                    "cost_per_hour"):
            self.assertIn(key, plan["plans"][0])
        memory = plan["plans"][0]["memory"]
        for key in ("peak", "capacity", "error_pct", "accounts"):
            self.assertIn(key, memory)
        self.assertEqual(sum(memory["at_peak"].values()), memory["peak"])
        self.assertLessEqual(memory["peak"], memory["capacity"])
        for key in ("parallel", "reason", "fix"):
            self.assertIn(key, plan["rejected"][0])

    def test_plan_leaves_keys_that_are_set(self):
        plan = json.loads(fivefold("plan", *LLAMA, "--json", "--set", "parallel.tp=2", "--set", "batch.micro=1").stdout)
        self.assertEqual(plan["fixed"], ["parallel.tp = 2", "batch.micro = 1"])
        for entry in plan["plans"]:
            self.assertEqual((entry["parallel"]["tp"], entry["batch"]["micro"]), (2, 1))
        # dp of a file is the number of ranks, unless --gpus says it.
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.toml")
            with open(path, "w") as file:
                file.write("[parallel]\ndp = 2\n")
            self.assertEqual(json.loads(fivefold("plan", path, *LLAMA, "--json").stdout)["plans"][0]["gpus"], 8)
            model = LLAMA[:LLAMA.index("--gpus")] + LLAMA[LLAMA.index("--gpus") + 2:]
            self.assertEqual(json.loads(fivefold("plan", path, *model, "--json").stdout)["plans"][0]["gpus"], 2)

    def test_plan_says_why_each_kind_of_split_loses(self):
        plan = json.loads(fivefold("plan", *LLAMA, "--json").stdout)
        kinds = [rejection["kind"] for rejection in plan["rejected"]]
        self.assertIn("tp only", kinds)
        self.assertIn("pp only", kinds)
        self.assertIn("cp only", kinds)
        self.assertGreater(plan["evaluated"], plan["replayed"])

    def test_explain_json_groups_ranks_that_are_alike(self):
        grouped = json.loads(fivefold(*EXPLAIN, "--json").stdout)
        self.assertEqual([(r["ranks"], r["count"]) for r in grouped["ranks"]], [("0-7", 8)])
        for key in ("kind", "group", "purpose", "calls", "bytes"):
            self.assertIn(key, grouped["ranks"][0]["traffic"][0])
        self.assertIn("bubble", grouped)
        parts = grouped["time"]["parts"]
        self.assertAlmostEqual(sum(parts.values()), grouped["time"]["step_seconds"])
        each = json.loads(fivefold(*EXPLAIN, "--json", "--ranks", "--timeline").stdout)
        self.assertEqual([r["ranks"] for r in each["ranks"]], [str(i) for i in range(8)])
        self.assertGreater(len(each["timeline"]), 40)

    def test_timeline_draws_every_pipeline_rank_in_the_width_there_is(self):
        pipeline = [*EXPLAIN[:-2], "--set", "parallel.pp=4", "--set", "parallel.schedule=1f1b", "--set",
                    "batch.global=8"]
        for columns, width in (("72", 72), ("160", 160), ("20", 9 + 20 + 31), ("no number", 120)):
            with self.subTest(columns=columns):
                run = fivefold(*pipeline, "--timeline", env={**os.environ, "COLUMNS": columns})
                lines = [line for line in run.stdout.splitlines() if line.startswith("rank ") and "|" in line]
                self.assertEqual([line[:6] for line in lines], ["rank 0", "rank 1", "rank 2", "rank 3"])
                self.assertTrue(all(" bubble " in line for line in lines))
                self.assertLessEqual(max(map(len, lines)), width)
                self.assertEqual(len({line.rindex("|") for line in lines}), 1)
        wide = fivefold(*pipeline, "--timeline", env={**os.environ, "COLUMNS": "200"}).stdout
        self.assertRegex(wide, r"rank 0  \|F0-* ?F1-* ?F2-* ?F3-* ?\.+BW0-* F4")
        self.assertRegex(wide, r"rank 3  \|\.+F0?-* ?L-* ?BW0")
        chunks = fivefold(*pipeline, "--set", "parallel.vpp=2", "--set", "parallel.schedule=zbv", "--timeline",
                          env={**os.environ, "COLUMNS": "400"}).stdout
        self.assertRegex(chunks, r"rank 0  \|F0-* ?F1")
        self.assertRegex(chunks, r"rank 3  \|\.+F0?-* ?f0?")
        self.assertIn("small letters the second chunk", chunks)

    def test_timeline_without_a_pipeline_has_computing_and_network(self):
        lines = fivefold(*EXPLAIN, "--set", "parallel.zero=3", "--timeline").stdout.splitlines()
        self.assertTrue(any(re.match(r"compute \|~+F[-~F0 ]+L", line) for line in lines))
        self.assertTrue(any(re.match(r"network \|G", line) for line in lines))
        listed = fivefold(*EXPLAIN, "--instructions").stdout
        self.assertIn("forward layers.0 #0", listed)
        self.assertNotIn("compute |", listed)

    def test_timeline_json_and_trace_have_every_pipeline_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            run = fivefold(*EXPLAIN[:-2], "--set", "parallel.pp=2", "--set", "batch.global=4", "--timeline", "--json",
                           "--trace", path)
            self.assertEqual(run.returncode, 0, run.stderr)
            explained = json.loads(run.stdout)
            self.assertEqual({entry["pipeline_rank"] for entry in explained["timeline"]}, {0, 1})
            self.assertEqual(len(explained["pipeline"]), 2)
            with open(path) as file:
                events = json.load(file)["traceEvents"]
            self.assertEqual({event["tid"] // 2 for event in events if event["ph"] == "X"}, {0, 1})
            refused = fivefold(*EXPLAIN, "--trace", os.path.join(folder, "none", "plan.json"))
            self.assertEqual(refused.returncode, 2)
            self.assertIn("cannot be written", refused.stderr)

    def test_written_plan_is_explained_as_planned(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.toml")
            plan = json.loads(fivefold("plan", *LLAMA, "--json", "--out", path).stdout)["plans"][0]
            explained = json.loads(fivefold("explain", path, "--json").stdout)
            self.assertEqual(explained["ranks"][0]["memory"]["peak"], plan["memory"]["peak"])
            self.assertAlmostEqual(explained["time"]["step_seconds"], plan["step_time"])

    def test_validate_scores_rows_by_source(self):
        row = {"id": "a-1", "source": "simumax_b200_real", "model": "m", "layers": 2, "hidden": 1024, "heads": 8, "ffn": 4096,
               "vocab": 32000, "n_gpus": 8, "seq_len": 4096, "micro_batch": 1, "global_batch": 8, "gpu": "B200-180GB",
               "precision": "bf16", "mem_gib_per_gpu": 8, "mem_trust": "A", "outcome": "ok", "split": "train"}
        rows = [row, {**row, "id": "a-2", "split": "exclude"}, {**row, "id": "a-3", "hidden": ""},
                {**row, "id": "b-1", "source": "torchtitan", "mem_trust": "C"}]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "runs.csv")
            with open(path, "w") as file:
                file.write("# where they are from\n" + ",".join(row) + "\n")
                file.writelines(",".join(map(str, r.values())) + "\n" for r in rows)
            result = json.loads(fivefold("validate", path, "--json").stdout)
            self.assertEqual([source["source"] for source in result["sources"]], ["simumax_b200_real", "torchtitan"])
            first, second = result["sources"]
            self.assertEqual(set(first["memory"]), {"n", "median_abs_pct", "p90_abs_pct", "bias_pct"})
            self.assertEqual((first["memory"]["n"], first["throughput"]["n"], first["fit"]["n"]), (1, 0, 1))
            self.assertEqual(first["reasons"], {"the model's shape is not stated": 1})
            self.assertEqual((second["memory"]["n"], second["memory_looked_at"]["n"]), (0, 1))
            predicted = result["rows"][0]
            self.assertEqual((predicted["id"], predicted["measured_peak"], predicted["skipped"]), ("a-1", 8 * 2**30, None))
            self.assertAlmostEqual(first["memory"]["bias_pct"],
                                   100 * (predicted["predicted_peak"] / predicted["measured_peak"] - 1))
            self.assertIn("exclude", result["rows"][1]["skipped"])
            text = fivefold("validate", path, path, "--source", "simumax_b200_real", "--rows").stdout
            self.assertIn("Left out, with the reason", text)
            self.assertRegex(text, r"a-1 +runs.csv:3")
            self.assertNotIn("torchtitan", text)
            for arguments, message in [([path, "--source", "torchtitn"], "did you mean torchtitan?"),
                                       ([os.path.join(folder, "none.csv")], "none.csv: cannot open"), ([], "csv is required")]:
                run = fivefold("validate", *arguments)
                self.assertEqual(run.returncode, 2)
                self.assertIn(message, run.stderr)

    def test_colour_is_asked_for(self):
        self.assertNotIn("\033[", fivefold(*EXPLAIN).stdout)
        self.assertIn("\033[", fivefold(*EXPLAIN, "--color", "always").stdout)

    def test_closed_pipe_ends_quietly(self):
        read, write = os.pipe()
        os.close(read)
        run = subprocess.run([PROGRAM, *EXPLAIN], stdout=write, stderr=subprocess.PIPE, timeout=60)
        os.close(write)
        self.assertEqual(run.returncode, 0)
        self.assertEqual(run.stderr, b"")

    def test_full_disk_is_exit_code_4(self):
        with open("/dev/full", "w") as full:
            run = subprocess.run([PROGRAM, *EXPLAIN], stdout=full, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(run.returncode, 4)


if __name__ == "__main__":
    unittest.main()
