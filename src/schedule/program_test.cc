#include "schedule/program.h"

#include <gtest/gtest.h>

namespace fivefold {
namespace {

Inventory two_layers(bool tied) {
  ModelSpec model;
  model.hidden = 8;
  model.vocab = 16;
  model.tied_embeddings = tied;
  LayerSpec layer;
  layer.mixer.num_heads = layer.mixer.num_kv_heads = 2;
  layer.mixer.head_dim = 4;
  layer.mlp.ffn = 8;
  model.layers.assign(2, layer);
  return build_inventory(model);
}

std::string listing(const Program& program, const Inventory& inventory) {
  std::string text;
  for (const Instruction& instruction : program.instructions) text += to_string(instruction, inventory) + "\n";
  return text;
}

LoweringOptions zero(int level, int shards, int recompute_every = 0) {
  return {.sharding = {.zero = level, .shards = shards}, .recompute_every = recompute_every};
}

TEST(Lowering, Zero3GathersAheadAndReducesBehind) {
  const Inventory inventory = two_layers(false);
  EXPECT_EQ(
      listing(lower(sequential_schedule(1), inventory, zero(3, 2)), inventory),
      "count_tokens\n"
      "unshard embedding\nunshard layers.0\nwait_unshard embedding\nforward embedding #0\nreshard embedding\n"
      "unshard layers.1\nwait_unshard layers.0\nforward layers.0 #0\nreshard layers.0\n"
      "unshard head\nwait_unshard layers.1\nforward layers.1 #0\nreshard layers.1\n"
      "unshard layers.1\nwait_unshard head\nwait_count\nallocate_grads head #0\nloss head #0\nreshard "
      "head\nreduce_grads head #0\n"
      "unshard layers.0\nwait_unshard layers.1\nallocate_grads layers.1 #0\nbackward layers.1 #0\nreshard layers.1\n"
      "wait_reduce head\nreduce_grads layers.1 #0\n"
      "wait_unshard layers.0\nallocate_grads layers.0 #0\nbackward layers.0 #0\nreshard layers.0\n"
      "wait_reduce layers.1\nreduce_grads layers.0 #0\n"
      "allocate_grads embedding #0\nbackward embedding #0\nwait_reduce layers.0\nreduce_grads embedding #0\n"
      "wait_reduce embedding\ngrad_norm\n"
      "optimizer_step embedding\noptimizer_step layers.0\noptimizer_step layers.1\noptimizer_step head\n");
}

TEST(Lowering, Zero1ReducesOnlyTheLastMicrobatchAndGathersAfterTheStep) {
  const Inventory inventory = two_layers(false);
  const Program program = lower(sequential_schedule(2), inventory, zero(1, 2));
  int reductions = 0, gathers = 0, transient = 0;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.op == Opcode::kReduceGrads) {
      ++reductions;
      EXPECT_EQ(instruction.microbatch, 1);
      EXPECT_TRUE(instruction.last);
    }
    gathers += instruction.op == Opcode::kGatherParameters;
    transient += instruction.op == Opcode::kAllocateGrads;
  }
  EXPECT_EQ(reductions, 4);
  EXPECT_EQ(gathers, 4);
  EXPECT_EQ(transient, 0);
}

// Calls of a rank run in order, so the count stands behind the last step's gathers: only the loss, which reads all that
// they bring, may wait for it. Of two microbatches' losses the first does.
TEST(Lowering, TheCountIsAwaitedByTheFirstLossOnly) {
  const Inventory inventory = two_layers(false);
  const std::string text = listing(lower(sequential_schedule(2), inventory, zero(1, 2)), inventory);
  EXPECT_TRUE(text.starts_with("count_tokens\nwait_parameters embedding\nforward embedding #0\n")) << text;
  const size_t wait = text.find("wait_count\n");
  EXPECT_EQ(wait + std::string_view("wait_count\n").size(), text.find("loss head #0\n")) << text;
  EXPECT_EQ(text.find("wait_count\n", wait + 1), std::string::npos) << text;
}

TEST(Lowering, RecomputedSegmentKeepsItsUnitsGatheredUntilBackward) {
  const Inventory inventory = two_layers(false);
  const std::string text = listing(lower(sequential_schedule(1), inventory, zero(3, 2, 2)), inventory);
  const std::string expected =
      "recompute layers.0 #0\nwait_reduce head\nwait_unshard layers.1\nrecompute layers.1 #0\nallocate_grads layers.1 "
      "#0\n"
      "backward layers.1 #0\nreshard layers.1\nreduce_grads layers.1 #0\nallocate_grads layers.0 #0\nbackward layers.0 "
      "#0\n";
  EXPECT_NE(text.find(expected), std::string::npos) << text;
}

TEST(Lowering, TiedEmbeddingGradientLivesFromLossToEmbedding) {
  const Inventory inventory = two_layers(true);
  const std::string text = listing(lower(sequential_schedule(1), inventory, zero(2, 2)), inventory);
  EXPECT_NE(text.find("allocate_grads embedding #0\nallocate_grads head #0\nloss head #0\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("reduce_grads layers.0 #0\nbackward embedding #0\n"), std::string::npos) << text;
}

TEST(Lowering, TiedGradientBufferIsFreeBeforeTheNextLossTakesIt) {
  const Inventory inventory = two_layers(true);
  const Program program = lower(sequential_schedule(2), inventory, zero(3, 2));
  int live = 0;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.unit != inventory.embedding()) continue;
    live += instruction.op == Opcode::kAllocateGrads;
    live -= instruction.op == Opcode::kWaitReduce;
    EXPECT_LE(live, 1);
  }
  EXPECT_EQ(live, 0);
}

}  // namespace
}  // namespace fivefold
