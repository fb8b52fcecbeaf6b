// Reports of users of other tools, as tests: what ZeRO's levels cost, and how often they communicate. The number in a
// test's comment is the report's in docs/planner_cases.md.
#include "planner/cases_testing.h"
#include "planner/profiles/run_notes.h"
#include "planner/reduction_choice.h"
#include "planner/traffic.h"
#include "spec/validate.h"

namespace fivefold::test {
namespace {

bool says(const std::vector<Error>& notes, const std::string& where, const std::string& text) {
  return std::ranges::any_of(notes, [&](const Error& note) {
    return note.where == where && (note.problem + " " + note.hint).find(text) != std::string::npos;
  });
}

std::vector<Error> notes_of(const FrameworkRun& run, const HardwareSpec& hardware) {
  return run_notes(run, profile_memory(run), hardware);
}

// P06: ZeRO on one replica divides nothing, and says so; a plain bf16 run fits since it has no fp32 weights.
TEST(Cases, NotesOnOneReplicaAndOnPureBf16) {
  FrameworkRun run = run_of(Framework::kHf, named_model("mistral-7b-v0.1"), "a100-sxm-80gb");
  run.sequence = 2048;
  run.checkpointing = Checkpointing::kFull;
  run.zero = 3;
  run.hf.deepspeed.set(true);
  const HardwareSpec hardware = named_hardware("dgx-a100-80gb");
  EXPECT_FALSE(fits(run));
  EXPECT_TRUE(says(notes_of(run, hardware), "parallel.zero", "one replica"));
  run.zero = 0;
  run.hf.deepspeed.set(false);
  run.weight_dtype.set(DType::kBFloat16);
  EXPECT_TRUE(fits(run));
  EXPECT_TRUE(says(notes_of(run, hardware), "precision.params", "fp32"));
  run.weight_dtype.set(DType::kFloat32);
  EXPECT_FALSE(says(notes_of(run, hardware), "precision.params", "fp32"));
}

// P08, DeepSpeed#1302: BERT-large on 4 GPUs: ZeRO-2 saves 2 P (1 - 1/4) = 0.5 GB and takes a bucket of 1 GB.
TEST(Cases, BucketsOutweighWhatSmallModelsSave) {
  FrameworkRun run = run_of(Framework::kDeepspeed, gpt({24, 1024, 16, 30522}), "a100-sxm-40gb");
  ASSERT_NEAR(parameters(run.model) / 340e6, 1, 0.03);
  run.dp = 4;
  run.sequence = 128;
  run.micro = 8;
  const HardwareSpec hardware = named_hardware("dgx-a100-40gb");
  for (const int zero : {2, 3}) {
    run.zero = zero;
    EXPECT_TRUE(says(notes_of(run, hardware), "parallel.zero", "use zero = 1")) << zero;
  }
  run.zero = 1;
  EXPECT_FALSE(says(notes_of(run, hardware), "parallel.zero", "use zero"));
  run.model = named_model("llama-2-13b");
  run.zero = 2;
  EXPECT_FALSE(says(notes_of(run, hardware), "parallel.zero", "use zero"));
}

// P08: fivefold's own choice for such a model.
TEST(Cases, SmallModelStaysAtLowLevels) {
  const auto result = search_layouts(request_for("smollm2-360m", "dgx-a100-40gb", 4, 1024, 64));
  ASSERT_TRUE(result.ok());
  ASSERT_FALSE(result->plans.empty());
  EXPECT_LE(result->plans[0].config.config.parallel.zero, 1);
}

// P08, DeepSpeed#3734: 13B on 8 GPUs: 45.46 GiB between steps with ZeRO-2, 25.31 with ZeRO-3, peaks 52.37 and 56.12:
// as much as if all parameters had been gathered (docs/decisions.md).
TEST(Cases, ZeroThreeSavesBetweenStepsMoreThanAtThePeak) {
  FrameworkRun run = run_of(Framework::kDeepspeed, named_model("llama-2-13b"), "a100-sxm-80gb");
  run.dp = 8;
  run.sequence = 512;
  run.checkpointing = Checkpointing::kFull;
  run.zero = 2;
  const double steady2 = static_gb(run) * 1e9 / kGib, peak2 = peak_gb(run);
  EXPECT_NEAR(steady2, 45.46, 0.01 * 45.46);
  run.zero = 3;
  const double steady3 = static_gb(run) * 1e9 / kGib;
  EXPECT_NEAR(steady3, 25.31, 0.01 * 25.31);
  EXPECT_GT((steady2 - steady3) * kGib / 1e9, 15);
  EXPECT_LT(peak_gb(run), peak2);
  run.zero_buffers.live_parameters.set(20'000'000'000);
  EXPECT_NEAR(peak_gb(run), peak2, 0.1 * peak2);
}

// P08, DeepSpeedExamples#336: 2.8B on A10G: ZeRO-1 runs, ZeRO-2 fails as its contiguous buffer is allocated. Both have
// 2 P of weights; here what ZeRO-2 asks for when a backward pass starts.
TEST(Cases, TheBucketIsAllocatedInFull) {
  FrameworkRun run = run_of(Framework::kDeepspeed, llama({26, 2560, 20, 20, 10048, 32000}), "a10");
  run.dp = 4;
  run.sequence = 512;
  run.zero = 2;
  EXPECT_EQ(line(profile_memory(run).phases[0], "reduce bucket"), 1'000'000'000);
  run.zero_buffers.second_bucket.set(true);
  EXPECT_EQ(line(profile_memory(run).phases[0], "reduce bucket"), 2'000'000'000);
  run.zero_buffers.reduce_bucket.set(50'000'000);
  EXPECT_EQ(line(profile_memory(run).phases[0], "reduce bucket"), 200'000'000);
}

// P09, pytorch/tnt#1057: 26B on 16 GPUs: 3.25 GB of gradients where each microbatch is reduced, 52 GB without.
TEST(Cases, WholeGradientsOfAccumulation) {
  FrameworkRun run = run_of(Framework::kFsdp2, llama({48, 6656, 52, 52, 17808, 32000}), "a100-sxm-80gb");
  ASSERT_NEAR(parameters(run.model) / 26e9, 1, 0.005);
  run.dp = 16;
  run.zero = 3;
  run.sequence = 2048;
  run.microbatches = 8;
  run.gradient_dtype.set(DType::kBFloat16);
  EXPECT_NEAR(static_cast<double>(line(profile_memory(run), "gradients")) / 1e9, 3.25, 0.03);
  run.reduces_once.set(true);
  EXPECT_NEAR(static_cast<double>(line(profile_memory(run), "gradients")) / 1e9, 52, 0.4);
}

// P09: fivefold prices both and takes what is not short: memory at 26B on 16 GPUs, the network (25 Gbit/s a GPU) at 2B
// on 8 (torchtune#1275: half the speed when each microbatch is reduced over slow links).
TEST(Cases, ReducesOnceWhereMemoryIsNotShort) {
  const auto choice = [](const ModelSpec& model, int dp, const HardwareSpec& hardware) {
    const ResolvedConfig config =
        resolved(model, {.dp = dp, .zero = 3, .accumulation = 8, .sequence = 2048, .recompute_every = 1});
    return reduction_choice(model, build_inventory(model), config, hardware).value();
  };
  const ModelSpec large = llama({48, 6656, 52, 52, 17808, 32000});
  const ReductionChoice many = choice(large, 16, named_hardware("dgx-a100-80gb"));
  EXPECT_EQ(many.chosen, ReduceWhen::kMicrobatch);
  EXPECT_FALSE(many.once.fits);
  EXPECT_TRUE(many.each_microbatch.fits);
  // 4 P (1 - 1/16) in fp32.
  EXPECT_NEAR(static_cast<double>(many.once.peak - many.each_microbatch.peak) / 1e9, 4 * 26 * 15.0 / 16, 2);
  HardwareSpec slow = named_hardware("dgx-a100-80gb");
  slow.devices_per_node = 1;
  slow.network.bytes_per_s.value = 25e9 / 8;
  const ReductionChoice short_of_memory = choice(large, 16, slow);
  EXPECT_LT(short_of_memory.once.seconds, 0.9 * short_of_memory.each_microbatch.seconds);
  EXPECT_EQ(short_of_memory.chosen, ReduceWhen::kMicrobatch);
  const ReductionChoice few = choice(named_model("smollm2-1.7b"), 8, slow);
  EXPECT_EQ(few.chosen, ReduceWhen::kStep);
  EXPECT_TRUE(few.once.fits);
  EXPECT_LT(few.once.seconds, few.each_microbatch.seconds);
  // Said with the plan where it has the other one.
  const ResolvedConfig each = resolved(named_model("smollm2-1.7b"), {.dp = 8, .zero = 3, .accumulation = 8});
  const auto note =
      reduction_note(named_model("smollm2-1.7b"), build_inventory(named_model("smollm2-1.7b")), each, slow);
  ASSERT_TRUE(note.has_value());
  EXPECT_EQ(note->hint, "use reduce = step");
}

// P32, DeepSpeed#1629, #4164: ZeRO-3 in a pipeline of 4 repeats its collectives for each of 32 microbatches: two
// gathers and a reduction of the stage's quarter.
TEST(Cases, ZeroThreeInAPipelineRepeatsItsCollectives) {
  const ModelSpec model = named_model("llama-2-7b");
  RunConfig config;
  config.parallel.dp = 2;
  config.parallel.pp = 4;
  config.parallel.zero = 3;
  config.batch = {.global = 64, .micro = 1, .sequence = 2048};
  const ResolvedConfig run = resolved_run(model, config);
  // Rank 4 is of the third stage: 8 layers of 202,383,360 parameters; half of each tensor is sent, 2 bytes an element.
  const double stage = 8 * 202383360.0;
  int64_t gathered = 0, reduced = 0;
  for (const TrafficLine& each : predict_traffic(model, build_inventory(model), run, 4)) {
    if (each.group != GroupKind::kShard) continue;
    if (each.kind == CollectiveKind::kAllGather && each.purpose == Purpose::kParameters) gathered += each.bytes;
    if (each.kind == CollectiveKind::kReduceScatter && each.purpose == Purpose::kGradients) reduced += each.bytes;
  }
  EXPECT_NEAR(static_cast<double>(gathered) / (32 * 2 * stage), 1, 0.01);
  EXPECT_NEAR(static_cast<double>(reduced) / (32 * stage), 1, 0.01);
  EXPECT_TRUE(says(layout_notes(model, run.config), "parallel.zero", "each of 32 microbatches"));
}

// P32: on slow links a pipeline goes with a low level; whatever repeats its collectives is said to.
TEST(Cases, PipelinesOnSlowLinksTakeLowLevels) {
  SearchRequest request = request_for("llama-3.2-1b", "ethernet-100g-4xl40s", 16, 2048, 64);
  request.base.parallel.pp = 4;
  request.base.batch.micro = 1;
  request.fixed = {.tp = true, .cp = true, .pp = true, .micro = true};
  const auto result = search_layouts(request);
  ASSERT_TRUE(result.ok());
  ASSERT_FALSE(result->plans.empty());
  EXPECT_LE(result->plans[0].config.config.parallel.zero, 1);
  for (const Candidate& plan : result->plans)
    if (plan.config.config.parallel.zero >= 2)
      EXPECT_TRUE(says(layout_notes(request.model, plan.config.config), "parallel.zero", "microbatches"));
}

}  // namespace
}  // namespace fivefold::test
