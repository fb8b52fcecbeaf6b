#include "schedule/program.h"

#include <gtest/gtest.h>

#include "schedule/generate.h"

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
  for (const Instruction& instruction : program.instructions)
    text += (instruction.joined ? "+" : "") + to_string(instruction, inventory) + "\n";
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

// A bucket of both layers: one gather before the first and one reduction after the last of each pass.
TEST(Lowering, ABucketIsOneCall) {
  const Inventory inventory = two_layers(false);
  LoweringOptions options = zero(3, 2);
  options.bucket_layers = 2;
  options.prefetch = 0;
  EXPECT_EQ(listing(lower(sequential_schedule(1), inventory, options), inventory),
            "count_tokens\n"
            "unshard embedding\nwait_unshard embedding\nforward embedding #0\nreshard embedding\n"
            "unshard layers.0\n+unshard layers.1\nwait_unshard layers.0\nwait_unshard layers.1\n"
            "forward layers.0 #0\nforward layers.1 #0\nreshard layers.0\nreshard layers.1\n"
            "unshard head\nwait_unshard head\nwait_count\nallocate_grads head #0\nloss head #0\nreshard head\n"
            "reduce_grads head #0\n"
            "unshard layers.0\n+unshard layers.1\nwait_unshard layers.0\nwait_unshard layers.1\n"
            "allocate_grads layers.1 #0\nbackward layers.1 #0\nwait_reduce head\n"
            "allocate_grads layers.0 #0\nbackward layers.0 #0\nreshard layers.0\nreshard layers.1\n"
            "reduce_grads layers.1 #0\n+reduce_grads layers.0 #0\n"
            "allocate_grads embedding #0\nbackward embedding #0\nwait_reduce layers.1\nwait_reduce layers.0\n"
            "reduce_grads embedding #0\nwait_reduce embedding\ngrad_norm\n"
            "optimizer_step embedding\noptimizer_step layers.0\noptimizer_step layers.1\noptimizer_step head\n");
}

TEST(Lowering, ABucketOfLevel1IsGatheredInOneCallAfterItsUpdates) {
  const Inventory inventory = two_layers(false);
  LoweringOptions options = zero(1, 2);
  options.bucket_layers = 2;
  const std::string text = listing(lower(sequential_schedule(2), inventory, options), inventory);
  EXPECT_TRUE(
      text.ends_with("optimizer_step embedding\ngather_parameters embedding\noptimizer_step layers.0\n"
                     "optimizer_step layers.1\ngather_parameters layers.0\n+gather_parameters layers.1\n"
                     "optimizer_step head\ngather_parameters head\n"))
      << text;
}

// Transfers that are one call stand together, whatever is gathered ahead.
TEST(Lowering, NothingStandsBetweenJoinedTransfers) {
  const Inventory inventory = two_layers(false);
  int joined = 0;
  for (const int prefetch : {0, 1, 2, 3, 5}) {
    for (const ScheduleKind kind : {ScheduleKind::k1F1B, ScheduleKind::kZb1p, ScheduleKind::kZb2p}) {
      const Schedule schedule = *generate(kind, 2, 1, 5);
      for (int rank = 0; rank < 2; ++rank) {
        LoweringOptions options = zero(3, 2);
        options.prefetch = prefetch;
        options.pipeline_rank = rank;
        options.chunks = {rank == 0 ? StageUnits{0, 2} : StageUnits{2, 4}};
        options.peers = {rank == 0 ? ChunkPeers{-1, 1} : ChunkPeers{0, -1}};
        const Program program = lower(schedule, inventory, options);
        for (size_t i = 0; i < program.instructions.size(); ++i) {
          if (!program.instructions[i].joined) continue;
          ++joined;
          EXPECT_TRUE(is_transfer(program.instructions[i].op));
          EXPECT_TRUE(is_transfer(program.instructions[i - 1].op)) << i << " " << to_string(kind);
        }
      }
    }
  }
  EXPECT_GT(joined, 0);
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
