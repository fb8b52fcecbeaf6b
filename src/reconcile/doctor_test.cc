// Cases from public reports (named in each test): what the doctor must say of them.
#include "reconcile/doctor.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/installation.h"
#include "base/units.h"
#include "reconcile/allocation_names.h"
#include "reconcile/log_rows.h"
#include "reconcile/log_testing.h"

namespace fivefold {
namespace {

const DoctorStep* step_of(const Diagnosis& diagnosis, const std::string& title) {
  for (const DoctorStep& step : diagnosis.steps)
    if (step.title == title) return &step;
  return nullptr;
}
const FrameworkRemedy* remedy_of(const Diagnosis& diagnosis, const std::string& name) {
  for (const FrameworkRemedy& remedy : diagnosis.remedies)
    if (remedy.name.find(name) != std::string::npos) return &remedy;
  return nullptr;
}
bool has(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

// Megatron-LM#525: GPT-2 774M on a V100 with 32 GB, padded vocabulary 50,304; 786 MiB could not be had.
// 786 x 2^20 / 50,304 = 16,384 B a word = 4 B x 4 x 1,024 tokens.
TEST(Doctor, TheFailedAllocationTellsTheCause) {
  DoctorCase the_case{.request = 786 * kMiB, .request_precision = 5243, .vocabulary = 50304};
  const Diagnosis alone = diagnose(the_case, Symptom::kOutOfMemory);
  EXPECT_TRUE(has(alone.steps.front().finding, "fp32 logits, 4 B x 4,096 tokens x 50,304"))
      << alone.steps.front().finding;
  EXPECT_TRUE(has(alone.steps.front().finding, "16,384 B for each of 50,304 words"));

  RunConfig config = framework_config(Framework::kMegatron, {.dp = 8});
  config.framework.switches = {"cross_entropy=unfused", "attention=unfused", "dropout=on"};
  config.precision.compute = ComputeKind::kFp16;
  config.batch = {.global = 32, .micro = 4, .sequence = 1024};
  the_case = {.prediction = predicted("gpt2-large", "v100-8-100g", config), .request = 786 * kMiB};
  const Diagnosis diagnosis = diagnose(the_case, Symptom::kOutOfMemory);
  EXPECT_TRUE(diagnosis.steps.front().cause);
  EXPECT_TRUE(has(diagnosis.steps.front().finding, "fp32 logits, 4 B x 4,096 tokens x 50,304"));
  // 6 B x 4,096 x 50,304 = 1.236e9 B of logits in the peak's lines.
  int64_t logits = 0;
  for (const ProfileLine& line : the_case.prediction->memory.peak().lines)
    if (line.name == "logits") logits = line.bytes;
  EXPECT_EQ(logits, int64_t{6} * 4096 * 50304);
}

// LLaMA-Factory#4642: Qwen2-7B, LoRA, ZeRO-3, sequences of 32,768 on A800-80: the logits are 152,064 words wide.
TEST(Doctor, LongLoraRunsOutOfMemoryByItsLogits) {
  RunConfig config = framework_config(Framework::kHf, {.dp = 8, .zero = 3});
  config.framework.switches = {"deepspeed=on"};
  config.method.kind = MethodKind::kLora;
  config.batch = {.global = 8, .micro = 1, .sequence = 32768};
  config.recompute.kind = RecomputeKind::kFull;
  const DoctorCase the_case{.prediction = predicted("qwen2-7b", "a800-sxm-80gb", config)};
  EXPECT_EQ(likely_symptom(the_case), Symptom::kOutOfMemory);
  const Diagnosis diagnosis = diagnose(the_case, Symptom::kOutOfMemory);
  EXPECT_GT(diagnosis.need, diagnosis.capacity);
  const DoctorStep* peak = step_of(diagnosis, "what the peak is made of");
  ASSERT_NE(peak, nullptr);
  EXPECT_TRUE(has(peak->advice, "logits:")) << peak->advice;
  ASSERT_FALSE(diagnosis.remedies.empty());
  EXPECT_TRUE(has(diagnosis.remedies.front().name, "cross-entropy")) << diagnosis.remedies.front().name;
  EXPECT_TRUE(diagnosis.remedies.front().fits);
  const FrameworkRemedy* split = remedy_of(diagnosis, "sequence over 2");
  ASSERT_NE(split, nullptr);
  EXPECT_TRUE(split->fits);
  // More GPUs come last, and do not help.
  EXPECT_TRUE(has(diagnosis.remedies.back().name, "GPUs"));
  EXPECT_FALSE(diagnosis.remedies.back().fits);
}

// SkyRL#1768: 8 x B200, about 20 GiB reserved and unused when it died.
TEST(Doctor, FragmentationComesFirst) {
  const Result<ForeignLog> log = parse_foreign_log(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.06 GiB. GPU 0 has a total capacity of 178.35 "
      "GiB "
      "of which 5.10 GiB is free. Including non-PyTorch memory, this process has 173.24 GiB memory in use. Of the "
      "allocated memory 150.40 GiB is allocated by PyTorch, and 20.11 GiB is reserved by PyTorch but unallocated.\n",
      "log");
  const DoctorCase the_case{.log = *log};
  EXPECT_EQ(likely_symptom(the_case), Symptom::kOutOfMemory);
  const Diagnosis diagnosis = diagnose(the_case, Symptom::kOutOfMemory);
  EXPECT_EQ(diagnosis.steps.front().title, "fragmentation");
  EXPECT_TRUE(diagnosis.steps.front().cause);
  EXPECT_TRUE(has(diagnosis.steps.front().advice, "expandable_segments:True"));
  EXPECT_EQ(diagnosis.summary, "out of memory: fragmentation");
}

RunConfig seventy_billion(int tp, int pp, int dp) {
  RunConfig config = framework_config(Framework::kMegatron, {.dp = dp, .tp = tp, .pp = pp, .zero = 1});
  config.batch = {.global = 512, .micro = 1, .sequence = 4096};
  return config;
}

// Megatron-LM#1031: 70B on 128 H100 with tp 8 and pp 2 ran out of memory without sequence parallelism; the same
// report's pp 8 with full recompute reached 296.5 TFLOP/s where pp 2 has 420.5: 1.42 times.
TEST(Doctor, SequenceParallelismBeforeRecompute) {
  const DoctorCase memory{.prediction = predicted("llama-3.1-70b", "dgx-h100", seventy_billion(8, 2, 8))};
  const Diagnosis diagnosis = diagnose(memory, Symptom::kOutOfMemory);
  EXPECT_TRUE(has(diagnosis.remedies.front().name, "sequence parallelism")) << diagnosis.remedies.front().name;
  EXPECT_TRUE(diagnosis.remedies.front().fits);
  EXPECT_GE(diagnosis.remedies.front().speed.value_or(-1), 0);

  RunConfig slow = seventy_billion(8, 8, 2);
  slow.recompute.kind = RecomputeKind::kFull;
  const DoctorCase pace{.prediction = predicted("llama-3.1-70b", "dgx-h100", slow)};
  const Diagnosis quicker = diagnose(pace, Symptom::kSlow);
  const FrameworkRemedy* remedy = remedy_of(quicker, "sequence parallelism, and no recompute");
  ASSERT_NE(remedy, nullptr);
  EXPECT_TRUE(remedy->fits);
  EXPECT_GT(*remedy->speed, 0.25);
  EXPECT_LT(*remedy->speed, 0.60);
}

// torchtitan#676: 70B on 32 H200 of 4 nodes at about 200 tokens/s, where 256 H100 have 829.
TEST(Doctor, FarBelowThePredictionIsTheNetwork) {
  RunConfig config = framework_config(Framework::kFsdp2, {.dp = 32, .zero = 3});
  config.batch = {.global = 32, .micro = 1, .sequence = 8192};
  config.recompute.kind = RecomputeKind::kFull;
  const DoctorCase the_case{.prediction = predicted("llama-3.1-70b", "dgx-h200", config), .tokens_per_s = 200.0};
  ASSERT_LT(200, kFaultyShare * the_case.prediction->time->tokens_per_s);
  const Diagnosis diagnosis = diagnose(the_case, Symptom::kSlow);
  EXPECT_EQ(diagnosis.steps.front().title, "inter-node bandwidth");
  EXPECT_TRUE(diagnosis.steps.front().cause);
  EXPECT_TRUE(has(diagnosis.steps.front().advice, "bandwidth test"));
  EXPECT_TRUE(has(diagnosis.summary, "slow: inter-node bandwidth"));
  EXPECT_EQ(diagnose(the_case, Symptom::kScaling).steps.front().title, "inter-node bandwidth");
}

// Megatron-LM#1225: 25.52 -> 24.94 GB (2 %) with a flash kernel. Without one and a s / h = 16 a GPT layer keeps 34 + 80
// bytes a token and hidden element, 70 % of them scores.
TEST(Doctor, SelectiveRecomputeSavesNothingBesideFlashAttention) {
  const DoctorCase flash{.prediction = predicted("llama-3.1-70b", "dgx-h100", seventy_billion(8, 2, 8))};
  const Diagnosis diagnosis = diagnose(flash, Symptom::kOutOfMemory);
  const DoctorStep* step = step_of(diagnosis, "selective recompute");
  ASSERT_NE(step, nullptr);
  EXPECT_TRUE(has(step->finding, "flash kernel"));
  EXPECT_EQ(remedy_of(diagnosis, "selective recompute"), nullptr);

  // gpt2: 12 heads, h = 768: 12 x 1,024 / 768 = 16.
  RunConfig config = framework_config(Framework::kMegatron, {.dp = 1});
  config.framework.switches = {"attention=unfused", "dropout=on"};
  config.batch = {.global = 8, .micro = 8, .sequence = 1024};
  const auto activations = [&](RecomputeKind kind) {
    config.recompute.kind = kind;
    double bytes = 0;
    for (const ProfileLine& line : predicted("gpt2", "dgx-h100", config).memory.peak().lines)
      if (line.name == "activations") bytes = static_cast<double>(line.bytes);
    return bytes;
  };
  EXPECT_NEAR(1 - activations(RecomputeKind::kSelective) / activations(RecomputeKind::kNone), 0.70, 0.03);
}

// Qwen2.5-7B with QLoRA on 24 GB, four sequences of 4,096 at a time: no setting is enough alone; a chunked loss and
// recompute are together, and neither without the other.
TEST(Doctor, RemediesTogetherAreNoMoreThanNeeded) {
  RunConfig config = framework_config(Framework::kHf, {});
  config.method.kind = MethodKind::kQlora;
  config.batch = {.global = 4, .micro = 4, .sequence = 4096};
  const DoctorCase the_case{.prediction = predicted("qwen2.5-7b", "rtx-4090", config)};
  const Diagnosis diagnosis = diagnose(the_case, Symptom::kOutOfMemory);
  for (const FrameworkRemedy& remedy : diagnosis.remedies) EXPECT_FALSE(remedy.fits) << remedy.name;
  ASSERT_TRUE(diagnosis.together);
  EXPECT_TRUE(diagnosis.together->fits);
  EXPECT_EQ(diagnosis.together->name, "fused cross-entropy in chunks (Liger) + full recompute");
  EXPECT_LT(*diagnosis.together->speed, 0);
}

// What moves to the host has a price that no profile has.
TEST(Doctor, OffloadHasNoPrice) {
  RunConfig config = framework_config(Framework::kHf, {});
  config.batch = {.global = 1, .micro = 1, .sequence = 2048};
  const DoctorCase the_case{.prediction = predicted("qwen2.5-7b", "rtx-4090", config)};
  const Diagnosis diagnosis = diagnose(the_case, Symptom::kOutOfMemory);
  const FrameworkRemedy* remedy = remedy_of(diagnosis, "host memory");
  ASSERT_NE(remedy, nullptr);
  EXPECT_FALSE(remedy->speed);
}

TEST(Doctor, TensorGroupsOverNodesAreNamed) {
  RunConfig config = seventy_billion(16, 1, 4);
  config.parallel.sp = true;
  const DoctorCase the_case{.prediction = predicted("llama-2-70b", "dgx-h100", config)};
  const Diagnosis diagnosis = diagnose(the_case, Symptom::kScaling);
  EXPECT_EQ(diagnosis.steps.front().title, "tensor parallelism over nodes");
}

TEST(Doctor, JsonHasTheKeysThatAreDocumented) {
  const DoctorCase the_case{.request = 786 * kMiB, .vocabulary = 50304};
  const auto json = to_json(diagnose(the_case, Symptom::kOutOfMemory));
  for (const char* key : {"symptom", "summary", "steps", "remedies", "together", "need", "capacity", "notes"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["symptom"], "oom");
  EXPECT_EQ(json["steps"][0]["cause"], true);
}

// Names of sizes: 70B with t = 8: a gathered layer has 855,654,400 weights, 2 B each / 8.
TEST(AllocationNames, NearestFirstAndWithinTheAllocatorsRounding) {
  const FrameworkPrediction prediction = predicted("llama-3.1-70b", "dgx-h100", seventy_billion(8, 2, 8));
  // 4 B x 4,096 x 129,024 / 8 = 252 MiB.
  const auto names = names_of_size(prediction.run, 252 * kMiB, 5243);
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.front().name, "fp32 logits");
  EXPECT_TRUE(names_of_size(prediction.run, 777 * kMiB, 5243).empty());
  EXPECT_TRUE(logits_of_size(777 * kMiB, 128256, 5243).empty());
}

}  // namespace
}  // namespace fivefold
