#include "planner/kernel_scratch.h"

#include "planner/planner_testing.h"
#include "planner/remedies.h"
#include "spec/run_config_io.h"

namespace fivefold::test {
namespace {

KernelScratch scratch_of(const ModelSpec& model, const Layout& layout, int threads) {
  return largest_scratch(model, build_inventory(model), resolved(model, layout), threads);
}

// Llama-3-8B, heads of 128: documents of up to 2,048 keys keep their key gradients, 8,448 x 128 + 231,424 + 8 x 2,048 x
// 128 = 3,409,920 bytes a thread. A sequence of 1,024 tokens has none longer. One of 512 asks for less than a product.
TEST(KernelScratch, OfAttentionGrowsWithThreadsAndDocuments) {
  const ModelSpec model = named_model("llama-3-8b");
  KernelScratch scratch = scratch_of(model, {.sequence = 4096}, 2);
  EXPECT_EQ(scratch.kernel, ScratchKernel::kAttention);
  EXPECT_EQ(scratch.bytes, 2 * 3'409'920);
  EXPECT_EQ(scratch_of(model, {.sequence = 1024}, 1).bytes, 8448 * 128 + 231'424 + 8 * 1024 * 128);
  scratch = scratch_of(model, {.sequence = 512}, 3);
  EXPECT_EQ(scratch.kernel, ScratchKernel::kProduct);
  EXPECT_EQ(scratch.bytes, 3 * 2 * 1024 * 1024);
}

// 65,536 tokens in blocks of 64: 1,024 partial rows of h = 4,096 in fp32, 16 MiB, above one thread's attention.
TEST(KernelScratch, OfNormsGrowsWithTokens) {
  const KernelScratch scratch = scratch_of(named_model("llama-3-8b"), {.micro = 16, .sequence = 4096}, 1);
  EXPECT_EQ(scratch.kernel, ScratchKernel::kNormBackward);
  EXPECT_EQ(scratch.bytes, 16 * 1024 * 1024);
}

// Products in fp16 have 3 MiB of blocks beside the product of these. Rounding to fp8 takes the codes of 128 rows of
// gate and up, 2f = 28,672, and for each 128 of a row a scale of 4 bytes: 128 x 28,672 + 128 x 224 x 4.
TEST(KernelScratch, OfPrecisions) {
  const ModelSpec model = named_model("llama-3-8b");
  EXPECT_EQ(scratch_of(model, {.sequence = 64, .compute = ComputeKind::kFp16}, 1).bytes, 5 * 1024 * 1024);
  const KernelScratch fp8 = scratch_of(model, {.sequence = 64, .compute = ComputeKind::kFp8}, 1);
  EXPECT_EQ(fp8.kernel, ScratchKernel::kFp8Rounding);
  EXPECT_EQ(fp8.bytes, 128 * 28'672 + 128 * 224 * 4);
}

// Only the limit counts scratch, and only a CPU's.
TEST(KernelScratch, CountsUnderALimit) {
  const ModelSpec model = named_model("smollm2-135m");
  const Inventory inventory = build_inventory(model);
  HardwareSpec cpu = named_hardware("h100-sxm-80gb");
  const HardwareSpec gpu = cpu;
  cpu.device.cores = 4;
  ResolvedConfig config = resolved(model, {});
  EXPECT_EQ(outside_tensors(model, inventory, config, cpu).bytes(), 0);
  config.config.limits.memory = 1 << 30;
  const int64_t scratch = largest_scratch(model, inventory, config, 4).bytes;
  EXPECT_EQ(outside_tensors(model, inventory, config, cpu).scratch, scratch);
  EXPECT_EQ(outside_tensors(model, inventory, config, gpu).scratch, 0);
  EXPECT_EQ(scratch_line(model, inventory, config, 4).bytes, scratch);
  // It is in the peaks, and no state.
  const Ledger counted = predict_memory(model, inventory, config);
  const Ledger whole = fullest_rank(model, inventory, config, cpu).ledger;
  EXPECT_EQ(whole.peak_total, counted.peak_total + scratch);
  EXPECT_EQ(whole.at_peak[Account::kWorkspace], scratch);
  EXPECT_EQ(whole.persistent, counted.persistent);
}

// A limit that leaves less than the scratch above the tensors is too low; remedies see it.
TEST(KernelScratch, DecidesWhatFits) {
  const ModelSpec model = named_model("smollm2-135m");
  const Inventory inventory = build_inventory(model);
  HardwareSpec cpu = named_hardware("h100-sxm-80gb");
  cpu.device.cores = 2;
  RunConfig config = load_config({.set = {"batch.sequence=512"}}).config;
  const ResolvedConfig run = *resolve(config, model);
  const int64_t tensors = predict_memory(model, inventory, run).peak_total;
  const int64_t scratch = largest_scratch(model, inventory, run, 2).bytes;
  config.limits.memory = tensors + scratch;
  EXPECT_TRUE(find_remedies(model, config, cpu).before.fits());
  config.limits.memory -= 1;
  EXPECT_FALSE(find_remedies(model, config, cpu).before.fits());
}

}  // namespace
}  // namespace fivefold::test
