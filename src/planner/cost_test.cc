#include "planner/cost.h"

#include <cmath>

#include "planner/planner_testing.h"

namespace fivefold::test {
namespace {

// Two ranks of one thread on two cores: every matrix product at `flops_per_s`, attention at the same, everything else
// free, every collective `collective_s`.
HardwareSpec round_machine(double flops_per_s, double collective_s) {
  HardwareSpec h;
  h.device.cores = 2;
  h.device.memory_bytes.value = 1e12;
  h.device.memory_bytes_per_s.value = 1e18;
  h.device.peak_flops_per_s.fp32.value = h.device.peak_flops_per_s.bf16.value = 2 * flops_per_s;
  h.device.overlap_share.value = 1e-12;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    h.device.gemm.points.push_back({64, 64, 64, dtype, 1, flops_per_s, 2});
    for (const Pass pass : {Pass::kForward, Pass::kBackward})
      for (int kind = 0; kind <= static_cast<int>(OperationKind::kLoss); ++kind)
        h.device.operations.points.push_back(
            {static_cast<OperationKind>(kind), pass, dtype, 1, 1e-15, 1e18, flops_per_s, 2});
    for (const StreamKind stream : {StreamKind::kOptimizer, StreamKind::kAccumulate, StreamKind::kSumOfSquares})
      h.device.streams.points.push_back({stream, dtype, 1, 1e18, 2});
  }
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kSend})
    h.node_link.collectives.points.push_back({kind, 2, int64_t{1} << 40, collective_s});
  return h;
}

// demo-tiny by hand: 6 N flops a token for the matrices, and for attention 2 + 5 products of 2 a d s/2 instead of the
// 2 + 4 of the convention (scores are computed again in backward): 7/6 of 6 L a d s.
TEST(Cost, TakesTheFlopsOfTheModelOverTheRate) {
  const ModelSpec model = named_model("demo-tiny");
  const ResolvedConfig config = resolved(model, {.dp = 2, .micro = 3, .sequence = 64});
  const Inventory inventory = build_inventory(model);
  double matrices = 0;
  for (const Unit& unit : inventory.units)
    for (const ParameterEntry& p : unit.parameters)
      if (p.decay == DecayClass::kMatrix && unit.kind != UnitKind::kEmbedding)
        matrices += static_cast<double>(p.numel());
  const MixerSpec& mixer = model.layers[0].mixer;
  const double tokens = 3 * 64;
  const double attention =
      7.0 / 6 * 6 * static_cast<double>(model.layers.size() * mixer.num_heads * mixer.head_dim) * 64;
  const double expected = tokens * (6 * matrices + attention) / 1e9;
  const StepCost cost = predict_cost(model, inventory, config, round_machine(1e9, 1e-12));
  EXPECT_NEAR(cost.seconds, expected, 1e-4 * expected);
}

TEST(Cost, PartsAddUpToTheStep) {
  const ModelSpec model = named_model("demo-tiny");
  for (const int zero : {0, 1, 2, 3}) {
    const StepCost cost = predict_cost(model, build_inventory(model),
                                       resolved(model, {.dp = 2, .zero = zero, .accumulation = 6, .sequence = 64}),
                                       round_machine(1e9, 1e-3));
    double sum = 0;
    for (const double part : cost.parts) sum += part;
    EXPECT_NEAR(sum, cost.seconds, 1e-9 * cost.seconds) << zero;
  }
}

// With free computing nothing hides communication: the step is its collectives, one after the other.
TEST(Cost, ExposesCommunicationThatNothingHides) {
  const ModelSpec model = named_model("demo-tiny");
  for (const int zero : {0, 1, 2, 3}) {
    const ResolvedConfig config = resolved(model, {.dp = 2, .zero = zero, .sequence = 64});
    const StepCost cost = predict_cost(model, build_inventory(model), config, round_machine(1e18, 0.25));
    int64_t calls = 0;
    for (const TrafficLine& line : predict_traffic(model, build_inventory(model), config)) calls += line.calls;
    // Below the smallest measured size a collective takes the time of that size.
    EXPECT_NEAR(cost.communication_seconds, 0.25 * static_cast<double>(calls), 1e-6) << zero;
    EXPECT_NEAR(cost.seconds, cost.communication_seconds, 1e-6) << zero;
  }
}

// A reduction that ends before the next unit's backward costs nothing, nor does the count of tokens, which ends during
// the forward. Seen are the sum of loss and norm and two reductions: the embedding's, which nothing follows, and
// the first layer's, as the embedding's backward has no matrix product.
TEST(Cost, HidesReductionsBehindBackward) {
  const ModelSpec model = named_model("demo-tiny");
  const ResolvedConfig config = resolved(model, {.dp = 2, .sequence = 64});
  const StepCost slow = predict_cost(model, build_inventory(model), config, round_machine(1e6, 1e-3));
  EXPECT_NEAR(slow[TimePart::kExposedCommunication], 3e-3, 1e-6);
}

// A ring of two: forward passes one block on; backward one block, then the gradient of the other's, and the last
// gradient home. All but that last hop of each layer is behind attention when attention takes longer.
TEST(Cost, HidesTheRingBehindAttention) {
  const ModelSpec model = named_model("demo-tiny");
  RunConfig run;
  run.parallel.cp = 2;
  run.parallel.zero = 0;
  run.batch.sequence = 64;
  run.precision.compute = ComputeKind::kBf16;
  const ResolvedConfig config = resolve(run, model).value();
  const auto layers = static_cast<double>(model.layers.size());
  const auto exposed = [&](double flops_per_s, double hop_s) {
    HardwareSpec machine = round_machine(flops_per_s, 1e-15);
    for (CollectivePoint& point : machine.node_link.collectives.points)
      if (point.kind == CollectiveKind::kSend) point.seconds = hop_s;
    return predict_cost(model, build_inventory(model), config, machine)[TimePart::kExposedCommunication];
  };
  EXPECT_NEAR(exposed(1e18, 0.25), 4 * layers * 0.25, 1e-6);
  EXPECT_NEAR(exposed(1e6, 1e-3), layers * 1e-3, 1e-6);
}

// Buckets: as long as computing is free a step of level 3 is its calls, an n-th of them and the scalars.
TEST(Cost, ABucketIsOneCall) {
  const ModelSpec model = named_model("demo-tiny");
  RunConfig run;
  run.parallel.dp = 2;
  run.parallel.zero = 3;
  run.batch.sequence = 64;
  const auto layers = static_cast<int>(model.layers.size());
  for (const int bucket : {1, 2, layers}) {
    run.parallel.bucket_layers = bucket;
    const StepCost cost =
        predict_cost(model, build_inventory(model), resolve(run, model).value(), round_machine(1e18, 0.25));
    // Each bucket is gathered twice, since the loss lies between, and reduced once;
    // embedding and head are gathered once and reduced once; two scalars.
    const int buckets = (layers + bucket - 1) / bucket, gathers = 2 * buckets;
    EXPECT_NEAR(cost.seconds, 0.25 * (gathers + buckets + 2 + 2 + 2), 1e-6) << bucket;
  }
}

// A long step from three microbatches equals the replay of all of them: at level 3 nothing is carried between steps.
TEST(Cost, LongStepEqualsItsReplay) {
  const ModelSpec model = named_model("demo-tiny");
  const ResolvedConfig config =
      resolved(model, {.dp = 2, .zero = 3, .accumulation = 9, .sequence = 64, .recompute_every = 2});
  const HardwareSpec machine = round_machine(1e9, 1e-3);
  const double end = predict_step(model, build_inventory(model), config, machine).timelines[0].back().end_s;
  EXPECT_NEAR(predict_cost(model, build_inventory(model), config, machine).seconds, end, 1e-6 * end);
}

TEST(Rates, MatrixProductsAreExactAtMeasuredPoints) {
  HardwareSpec h = round_machine(1e9, 1e-3);
  h.device.gemm.points = {{128, 256, 512, DType::kBFloat16, 1, 3e9, 2}, {1024, 256, 512, DType::kBFloat16, 1, 9e9, 2}};
  const Rates rates(h, DType::kBFloat16, {.threads = 1, .ranks = 2});
  EXPECT_NEAR(rates.gemm_seconds({128, 256, 512}), 2.0 * 128 * 256 * 512 / 3e9, 1e-8);
  const double between = rates.gemm_seconds({362, 256, 512}) / (2.0 * 362 * 256 * 512);
  EXPECT_GT(between, 1 / 9e9);
  EXPECT_LT(between, 1 / 3e9);
}

// On a CPU that was measured in fp32 and bf16: products and attention of fp16 are made in fp32, the rest moves two
// bytes an element as in bf16.
TEST(Rates, Fp16WithoutMeasurementsTakesFp32ProductsAndBf16Streams) {
  HardwareSpec h = round_machine(1e9, 1e-3);
  for (GemmPoint& point : h.device.gemm.points) point.flops_per_s = point.dtype == DType::kFloat32 ? 2e9 : 8e9;
  for (OperationPoint& point : h.device.operations.points)
    point.flops_per_s = point.bytes_per_s = point.dtype == DType::kFloat32 ? 2e9 : 8e9;
  for (StreamPoint& point : h.device.streams.points) point.bytes_per_s = point.dtype == DType::kFloat32 ? 2e9 : 8e9;
  const RankPlacement placement{.threads = 1, .ranks = 2};
  const Rates fp16(h, DType::kFloat16, placement), fp32(h, DType::kFloat32, placement),
      bf16(h, DType::kBFloat16, placement);
  const OperationWork work{.gemms = {}, .flops = 1e9, .bytes = 1e9};
  EXPECT_EQ(fp16.gemm_seconds({64, 64, 64}), fp32.gemm_seconds({64, 64, 64}));
  EXPECT_EQ(fp16.operation_seconds(OperationKind::kAttention, Pass::kForward, work),
            fp32.operation_seconds(OperationKind::kAttention, Pass::kForward, work));
  EXPECT_EQ(fp16.operation_seconds(OperationKind::kLoss, Pass::kForward, work),
            bf16.operation_seconds(OperationKind::kLoss, Pass::kForward, work));
  EXPECT_EQ(fp16.stream_seconds(StreamKind::kOptimizer, 1e9), bf16.stream_seconds(StreamKind::kOptimizer, 1e9));
  h.device.gemm.points.push_back({64, 64, 64, DType::kFloat16, 1, 5e9, 2});
  EXPECT_NEAR(Rates(h, DType::kFloat16, placement).gemm_seconds({64, 64, 64}), 2.0 * 64 * 64 * 64 / 5e9, 1e-12);
}

// Llama-3-8B: N without the embedding 7,504,924,672 (8,030,261,248 - 128,256 x 4,096); attention 6 x 32 x 4096 x s
// causal.
TEST(StepFlops, CountsSixNAndAttention) {
  const ModelSpec model = named_model("llama-3-8b");
  const StepFlops flops = step_flops(model, build_inventory(model), resolved(model, {.sequence = 8192}));
  EXPECT_EQ(multiplied_parameters(model), 7'504'924'672);
  EXPECT_DOUBLE_EQ(flops.matrices, 6.0 * 7'504'924'672 * 8192);
  EXPECT_DOUBLE_EQ(flops.attention_causal, 6.0 * 32 * 4096 * 8192 * 8192);
  EXPECT_DOUBLE_EQ(flops.model_full() - flops.matrices, 2 * flops.attention_causal);
  EXPECT_EQ(flops.hardware_causal(), flops.model_causal());
}

// Recompute of every layer repeats all but the down projection, which nothing reads: a layer has 218,103,808 elements
// in its matrices, 58,720,256 of them in the down projection.
TEST(StepFlops, CountsWhatIsRecomputed) {
  const ModelSpec model = named_model("llama-3-8b");
  const StepFlops flops =
      step_flops(model, build_inventory(model), resolved(model, {.sequence = 1024, .recompute_every = 1}));
  EXPECT_DOUBLE_EQ(flops.recomputed_matrices, 2.0 * 32 * (218'103'808 - 58'720'256) * 1024);
  EXPECT_DOUBLE_EQ(flops.recomputed_attention_causal, flops.attention_causal / 3);
}

// Of the same layer gate and up have 2 x 14,336 x 4096 elements, qkv 6144 x 4096.
TEST(StepFlops, CountsWhatSelectiveRecomputeDrops) {
  const ModelSpec model = named_model("llama-3-8b");
  const Inventory inventory = build_inventory(model);
  const auto flops = [&](const std::vector<std::string>& tensors) {
    return step_flops(model, inventory, resolved(model, {.sequence = 1024, .dropped = tensors}));
  };
  EXPECT_DOUBLE_EQ(flops({"mlp.gate_up"}).recomputed_matrices, 2.0 * 32 * 117'440'512 * 1024);
  EXPECT_EQ(flops({"mlp.gate_up"}).recomputed_attention_causal, 0);
  EXPECT_DOUBLE_EQ(flops({"attention.qkv", "mlp.gate_up"}).recomputed_matrices,
                   2.0 * 32 * (117'440'512 + 25'165'824) * 1024);
  const StepFlops out = flops({"attention.out"});
  EXPECT_EQ(out.recomputed_matrices, 0);
  EXPECT_DOUBLE_EQ(out.recomputed_attention_causal, out.attention_causal / 3);
  // MFU does not count what is computed again.
  EXPECT_EQ(out.model_causal(), flops({}).model_causal());
}

// What is dropped is computed again in backward, on a machine without latency as long as forward took for it.
TEST(Cost, DroppedTensorsCostTheirForward) {
  const ModelSpec model = named_model("demo-tiny");
  const Inventory inventory = build_inventory(model);
  const HardwareSpec machine = round_machine(1e9, 0);
  const auto backward = [&](const std::vector<std::string>& tensors) {
    PredictionMemo memo(model, inventory, machine);
    return memo.passes(resolved(model, {.sequence = 64, .dropped = tensors}))[1];
  };
  const PassSeconds none = backward({});
  const PassSeconds all = backward({"attention.qkv", "attention.out", "mlp.gate_up"});
  EXPECT_EQ(all.forward, none.forward);
  EXPECT_GT(all.backward, none.backward);
  EXPECT_LT(all.backward - none.backward, none.forward);
  EXPECT_EQ(all.backward_weight, none.backward_weight);
  EXPECT_DOUBLE_EQ(all.backward_input + all.backward_weight, all.backward);
}

}  // namespace
}  // namespace fivefold::test
