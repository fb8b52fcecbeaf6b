#!/usr/bin/env python3
"""target_parsers.py FIVEFOLD [--megatron FOLDER]: exports every plan of tests/exporters/plans and hands the files to the
target's own parser, where the target is installed in this Python; Megatron-LM is a checkout. No GPU is needed. Prints a
line a plan; exits 1 when one is refused. Run by hand: docs/export.md has what it showed."""

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import types

PLANS = pathlib.Path(__file__).resolve().parent / "plans"
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "axolotl")


def launched(folder, script):
    """The command line that the script starts, with launchers that write it down instead of running it."""
    stubs = folder / "stubs"
    stubs.mkdir()
    for name in LAUNCHERS:
        stub = stubs / name
        stub.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done >"$STUB_OUT"\n')
        stub.chmod(0o755)
    out = folder / "words"
    environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "STUB_OUT": str(out), "NODE_RANK": "0",
                   "MASTER_ADDR": "localhost"}
    subprocess.run(["bash", str(script)], check=True, env=environment, cwd=folder)
    return out.read_text().split("\0")[:-1]


def after(words, program):
    return words[words.index(program) + 1:]


def count_ranks(words):
    value = lambda name: int(words[words.index(name) + 1])
    return value("--nproc_per_node") * value("--nnodes")


def check_megatron(folder, words, options):
    import torch
    import typing_extensions
    import typing
    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override
    sys.path.insert(0, options.megatron)
    from megatron.training import arguments
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # as the script exports it
    os.environ["WORLD_SIZE"] = str(count_ranks(words))
    # Asked about the GPU: an H100, with Transformer Engine.
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0)
    torch.cuda.device_count = lambda: 8
    arguments.is_te_min_version = lambda *_, **__: True
    sys.argv = ["pretrain_gpt.py"] + after(words, "pretrain_gpt.py")
    parsed = arguments.parse_args()
    arguments.validate_args(parsed)
    return f"dp {parsed.data_parallel_size}, {parsed.num_layers} layers"


def check_torchtitan(folder, words, options):
    sys.path.insert(0, str(folder))
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed import ParallelDims
    config = ConfigManager().parse_args(after(words, "torchtitan.train"))
    p = config.parallelism
    names = [name for name in ParallelDims.__dataclass_fields__]
    given = {"dp_replicate": p.data_parallel_replicate_degree, "dp_shard": p.data_parallel_shard_degree,
             "cp": p.context_parallel_degree, "tp": p.tensor_parallel_degree, "pp": p.pipeline_parallel_degree,
             "ep": p.expert_parallel_degree, "world_size": count_ranks(words)}
    ParallelDims(**{name: value for name, value in given.items() if name in names})
    parts = p.module_fqns_per_model_part
    layers = len(config.model_spec.model.layers)
    if parts:
        listed = [name for part in parts for name in part if name.startswith("layers.")]
        assert listed == [f"layers.{i}" for i in range(layers)], listed
    return f"{config.model_spec.name} {config.model_spec.flavor}, {layers} layers"


def check_trainer(folder, words, program, options):
    from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser
    here = os.getcwd()
    os.chdir(folder)
    try:
        arguments = after(words, program) + ["--use_cpu"]
        script, training, model = TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config(arguments)
        from trl import get_peft_config
        peft = get_peft_config(model)
    finally:
        os.chdir(here)
    return f"{model.model_name_or_path}, batch {training.per_device_train_batch_size} x " \
           f"{training.gradient_accumulation_steps}, {'LoRA' if peft else 'full'}"


def check_trl(folder, words, options):
    return check_trainer(folder, words, "trl.scripts.sft", options)


def check_accelerate(folder, words, options):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    load_config_from_file(str(folder / "accelerate.yaml"))
    here = os.getcwd()
    os.chdir(folder)
    try:
        parsed = launch_command_parser().parse_args(words[1:])
        parsed, _, _ = _validate_launch_command(parsed)
    finally:
        os.chdir(here)
    return f"{parsed.num_processes} processes; " + check_trainer(folder, words, "trl.scripts.sft", options)


def check_deepspeed(folder, words, options):
    import deepspeed.comm as comm
    from deepspeed.runtime.config import DeepSpeedConfig
    comm.get_rank = lambda *_: 0  # as if the job had begun
    value = lambda name: int(words[words.index(name) + 1])
    world = value("--num_nodes") * value("--num_gpus")
    grid = types.SimpleNamespace(get_data_parallel_world_size=lambda: world, get_model_parallel_world_size=lambda: 1)
    config = DeepSpeedConfig(str(folder / "ds_config.json"), grid)
    return f"stage {config.zero_config.stage}; " + check_trainer(folder, words, "trl.scripts.sft", options)


def check_axolotl(folder, words, options):
    import yaml
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault
    config = validate_config(DictDefault(yaml.safe_load((folder / "axolotl.yaml").read_text())))
    return f"{config.base_model}, batch {config.micro_batch_size} x {config.gradient_accumulation_steps}"


# Target: its check, the package that has its parser.
CHECKS = {"megatron": (check_megatron, None), "torchtitan": (check_torchtitan, "torchtitan"), "trl": (check_trl, "trl"),
          "accelerate": (check_accelerate, "accelerate"), "deepspeed": (check_deepspeed, "deepspeed"),
          "axolotl": (check_axolotl, "axolotl")}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fivefold")
    parser.add_argument("--megatron", help="checkout of NVIDIA/Megatron-LM")
    parser.add_argument("--plan", help="this plan alone, in this process")
    options = parser.parse_args()
    if options.plan is None:
        # A process a plan: the parsers keep state.
        failed = 0
        for plan in sorted(PLANS.glob("*.toml")):
            more = ["--megatron", options.megatron] if options.megatron else []
            done = subprocess.run([sys.executable, __file__, options.fivefold, "--plan", str(plan)] + more,
                                  capture_output=True, text=True)
            last = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()[-1]
            print(f"{plan.stem}: {last if done.returncode == 0 else 'REFUSED: ' + done.stderr.strip()[-600:]}", flush=True)
            failed += done.returncode != 0
        return 1 if failed else 0
    plan = pathlib.Path(options.plan)
    target = plan.stem.split("-")[0]
    check, package = CHECKS[target]
    if package and importlib.util.find_spec(package) is None or package is None and not options.megatron:
        print(f"skipped: {package or 'Megatron-LM'} is not there")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([options.fivefold, "export", str(plan), "--to", target, "--out", str(folder), "--quiet"], check=True,
                       stdout=subprocess.DEVNULL)
        words = launched(folder, next(folder.glob("*.sh")))
        with contextlib.redirect_stdout(io.StringIO()):
            said = check(folder, words, options)
    version = importlib.metadata.version(package) if package else "checkout"
    print(f"accepted by {package or 'Megatron-LM'} {version}: {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
