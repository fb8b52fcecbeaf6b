#include "prediction/bench_case.h"

#include <fmt/format.h>

#include <charconv>

#include "spec/run_config_io.h"
#include "spec/validate.h"

namespace fivefold::bench {
namespace {

ModelSpec model_of(const BenchCase& bench) {
  ModelSpec model;
  model.name = bench.name();
  model.hidden = bench.hidden;
  model.vocab = bench.vocab;
  model.max_positions = bench.sequence;
  model.naming = "llama";
  model.init_std = 0.02;
  LayerSpec layer;
  layer.mixer.num_heads = bench.heads;
  layer.mixer.num_kv_heads = bench.kv_heads;
  layer.mixer.head_dim = bench.hidden / bench.heads;
  layer.mixer.rope.rotary_dim = layer.mixer.head_dim;
  layer.mlp.ffn = bench.ffn;
  model.final_norm = layer.norm;
  model.layers.assign(static_cast<size_t>(bench.layers), layer);
  return model;
}

RunConfig config_of(const BenchCase& bench) {
  RunConfig config;
  config.parallel.dp = bench.dp;
  config.parallel.zero = bench.zero;
  config.parallel.threads = bench.threads;
  config.batch.micro = bench.micro;
  config.batch.global = bench.micro * bench.dp * bench.accumulation;
  config.batch.sequence = bench.sequence;
  if (bench.documents > 1) config.batch.packing = Packing::kDocuments;
  config.precision.compute = bench.bf16 ? ComputeKind::kBf16 : ComputeKind::kFp32;
  if (bench.recompute_every > 0) {
    config.recompute.kind = RecomputeKind::kFull;
    config.recompute.every = bench.recompute_every;
  }
  config.optimizer.kind = OptimizerKind::kAdamW;
  config.optimizer.clip = 1.0;
  return config;
}

GlobalBatch random_batch(const BenchCase& bench, int64_t rows) {
  GlobalBatch batch;
  batch.rows = rows;
  batch.sequence = bench.sequence;
  uint64_t state = 1;
  const auto next = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(bench.vocab));
  };
  const int64_t length = bench.sequence / bench.documents;
  for (int64_t row = 0; row < rows; ++row) {
    batch.document_lengths.emplace_back(static_cast<size_t>(bench.documents), static_cast<int32_t>(length));
    for (int64_t i = 0; i < bench.sequence; ++i) {
      batch.input_ids.push_back(next());
      batch.targets.push_back(next());
      batch.positions.push_back(static_cast<int32_t>(i % length));
    }
  }
  return batch;
}

}  // namespace

std::string BenchCase::name() const {
  std::string text = fmt::format("h{} L{} a{}/{} f{} V{} s{} b{}x{} {} dp{} t{} z{}", hidden, layers, heads, kv_heads,
                                 ffn, vocab, sequence, micro, accumulation, bf16 ? "bf16" : "fp32", dp, threads, zero);
  if (recompute_every > 0) text += fmt::format(" recompute{}", recompute_every);
  if (documents > 1) text += fmt::format(" documents{}", documents);
  return text;
}

Result<BenchCase> parse_case(const std::vector<std::string>& settings) {
  BenchCase bench;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    int64_t value = 0;
    const char* end = setting.data() + setting.size();
    if (equals == std::string::npos || std::from_chars(setting.data() + equals + 1, end, value).ptr != end)
      return Error{setting, "is not KEY=NUMBER", "for example hidden=512"};
    const std::string key = setting.substr(0, equals);
    if (key == "hidden")
      bench.hidden = value;
    else if (key == "layers")
      bench.layers = value;
    else if (key == "heads")
      bench.heads = value;
    else if (key == "kv_heads")
      bench.kv_heads = value;
    else if (key == "ffn")
      bench.ffn = value;
    else if (key == "vocab")
      bench.vocab = value;
    else if (key == "sequence")
      bench.sequence = value;
    else if (key == "micro")
      bench.micro = value;
    else if (key == "accumulation")
      bench.accumulation = value;
    else if (key == "dp")
      bench.dp = static_cast<int>(value);
    else if (key == "threads")
      bench.threads = static_cast<int>(value);
    else if (key == "zero")
      bench.zero = static_cast<int>(value);
    else if (key == "bf16")
      bench.bf16 = value != 0;
    else if (key == "recompute_every")
      bench.recompute_every = value;
    else if (key == "documents")
      bench.documents = value;
    else
      return Error{setting, "unknown key \"" + key + "\"", ""};
  }
  return bench;
}

ProbeRequest probe_request(const BenchCase& bench, int updates) {
  ProbeRequest request;
  request.model = model_of(bench);
  const RunConfig config = config_of(bench);
  const std::vector<Error> errors = validate_engine(request.model, config);
  FIVEFOLD_CHECK(errors.empty(), to_string(errors));
  request.config = resolve(config, request.model).value();
  request.batch = random_batch(bench, request.config.config.batch.global);
  request.updates = updates;
  request.want_gradients = false;
  request.want_hashes = false;
  return request;
}

}  // namespace fivefold::bench
