// What calibrate times: shapes between which and beyond which the planner interpolates.
#include "cli/calibration.h"
#include "cli/random_batch.h"
#include "spec/run_config_io.h"

namespace fivefold {
namespace {

constexpr int64_t kTinyExtent = 16;  // a product that takes no time of its own

struct Shape {
  int64_t hidden, heads, kv_heads, head_dim, ffn, vocab;
  int64_t layers, micro, accumulation, sequence;
  bool qk_norm = false, gpt = false;
};

// Each kind of operation at several sizes, and attention at short and long sequences: the fit of fixed and
// proportional parts needs both.
constexpr Shape kShapes[] = {
    {.hidden = 256,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 64,
     .ffn = 768,
     .vocab = 2048,
     .layers = 2,
     .micro = 1,
     .accumulation = 2,
     .sequence = 256,
     .qk_norm = true},
    {.hidden = 512,
     .heads = 8,
     .kv_heads = 4,
     .head_dim = 64,
     .ffn = 1408,
     .vocab = 4096,
     .layers = 1,
     .micro = 2,
     .accumulation = 1,
     .sequence = 512,
     .qk_norm = true},
    {.hidden = 384,
     .heads = 6,
     .kv_heads = 6,
     .head_dim = 64,
     .ffn = 1024,
     .vocab = 1024,
     .layers = 1,
     .micro = 1,
     .accumulation = 1,
     .sequence = 1024},
    {.hidden = 256,
     .heads = 8,
     .kv_heads = 8,
     .head_dim = 32,
     .ffn = 512,
     .vocab = 512,
     .layers = 1,
     .micro = 8,
     .accumulation = 1,
     .sequence = 64},
    {.hidden = 256,
     .heads = 4,
     .kv_heads = 4,
     .head_dim = 64,
     .ffn = 1024,
     .vocab = 512,
     .layers = 1,
     .micro = 1,
     .accumulation = 1,
     .sequence = 128,
     .gpt = true},
    {.hidden = 512,
     .heads = 8,
     .kv_heads = 8,
     .head_dim = 64,
     .ffn = 2048,
     .vocab = 512,
     .layers = 1,
     .micro = 2,
     .accumulation = 1,
     .sequence = 256,
     .gpt = true},
};

ModelSpec model_of(const Shape& shape) {
  ModelSpec model;
  model.name = "calibration";
  model.hidden = shape.hidden;
  model.vocab = shape.vocab;
  model.max_positions = shape.sequence;
  model.naming = "llama";
  model.init_std = 0.02;
  LayerSpec layer;
  layer.mixer.num_heads = shape.heads;
  layer.mixer.num_kv_heads = shape.kv_heads;
  layer.mixer.head_dim = shape.head_dim;
  layer.mixer.qk_norm = shape.qk_norm;
  layer.mixer.rope.rotary_dim = shape.head_dim;
  layer.mlp.ffn = shape.ffn;
  if (shape.gpt) {
    layer.mlp.kind = MlpKind::kPlain;
    layer.mlp.activation = Activation::kGeluTanh;
  }
  model.final_norm = layer.norm;
  model.layers.assign(static_cast<size_t>(shape.layers), layer);
  return model;
}

RunConfig config_of(const Shape& shape, DType dtype, int threads) {
  RunConfig config;
  config.parallel.threads = threads;
  config.batch.micro = shape.micro;
  config.batch.global = shape.micro * shape.accumulation;
  config.batch.sequence = shape.sequence;
  config.precision.compute = dtype == DType::kFloat32 ? ComputeKind::kFp32 : ComputeKind::kBf16;
  return config;
}

StepTask step_task(const Shape& shape, DType dtype, int threads) {
  StepTask task;
  task.model = model_of(shape);
  task.config = resolve(config_of(shape, dtype, threads), task.model).value();
  return task;
}

// Every use of a linear [a, b] on t tokens: out = t x a, input gradient = t x b, weight gradient = a x b.
void add_gemms(DType dtype, std::vector<GemmTask>& gemms) {
  constexpr int64_t kWidths[][2] = {{128, 128},  {512, 128},   {512, 512}, {512, 1536},
                                    {1536, 512}, {1024, 1024}, {4096, 256}};
  gemms.push_back({GemmUse::kForward, kTinyExtent, kTinyExtent, kTinyExtent, dtype});
  for (const int64_t t : {64, 256, 1024})
    for (const auto& [a, b] : kWidths) {
      gemms.push_back({GemmUse::kForward, t, a, b, dtype});
      gemms.push_back({GemmUse::kInputGrad, t, b, a, dtype});
      gemms.push_back({GemmUse::kWeightGrad, a, b, t, dtype});
    }
}

void add_collectives(std::vector<CollectiveTask>& collectives) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather})
    for (const int64_t bytes : {int64_t{64}, int64_t{64} << 10, int64_t{1} << 20, int64_t{4} << 20, int64_t{32} << 20})
      collectives.push_back({kind, bytes});
}

}  // namespace

ProbeRequest library_probe(int cores, DType dtype) {
  constexpr Shape kTiny{.hidden = 64,
                        .heads = 2,
                        .kv_heads = 2,
                        .head_dim = 32,
                        .ffn = 128,
                        .vocab = 64,
                        .layers = 1,
                        .micro = 1,
                        .accumulation = 1,
                        .sequence = 64};
  ProbeRequest request;
  request.model = model_of(kTiny);
  RunConfig config = config_of(kTiny, dtype, /*threads=*/1);
  config.parallel.dp = cores;
  config.batch.global = kTiny.micro * cores;
  request.config = resolve(config, request.model).value();
  request.batch = random_batch(request.config, kTiny.vocab, RandomTargets::kAll);
  request.updates = 1;
  request.want_gradients = request.want_hashes = false;
  return request;
}

std::vector<MeasureRequest> calibration_requests(int cores) {
  std::vector<MeasureRequest> requests;
  const auto add = [&](int ranks, int threads) {
    MeasureRequest request{.ranks = ranks, .threads = threads};
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      add_gemms(dtype, request.gemms);
      for (const Shape& shape : kShapes) request.steps.push_back(step_task(shape, dtype, threads));
    }
    if (ranks > 1) add_collectives(request.collectives);
    requests.push_back(std::move(request));
  };
  add(1, 1);
  if (cores == 1) return requests;
  add(1, cores);
  add(cores, 1);
  for (int ranks = 2; ranks < cores; ranks *= 2) {
    MeasureRequest request{.ranks = ranks, .threads = 1};
    add_collectives(request.collectives);
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace fivefold
