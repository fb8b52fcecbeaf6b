// Bytes that tensor, sequence and context parallelism and pipelines send, against the textbook formulas evaluated by
// hand. What the engine counts equals what is predicted here: tests/distributed (memory_ledger, random_layouts).
//
// T = s b / c: tokens of a rank; w = 2 bytes (bf16); X = T h w: the residual stream's activations of a rank.
#include "planner/planner_testing.h"
#include "planner/traffic.h"
#include "spec/run_config_io.h"

namespace fivefold::test {
namespace {

struct Shape {
  const char* name;
  int64_t h, a, k, d, f;
};
constexpr Shape kShapes[] = {
    {"grouped queries", 4096, 32, 8, 128, 14336},
    {"two KV heads", 1024, 16, 2, 64, 2816},
    {"as many KV heads as query heads", 1024, 16, 16, 64, 4096},
};

ModelSpec model_of(const Shape& shape, int64_t layers) {
  ModelSpec model;
  model.name = shape.name;
  model.hidden = shape.h;
  model.vocab = 32000;
  model.max_positions = 4096;
  model.naming = "llama";
  LayerSpec layer;
  layer.mixer.num_heads = shape.a;
  layer.mixer.num_kv_heads = shape.k;
  layer.mixer.head_dim = shape.d;
  layer.mixer.rope.rotary_dim = shape.d;
  layer.mlp.ffn = shape.f;
  model.final_norm = layer.norm;
  model.layers.assign(static_cast<size_t>(layers), layer);
  return model;
}

using Settings = std::vector<std::string>;

// Sent by a rank in a step to move activations, or their gradients, within groups of a kind.
struct Sent {
  int64_t forward = 0, backward = 0, loss = 0;
};
Sent sent(const ModelSpec& model, Settings settings, GroupKind group, int rank = 0) {
  settings.insert(settings.begin(), "precision.compute=bf16");
  const LoadedConfig loaded = load_config({.set = settings});
  EXPECT_TRUE(loaded.errors.empty());
  const auto config = resolve(loaded.config, model);
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message());
  Sent sum;
  for (const TrafficLine& line : predict_traffic(model, build_inventory(model), *config, rank)) {
    if (line.group != group) continue;
    // Sequence parallelism gathers an input again in backward, for the weight's gradient: booked as activations.
    if (line.purpose == Purpose::kActivations) sum.forward += line.bytes;
    if (line.purpose == Purpose::kActivationGradients) sum.backward += line.bytes;
    if (line.purpose == Purpose::kLoss) sum.loss += line.bytes;
  }
  return sum;
}

// Of one layer: what two models of 6 and 2 layers differ in, over 4.
Sent sent_per_layer(const Shape& shape, const Settings& settings, GroupKind group) {
  const Sent six = sent(model_of(shape, 6), settings, group), two = sent(model_of(shape, 2), settings, group);
  EXPECT_EQ((six.forward - two.forward) % 4, 0);
  EXPECT_EQ(six.loss, two.loss);
  return {(six.forward - two.forward) / 4, (six.backward - two.backward) / 4, 0};
}

std::string set(const char* key, int64_t value) { return std::string(key) + "=" + std::to_string(value); }

// TP: two all-reduces of X forward and two backward, each 2 (t-1)/t X, whatever t divides.
//   h 4096, T = 1024 x 2, t = 4: X = 16,777,216; 2 x 2 x 3/4 X = 50,331,648 bytes each way.
//   h 1024, T = 2048, t = 8 (4 ranks share a KV head): X = 4,194,304; 2 x 2 x 7/8 X = 14,680,064.
TEST(SplitTraffic, TensorParallelismSendsFourAllReducesALayer) {
  for (const Shape& shape : kShapes)
    for (const int64_t t : {2, 4, 8}) {
      SCOPED_TRACE(std::string(shape.name) + ", t = " + std::to_string(t));
      const Settings settings = {set("parallel.tp", t), "batch.sequence=1024", "batch.micro=2"};
      const int64_t x = 1024 * 2 * shape.h * 2, each_way = 2 * 2 * (t - 1) * x / t;
      const Sent layer = sent_per_layer(shape, settings, GroupKind::kTp);
      EXPECT_EQ(layer.forward, each_way);
      EXPECT_EQ(layer.backward, each_way);
      // Beside the layers: the embedding's sum forward, the head's input gradient backward, and of the loss two fp64
      // numbers a token of every other rank.
      const Sent all = sent(model_of(shape, 2), settings, GroupKind::kTp);
      EXPECT_EQ(all.forward - 2 * layer.forward, 2 * (t - 1) * x / t);
      EXPECT_EQ(all.backward - 2 * layer.backward, 2 * (t - 1) * x / t);
      EXPECT_EQ(all.loss, 16 * (t - 1) * 1024 * 2);
    }
  EXPECT_EQ(
      sent_per_layer(kShapes[0], {"parallel.tp=4", "batch.sequence=1024", "batch.micro=2"}, GroupKind::kTp).forward,
      50'331'648);
  EXPECT_EQ(
      sent_per_layer(kShapes[1], {"parallel.tp=8", "batch.sequence=1024", "batch.micro=2"}, GroupKind::kTp).forward,
      14'680'064);
}

// TP + SP: ten gathers and reduce-scatters of X, each (t-1)/t X: 4 forward, 4 of gradients and 2 repeated gathers of
// inputs backward. h 4096, T = 2048, t = 2: X = 16,777,216; (4 + 2) x 1/2 X = 50,331,648 and 4 x 1/2 X = 33,554,432.
TEST(SplitTraffic, SequenceParallelismSendsTenPartsALayer) {
  for (const Shape& shape : kShapes)
    for (const int64_t t : {2, 4, 8}) {
      SCOPED_TRACE(std::string(shape.name) + ", t = " + std::to_string(t));
      const Settings settings = {set("parallel.tp", t), "parallel.sp=true", "batch.sequence=1024", "batch.micro=2"};
      const int64_t part = 1024 * 2 * shape.h * 2 * (t - 1) / t;
      const Sent layer = sent_per_layer(shape, settings, GroupKind::kTp);
      EXPECT_EQ(layer.forward, (4 + 2) * part);
      EXPECT_EQ(layer.backward, 4 * part);
      // The embedding's reduce-scatter and its gradient's gather; the head's gather and its gradient's reduce-scatter.
      const Sent all = sent(model_of(shape, 2), settings, GroupKind::kTp);
      EXPECT_EQ(all.forward - 2 * layer.forward, 2 * part);
      EXPECT_EQ(all.backward - 2 * layer.backward, 2 * part);
      EXPECT_EQ(all.loss, 16 * (t - 1) * 1024 * 2);
    }
  const Sent layer = sent_per_layer(
      kShapes[0], {"parallel.tp=2", "parallel.sp=true", "batch.sequence=1024", "batch.micro=2"}, GroupKind::kTp);
  EXPECT_EQ(layer.forward, 50'331'648);
  EXPECT_EQ(layer.backward, 33'554'432);
}

// Keys and values of a rank's tokens. The textbook has 2 x 2 k d s b / (c t) bytes; here a rank of t > k holds one head
// whole, which t/k ranks then have: max(k/t, 1) heads.
int64_t kv_block(const Shape& shape, int64_t c, int64_t t, int64_t bytes) {
  return 2 * std::max<int64_t>(shape.k / t, 1) * shape.d * (2048 / c) * bytes;
}

// Ring: forward c-1 blocks; backward c-1 blocks again and c of gradients. The textbook's gradients have "their own
// dtype": here fp32, 4 bytes. k 8, d 128, 2048 tokens, c = 4: a block of 2 x 8 x 128 x 512 x 2 = 2,097,152 bytes,
// 3 + 3 of them, and 4 x 4,194,304 bytes of gradients.
TEST(SplitTraffic, RingPassesKeysAndValuesRound) {
  for (const Shape& shape : kShapes)
    for (const int64_t c : {2, 4, 8})
      for (const int64_t t : {1, 4}) {
        SCOPED_TRACE(std::string(shape.name) + ", c = " + std::to_string(c) + ", t = " + std::to_string(t));
        const Sent layer = sent_per_layer(shape, {set("parallel.cp", c), set("parallel.tp", t), "batch.sequence=2048"},
                                          GroupKind::kCp);
        EXPECT_EQ(layer.forward, 2 * (c - 1) * kv_block(shape, c, t, 2));  // backward's blocks are activations too
        EXPECT_EQ(layer.backward, c * kv_block(shape, c, t, 4));
        const int64_t textbook = 2 * (c - 1) * 4 * shape.k * shape.d * 2048 / (c * t);
        EXPECT_EQ(layer.forward, textbook * std::max<int64_t>(t / shape.k, 1));
      }
  const Sent layer = sent_per_layer(kShapes[0], {"parallel.cp=4", "batch.sequence=2048"}, GroupKind::kCp);
  EXPECT_EQ(layer.forward, 12'582'912);
  EXPECT_EQ(layer.backward, 16'777'216);
}

// Gathered keys: the textbook gathers them once, (c-1) blocks, and reduce-scatters their gradients, (c-1) blocks. Here
// they are not kept and gathered again in backward: (c-1) blocks more. k 8, c = 2: blocks of 4,194,304 bytes.
TEST(SplitTraffic, GatheredKeysAreGatheredAgainInBackward) {
  for (const Shape& shape : kShapes)
    for (const int64_t c : {2, 4, 8})
      for (const int64_t t : {1, 4}) {
        SCOPED_TRACE(std::string(shape.name) + ", c = " + std::to_string(c) + ", t = " + std::to_string(t));
        const Sent layer = sent_per_layer(
            shape, {set("parallel.cp", c), set("parallel.tp", t), "parallel.cp_kind=all_gather", "batch.sequence=2048"},
            GroupKind::kCp);
        const int64_t once = (c - 1) * kv_block(shape, c, t, 2);
        EXPECT_EQ(layer.forward, once + once);  // the textbook's, and the repetition
        EXPECT_EQ(layer.backward, once);
      }
  EXPECT_EQ(sent_per_layer(kShapes[0], {"parallel.cp=2", "parallel.cp_kind=all_gather", "batch.sequence=2048"},
                           GroupKind::kCp)
                .backward,
            4'194'304);
}

// Ulysses: q, k, v there and o back, 2 (2a + 2k) d s b / (c t) (c-1)/c bytes forward, the same backward; a rank's KV
// heads are repeated up to c where there are fewer. k 8, a 32, d 128, c = 4: 2 x 80 x 128 x 512 x 3/4 = 7,864,320.
//   k 2, a 16, d 64, c = 4 (2 heads for 4 ranks: 4 are sent): 2 x (32 + 8) x 64 x 512 x 3/4 = 1,966,080.
TEST(SplitTraffic, UlyssesSendsQueriesKeysValuesAndOutputs) {
  for (const Shape& shape : kShapes)
    for (const int64_t c : {2, 4, 8})
      for (const int64_t t : {1, 2}) {
        SCOPED_TRACE(std::string(shape.name) + ", c = " + std::to_string(c) + ", t = " + std::to_string(t));
        const Sent layer = sent_per_layer(
            shape, {set("parallel.cp", c), set("parallel.tp", t), "parallel.cp_kind=ulysses", "batch.sequence=2048"},
            GroupKind::kCp);
        const int64_t textbook = 2 * (2 * shape.a + 2 * shape.k) * shape.d * 2048 / (c * t) * (c - 1) / c;
        const int64_t heads = shape.k / t, repeated = std::max<int64_t>(c - heads, 0);
        const int64_t more = 2 * 2 * repeated * shape.d * 2048 / c * (c - 1) / c;
        EXPECT_EQ(layer.forward, textbook + more);
        EXPECT_EQ(layer.backward, textbook + more);
      }
  const Settings settings = {"parallel.cp=4", "parallel.cp_kind=ulysses", "batch.sequence=2048"};
  EXPECT_EQ(sent_per_layer(kShapes[0], settings, GroupKind::kCp).forward, 7'864'320);
  EXPECT_EQ(sent_per_layer(kShapes[1], settings, GroupKind::kCp).backward, 1'966'080);
}

// Pipelines: X per boundary, microbatch and direction, a t-th with sequence parallelism. v chunks a rank have p v - 1
// boundaries, of which a V has one within a rank. h 1024, 1024 tokens, 8 microbatches, p = 4, v = 2: X = 2,097,152;
// 7 boundaries x 8 x X = 117,440,512 bytes forward over all ranks.
TEST(SplitTraffic, PipelinesSendActivationsAndTheirGradients) {
  struct Kind {
    const char* schedule;
    int64_t v, inner;  // boundaries between two chunks of one rank
  };
  for (const Shape& shape : kShapes)
    for (const Kind& kind : {Kind{"1f1b", 1, 0}, Kind{"gpipe", 1, 0}, Kind{"interleaved", 2, 0}, Kind{"zbv", 2, 1}})
      for (const int64_t p : {2, 4, 8})
        for (const int64_t t : {1, 2}) {
          SCOPED_TRACE(std::string(shape.name) + ", " + kind.schedule + ", p = " + std::to_string(p));
          const ModelSpec model = model_of(shape, 16);
          const Settings settings = {
              set("parallel.pp", p), std::string("parallel.schedule=") + kind.schedule, set("parallel.vpp", kind.v),
              set("parallel.tp", t), t > 1 ? "parallel.sp=true" : "parallel.sp=false",  "batch.sequence=1024",
              "batch.global=8"};
          const int64_t x = 1024 * shape.h * 2 / t, boundaries = p * kind.v - 1 - kind.inner;
          Sent sum;
          for (int64_t stage = 0; stage < p; ++stage) {
            const Sent rank = sent(model, settings, GroupKind::kPp, static_cast<int>(stage * t));
            sum.forward += rank.forward;
            sum.backward += rank.backward;
            // Without chunks the first rank sends forward only, the last one backward only.
            if (kind.v == 1) EXPECT_EQ(rank.forward, stage + 1 < p ? 8 * x : 0);
            if (kind.v == 1) EXPECT_EQ(rank.backward, stage > 0 ? 8 * x : 0);
          }
          EXPECT_EQ(sum.forward, boundaries * 8 * x);
          EXPECT_EQ(sum.backward, boundaries * 8 * x);
        }
}

// All splits together: each divides what the others leave. s b = 2 x 2048, c = 2, t = 2 with SP: T = 2048.
// X = T h w = 16,777,216 at h 4096; parts of (t-1)/t X = 8,388,608; a KV block of 2 x 4 x 128 x 2048 x 2 = 4,194,304;
// a stage sends X / t. Rank 0 of 2 stages has 3 layers and the embedding, 2 microbatches.
TEST(SplitTraffic, SplitsTogether) {
  const ModelSpec model = model_of(kShapes[0], 6);
  const Settings settings = {"parallel.tp=2", "parallel.sp=true", "parallel.cp=2",      "parallel.pp=2",
                             "batch.micro=2", "batch.global=4",   "batch.sequence=2048"};
  const Sent tp = sent(model, settings, GroupKind::kTp), cp = sent(model, settings, GroupKind::kCp),
             pp = sent(model, settings, GroupKind::kPp);
  EXPECT_EQ(tp.forward, 2 * (3 * 6 + 1) * 8'388'608);
  EXPECT_EQ(tp.backward, 2 * (3 * 4 + 1) * 8'388'608);
  EXPECT_EQ(cp.forward, 2 * 3 * 2 * 1 * 4'194'304);
  EXPECT_EQ(cp.backward, 2 * 3 * 2 * 8'388'608);  // c = 2 blocks of fp32
  EXPECT_EQ(pp.forward, 2 * 8'388'608);
  EXPECT_EQ(pp.backward, 0);
}

}  // namespace
}  // namespace fivefold::test
