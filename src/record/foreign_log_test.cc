// Logs as other frameworks print them: each sample has the constructs of the upstream file named beside it, with
// numbers of our own; what a reader must make of them is worked out by hand.
#include "record/foreign_log.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/units.h"
#include "record/log_summary.h"

namespace fivefold {
namespace {

constexpr double kMegabyte = 0x1p20;

ForeignLog parse(const std::string& text, std::optional<LogKind> kind = std::nullopt) {
  const Result<ForeignLog> log = parse_foreign_log(text, "log", kind);
  EXPECT_TRUE(log.ok()) << (log.ok() ? "" : log.error().message());
  return log.ok() ? *log : ForeignLog{};
}

// megatron/training/training.py training_log(), utils.py report_memory(), arguments.py _print_args(), timers.py.
constexpr const char* kMegatron = R"(using world size: 16, data-parallel size: 2
------------------------ arguments ------------------------
  micro_batch_size ................................ 1
  sequence_parallel ............................... True
  seq_length ...................................... 4096
  tensor_model_parallel_size ...................... 8
  world_size ...................................... 16
-------------------- end of arguments ---------------------
 > padded vocab (size: 50257) with 943 dummy tokens (new size: 51200)
Theoretical memory footprints: weight and optimizer=9884.48 MB, activation=2048.00 MB, total=11932.48 MB
[Rank 0] (after 10 iterations) memory (MB) | allocated: 9909.08 | max allocated: 50277.15625 | reserved: 53386.0 | max reserved: 53386.0
[Rank 8] (after 10 iterations) memory (MB) | allocated: 8909.08 | max allocated: 40277.50 | reserved: 43386.0 | max reserved: 43390.0 | total device memory used: 45000.00
 [2025-03-31 05:54:07] iteration       10/    1000 | consumed samples:          640 | elapsed time per iteration (ms): 9552.8 | throughput per GPU (TFLOP/s/GPU): 34.0 | learning rate: 8.000000E-06 | global batch size:    64 | lm loss: 1.085831E+01 | loss scale: 1.0 | grad norm: 1.520 | number of skipped iterations:   0 | number of nan iterations:   0 |
 [2025-03-31 05:54:17] iteration       20/    1000 | consumed samples:         1280 | elapsed time per iteration (ms): 1000.0 | throughput per GPU (TFLOP/s/GPU): 400.0 | learning rate: 8.000000E-06 | global batch size:    64 | lm loss: 6.0E+00 | loss scale: 1.0 | grad norm: nan | number of skipped iterations:   0 | number of nan iterations:   0 |
(min, max) time across ranks (ms):
    forward-backward ...............................: (810.82, 824.28)
    optimizer ......................................: (40.02, 41.98)
 [2025-03-31 05:54:27] iteration       30/    1000 | consumed samples:         1920 | elapsed time per iteration (ms): 1020.0 | throughput per GPU (TFLOP/s/GPU): 392.0 | learning rate: 8.000000E-06 | global batch size:    64 | lm loss: 5.5E+00 | loss scale: 1.0 | grad norm: 2.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
 [2025-03-31 05:54:37] iteration       40/    1000 | consumed samples:         2560 | elapsed time per iter)";

TEST(MegatronLog, StepsMemoryArgumentsAndTimers) {
  const ForeignLog log = parse(kMegatron);
  ASSERT_EQ(log.kinds, std::vector{LogKind::kMegatron});
  ASSERT_EQ(log.steps.size(), 3U);
  EXPECT_EQ(log.cut_lines, 1);
  EXPECT_DOUBLE_EQ(*log.steps[1].seconds, 1.0);
  EXPECT_DOUBLE_EQ(*log.steps[1].flops_per_s, 400e12);
  EXPECT_DOUBLE_EQ(*log.steps[0].loss, 10.85831);
  EXPECT_FALSE(log.steps[1].grad_norm);  // nan
  EXPECT_EQ(log.peak(LoggedMemoryKind::kAllocated), static_cast<int64_t>(50277.15625 * kMegabyte));
  ASSERT_EQ(log.memory.size(), 7U);
  EXPECT_EQ(log.memory[0].kind, LoggedMemoryKind::kBetweenSteps);
  EXPECT_EQ(log.memory[0].bytes, static_cast<int64_t>(std::llround(9909.08 * kMegabyte)));
  EXPECT_EQ(log.memory[3].rank, 8);
  EXPECT_EQ(log.memory[6].kind, LoggedMemoryKind::kProcess);
  EXPECT_EQ(log.memory[6].bytes, 45000 * kMiB);
  EXPECT_EQ(log.arguments.at("tensor_model_parallel_size"), "8");
  EXPECT_EQ(log.arguments.at("sequence_parallel"), "True");
  EXPECT_EQ(log.arguments.at("padded_vocab_size"), "51200");
  EXPECT_EQ(log.theoretical_states, static_cast<int64_t>(9884.48 * kMegabyte));
  EXPECT_DOUBLE_EQ(log.timers_ms.at("forward-backward"), 824.28);
}

TEST(MegatronLog, TheFirstLineIsWarmup) {
  const LogSummary summary = summarize(parse(kMegatron));
  EXPECT_EQ(summary.lines, 2);
  EXPECT_EQ(summary.left_out, 1);
  // The upper one of 1.00 and 1.02 s.
  EXPECT_DOUBLE_EQ(*summary.step_seconds, 1.02);
  EXPECT_DOUBLE_EQ(*summary.samples, 64);
}

// Megatron-DeepSpeed (Argonne): keys with underscores and '=', its own rates; srun --label before each line.
TEST(MegatronLog, WordsOfForks) {
  const ForeignLog log = parse(
      "0: [2024-09-16 22:59:19][INFO][training_log:661] -  iteration=       1/  635782 | consumed_samples=         768 "
      "| "
      "consumed_tokens=     3145728 | elapsed_time_per_iteration_ms=29570.0 | learning_rate=9.4372e-09 | "
      "global_batch_size=768 | lm loss=11.167250 | loss_scale=1.0 | grad_norm=6.363 | samples_per_second=25.972 | "
      "tokens_per_gpu_per_second_tgs=4432.597 | [LM]TFLOPs=20.30 | [DS]TFLOPs=26.18 |\n");
  ASSERT_EQ(log.steps.size(), 1U);
  EXPECT_EQ(log.steps[0].rank, 0);
  EXPECT_DOUBLE_EQ(*log.steps[0].seconds, 29.57);
  EXPECT_DOUBLE_EQ(*log.steps[0].tokens_per_s, 4432.597);
  EXPECT_DOUBLE_EQ(*log.steps[0].flops_per_s, 20.3e12);
  EXPECT_DOUBLE_EQ(*log.steps[0].loss, 11.16725);
  EXPECT_DOUBLE_EQ(*log.steps[0].grad_norm, 6.363);
}

TEST(MegatronLog, ARestartBeginsAnotherSession) {
  std::string text;
  for (const int step : {1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8})
    text += " iteration " + std::to_string(step) +
            "/ 100 | elapsed time per iteration (ms): " + (step % 4 == 0 ? "5000" : "100") + " | lm loss: 2.0 |\n";
  const LogSummary summary = summarize(parse(text));
  EXPECT_EQ(summary.sessions, 2);
  // Of 1-6 steps 4, 5 and 6 are left, of 4-8 steps 7 and 8: 5000, 100, 100, 100, 5000 ms.
  EXPECT_EQ(summary.lines, 5);
  EXPECT_DOUBLE_EQ(*summary.step_seconds, 0.1);
}

// torchtitan/components/metrics.py, colours as torchtitan/tools/utils.py Color writes them.
TEST(TorchtitanLog, StepsThroughColoursAndRanks) {
  const ForeignLog log = parse(
      "[rank0]:[titan] 2025-06-01 10:00:00,000 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB "
      "memory\n"
      "[rank0]:[titan] 2025-06-01 10:00:00,000 - root - INFO - Training starts at step 1, with local batch size 2, "
      "global "
      "batch size 16, sequence length 8192, total steps 1000 (warmup 200)\n"
      "[rank0]:[titan] 2025-06-01 10:00:00,000 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.2721  "
      "\x1b[38;2;180;60;0mgrad_norm:  4.0000  \x1b[36mmemory: 40.00GiB(50.57%)  \x1b[34mtps: 1,234  \x1b[36mtflops: "
      "71.41  "
      "\x1b[35mmfu: 7.22%\x1b[39m\n"
      "[rank0]:[titan] 2025-06-01 10:00:00,000 - root - WARNING - 3 CUDA memory allocation retries.\n"
      "[rank0]:[titan] 2025-06-01 10:00:00,000 - root - INFO - step: 10  loss:  9.5000  grad_norm:  2.0000  memory: "
      "50.25GiB(63.53%)  tps: 6,667  tflops: 386.10  mfu: 39.04%\n"
      "[rank0]:[titan] 2025-06-01 10:00:00,000 - root - INFO - validate step: 10  loss:  9.0  memory: 70.00GiB(90%)  "
      "tps: "
      "9,999\n");
  ASSERT_EQ(log.kinds, std::vector{LogKind::kTorchtitan});
  ASSERT_EQ(log.steps.size(), 2U);
  EXPECT_EQ(log.steps[1].rank, 0);
  EXPECT_DOUBLE_EQ(*log.steps[1].tokens_per_s, 6667);
  EXPECT_DOUBLE_EQ(*log.steps[1].flops_per_s, 386.1e12);
  EXPECT_DOUBLE_EQ(*log.steps[0].grad_norm, 4);
  EXPECT_EQ(log.peak(LoggedMemoryKind::kReserved), static_cast<int64_t>(50.25 * 0x1p30));
  EXPECT_EQ(log.capacity, static_cast<int64_t>(std::llround(79.10 * 0x1p30)));
  EXPECT_EQ(log.allocator_retries, 3);
  EXPECT_EQ(log.arguments.at("global_batch_size"), "16");
  EXPECT_DOUBLE_EQ(*summarize(log).tokens_per_s, 6667);
}

// Its rates were called wps before 2025.
TEST(TorchtitanLog, OlderWords) {
  const ForeignLog log =
      parse("2024-08-01 - root - INFO - step: 20  loss:  7.0  memory: 33.70GiB(35.49%)  wps: 5,762  mfu: 34.01%\n");
  ASSERT_EQ(log.steps.size(), 1U);
  EXPECT_DOUBLE_EQ(*log.steps[0].tokens_per_s, 5762);
}

// transformers/trainer_callback.py TrainerState, trainer_utils.py speed_metrics() and TrainerMemoryTracker.
TEST(TrainerLog, StateFile) {
  const ForeignLog log = parse(R"({"best_metric": null, "epoch": 1.0, "global_step": 20, "log_history": [
    {"epoch": 0.5, "grad_norm": 1.5, "learning_rate": 1e-05, "loss": 2.5, "step": 10},
    {"epoch": 1.0, "grad_norm": 0.5, "learning_rate": 0.0, "loss": 2.0, "step": 20},
    {"epoch": 1.0, "step": 20, "total_flos": 1e15, "train_loss": 2.25, "train_runtime": 40.0,
     "train_samples_per_second": 8.0, "train_steps_per_second": 0.5,
     "before_init_mem_gpu": 1000000, "init_mem_gpu_alloc_delta": 2000000, "train_mem_gpu_alloc_delta": -500000,
     "train_mem_gpu_peaked_delta": 7000000}], "max_steps": 20})");
  ASSERT_EQ(log.kinds, std::vector{LogKind::kTrainer});
  ASSERT_EQ(log.steps.size(), 2U);
  EXPECT_EQ(log.steps[1].step, 20);
  EXPECT_DOUBLE_EQ(*log.steps[1].loss, 2);
  EXPECT_EQ(log.peak(LoggedMemoryKind::kAllocated), 1000000 + 2000000 - 500000 + 7000000);
  const LogSummary summary = summarize(log);
  EXPECT_DOUBLE_EQ(*summary.step_seconds, 2.0);
  EXPECT_FALSE(summary.notes.empty());
}

// What ProgressCallback prints between a bar's states; numbers in quotes since transformers 5; ms-swift's memory(GiB).
TEST(TrainerLog, PrintedDictionariesAndTheBarsClock) {
  const ForeignLog log = parse(
      "Map: 100%|##########| 500/500 [09:00<00:00, 1000.00 examples/s]\n"
      "  1%|          | 1/100 [00:20<33:00, 20.00s/it]\r  4%|4         | 4/100 [00:30<33:00, 4.00s/it]\n"
      "{'loss': 2.6031, 'grad_norm': 1.88, 'learning_rate': 5e-07, 'epoch': 0.2, 'memory(GiB)': 33.5}\n"
      " 50%|#####     | 50/100 [02:48<02:30,  3.00s/it]{'loss': '2.1', 'grad_norm': '0.9', 'learning_rate': '1e-05', "
      "'epoch': '0.5'}\n"
      "100%|##########| 100/100 [05:18<00:00,  3.00s/it]\n"
      "{'train_runtime': 318.5, 'train_samples_per_second': 2.512, 'train_steps_per_second': 0.314, 'train_loss': 2.3, "
      "'epoch': 1.0}\n"
      "{'loss': 2.6031, 'grad_norm'");
  EXPECT_EQ(log.steps.size(), 2U);
  EXPECT_DOUBLE_EQ(*log.steps[1].loss, 2.1);
  EXPECT_EQ(log.cut_lines, 1);
  EXPECT_EQ(log.peak(LoggedMemoryKind::kReserved), static_cast<int64_t>(33.5 * 0x1p30));
  // From step 4 at 30 s to step 100 at 318 s: 3 s a step; the mapping of the data set is not the training.
  EXPECT_EQ(log.progress.back().total, 100);
  EXPECT_DOUBLE_EQ(*summarize(log).step_seconds, 3.0);
}

TEST(TrainerLog, MetricsTable) {
  const ForeignLog log = parse(
      "***** train metrics *****\n  epoch                    =        1.0\n  train_loss               =      1.234\n"
      "  train_runtime            = 0:05:00.50\n  train_samples_per_second =      4.0\n"
      "  train_steps_per_second   =       0.25\n");
  EXPECT_DOUBLE_EQ(*log.whole.seconds, 300.5);
  EXPECT_DOUBLE_EQ(*summarize(log).step_seconds, 4);
}

TEST(NvidiaSmiLog, CsvWithUnitsAndWithout) {
  const ForeignLog log = parse(
      "timestamp, index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]\n"
      "2026/07/27 12:00:00.000, 0, NVIDIA A100-SXM4-80GB, 1024 MiB, 81920 MiB, 0 %\n"
      "2026/07/27 12:00:01.000, 0, NVIDIA A100-SXM4-80GB, 70000 MiB, 81920 MiB, 90 %\n"
      "2026/07/27 12:00:01.000, 1, NVIDIA A100-SXM4-80GB, 60000, 81920, [N/A]\n"
      "2026/07/27 12:00:02.000, 0, NVIDIA A100-SXM4-80GB, 71000 MiB, 81920 MiB, 0 %\n"
      "2026/07/27 12:00:03.000, 0, NVIDIA A100-SXM4-80GB, 71000 MiB, 81920 MiB, 30 %\n"
      "2026/07/27 12:00:04.000, 0, NVIDIA A100-SXM4-80GB, 500 MiB, 81920 MiB, 0 %\n"
      "2026/07/27 12:00:05.000, 0, NVIDIA A1");
  ASSERT_EQ(log.kinds, std::vector{LogKind::kNvidiaSmi});
  ASSERT_EQ(log.memory.size(), 2U);
  EXPECT_EQ(log.peak(LoggedMemoryKind::kProcess), 71000 * kMiB);
  EXPECT_EQ(log.memory[1].bytes, 60000 * kMiB);
  ASSERT_EQ(log.cards.size(), 2U);
  // Between the first and the last sample with work: 90, 0, 30 %.
  EXPECT_DOUBLE_EQ(log.cards[0].mean_utilization, 0.4);
  EXPECT_EQ(log.capacity, 81920 * kMiB);
  EXPECT_EQ(log.cut_lines, 1);
}

TEST(NvidiaSmiLog, Table) {
  const ForeignLog log = parse(
      "| NVIDIA-SMI 535.54.03              Driver Version: 535.54.03    CUDA Version: 12.2     |\n"
      "|   0  NVIDIA A800-SXM4-80GB          On  | 00000000:3D:00.0 Off |                    0 |\n"
      "| N/A   31C    P0              62W / 400W |      2MiB / 81920MiB |      0%      Default |\n"
      "|                                         |                      |             Disabled |\n"
      "+-----------------------------------------+----------------------+----------------------+\n"
      "|   1  NVIDIA A800-SXM4-80GB          On  | 00000000:61:00.0 Off |                    0 |\n"
      "| N/A   53C    P0             332W / 400W |  73895MiB / 81920MiB |     96%      Default |\n");
  ASSERT_EQ(log.cards.size(), 2U);
  EXPECT_EQ(log.cards[1].name, "NVIDIA A800-SXM4-80GB");
  EXPECT_DOUBLE_EQ(log.cards[1].mean_utilization, 0.96);
  EXPECT_EQ(log.peak(LoggedMemoryKind::kProcess), 73895 * kMiB);
}

// c10/cuda/CUDACachingAllocator.cpp in three wordings.
TEST(AllocatorMessages, SinceTwoPointOne) {
  const ForeignLog log = parse(
      "[rank3]:   File \"/opt/torch/nn/functional.py\", line 3059, in cross_entropy\n"
      "[rank3]:     return torch._C._nn.cross_entropy_loss(input, target)\n"
      "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB. GPU 3 has a total capacity "
      "of "
      "31.73 GiB of which 88.19 MiB is free. Including non-PyTorch memory, this process has 31.64 GiB memory in use. "
      "Of "
      "the allocated memory 28.80 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA "
      "Graphs), and 1.68 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
      "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n");
  ASSERT_EQ(log.kinds, std::vector{LogKind::kMessages});
  ASSERT_EQ(log.out_of_memory.size(), 1U);
  const OutOfMemory& failure = log.out_of_memory[0];
  EXPECT_EQ(failure.rank, 3);
  EXPECT_EQ(failure.device, 3);
  EXPECT_EQ(failure.requested, 786 * kMiB);
  EXPECT_EQ(failure.precision, 5243);  // half of 0.01 MiB
  EXPECT_EQ(failure.capacity, static_cast<int64_t>(std::llround(31.73 * 0x1p30)));
  EXPECT_EQ(failure.free, static_cast<int64_t>(std::llround(88.19 * 0x1p20)));
  EXPECT_EQ(failure.process, static_cast<int64_t>(std::llround(31.64 * 0x1p30)));
  EXPECT_EQ(failure.allocated, static_cast<int64_t>(std::llround(28.80 * 0x1p30)));
  EXPECT_EQ(failure.unallocated, static_cast<int64_t>(std::llround(1.68 * 0x1p30)));
  EXPECT_EQ(failure.where, "functional.py:3059 cross_entropy");
}

TEST(AllocatorMessages, OlderWordsBrokenLinesAndRepetition) {
  const std::string message =
      "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n(GPU 0; 79.15 GiB total capacity; 74.31 GiB "
      "already "
      "allocated; 1.84 GiB free;\n76.92 GiB reserved in total by PyTorch)\n";
  const ForeignLog log = parse(message + message +
                               "Tried to allocate 4.00 GiB (GPU 1; 11.17 GiB total capacity; 7.25 GiB already "
                               "allocated; 1.33 GiB free; 8.25 GiB cached)\n");
  ASSERT_EQ(log.out_of_memory.size(), 2U);
  EXPECT_EQ(log.out_of_memory[0].unallocated,
            static_cast<int64_t>(std::llround(76.92 * 0x1p30)) - static_cast<int64_t>(std::llround(74.31 * 0x1p30)));
  EXPECT_EQ(log.out_of_memory[0].free, static_cast<int64_t>(std::llround(1.84 * 0x1p30)));
  EXPECT_EQ(log.out_of_memory[1].unallocated, kGiB);
}

TEST(AllocatorMessages, Summary) {
  const ForeignLog log = parse(
      "|                  PyTorch CUDA memory summary, device ID 2                 |\n"
      "|            CUDA OOMs: 1            |        cudaMalloc retries: 7         |\n"
      "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n"
      "| Allocated memory      | 682537 KiB |  65430 MiB |   3115 GiB |   3114 GiB |\n"
      "|       from large pool | 481280 KiB |  65235 MiB |   3114 GiB |   3114 GiB |\n"
      "| GPU reserved memory   |  67000 MiB |  68000 MiB |   3114 GiB |   3114 GiB |\n");
  EXPECT_EQ(log.allocator_retries, 7);
  EXPECT_EQ(log.peak(LoggedMemoryKind::kAllocated), 65430 * kMiB);
  EXPECT_EQ(log.peak(LoggedMemoryKind::kReserved), 68000 * kMiB);
  EXPECT_EQ(log.memory[0].rank, 2);
}

TEST(ForeignLog, WhatIsNoLogIsRefusedWithTheKindsThatAre) {
  const Result<ForeignLog> log = parse_foreign_log("Dear diary\n", "diary.txt");
  ASSERT_FALSE(log.ok());
  EXPECT_EQ(log.error().where, "diary.txt");
  EXPECT_NE(log.error().hint.find("megatron, torchtitan, hf"), std::string::npos);
  EXPECT_FALSE(parse_foreign_log(kMegatron, "log", LogKind::kTorchtitan).ok());
}

TEST(ForeignLog, FilesOfOneRunAreJoined) {
  ForeignLog log = parse(kMegatron);
  add_log(log, parse("index, memory.used [MiB]\n0, 60000 MiB\n"));
  EXPECT_EQ(log.kinds.size(), 2U);
  EXPECT_EQ(log.peak(LoggedMemoryKind::kProcess), 60000 * kMiB);
  EXPECT_EQ(log.steps.size(), 3U);
}

}  // namespace
}  // namespace fivefold
