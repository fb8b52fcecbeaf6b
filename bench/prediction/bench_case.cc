#include "prediction/bench_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "cli/machine.h"
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
  model.naming = bench.gpt2 ? "gpt2" : "llama";
  model.learned_positions = model.tied_embeddings = bench.gpt2;
  model.init_std = 0.02;
  LayerSpec layer;
  layer.mixer.num_heads = bench.heads;
  layer.mixer.num_kv_heads = bench.gpt2 ? bench.heads : bench.kv_heads;
  layer.mixer.head_dim = bench.hidden / bench.heads;
  layer.mixer.has_rope = !bench.gpt2;
  layer.mixer.qkv_bias = layer.mixer.out_bias = bench.gpt2;
  layer.mixer.rope.rotary_dim = layer.mixer.head_dim;
  layer.mlp.ffn = bench.ffn;
  if (bench.gpt2) {
    layer.norm = {.kind = NormKind::kLayer, .eps = 1e-5, .bias = true};
    layer.mlp.kind = MlpKind::kPlain;
    layer.mlp.activation = Activation::kGeluTanh;
    layer.mlp.bias = true;
  }
  model.final_norm = layer.norm;
  model.layers.assign(static_cast<size_t>(bench.layers), layer);
  return model;
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

// Sets a field; false: the value is not one of the field's.
template <typename T>
bool set_value(T& field, std::string_view text) {
  if constexpr (ConfigEnum<T>) {
    const std::span<const std::string_view> names = config_names(T{});
    const auto name = std::find(names.begin(), names.end(), text);
    if (name == names.end()) return false;
    field = static_cast<T>(name - names.begin());
    return true;
  } else {
    int64_t value = 0;
    const char* end = text.data() + text.size();
    if (text.empty() || std::from_chars(text.data(), end, value).ptr != end) return false;
    field = static_cast<T>(value);
    return true;
  }
}

bool set_value(std::string& field, std::string_view text) {
  field = text;
  return true;
}

struct Field {
  std::string_view key;
  bool (*set)(BenchCase&, std::string_view);
};
#define FIELD(name)                                                                    \
  Field {                                                                              \
    #name, [](BenchCase& b, std::string_view text) { return set_value(b.name, text); } \
  }
constexpr std::array kFields = {
    FIELD(hidden),    FIELD(layers),   FIELD(heads),    FIELD(kv_heads),     FIELD(ffn),
    FIELD(vocab),     FIELD(sequence), FIELD(micro),    FIELD(accumulation), FIELD(dp),
    FIELD(threads),   FIELD(zero),     FIELD(bf16),     FIELD(gpt2),         FIELD(recompute_every),
    FIELD(documents), FIELD(tp),       FIELD(sp),       FIELD(cp),           FIELD(cp_kind),
    FIELD(pp),        FIELD(vpp),      FIELD(schedule), FIELD(shard_size),   FIELD(prefetch),
    FIELD(simulate)};
#undef FIELD

}  // namespace

std::string BenchCase::name() const {
  std::string text =
      fmt::format("{}h{} L{} a{}/{} f{} V{} s{} b{}x{} {} dp{} t{} z{}", gpt2 ? "gpt2 " : "", hidden, layers, heads,
                  kv_heads, ffn, vocab, sequence, micro, accumulation, bf16 ? "bf16" : "fp32", dp, threads, zero);
  if (recompute_every > 0) text += fmt::format(" recompute{}", recompute_every);
  if (documents > 1) text += fmt::format(" documents{}", documents);
  if (tp > 1) text += fmt::format(" tp{}{}", tp, sp ? "+sp" : "");
  if (cp > 1) text += fmt::format(" cp{} {}", cp, to_string(cp_kind));
  if (pp > 1) text += fmt::format(" pp{} {}{}", pp, to_string(schedule), vpp > 1 ? fmt::format(" v{}", vpp) : "");
  if (shard_size > 0) text += fmt::format(" shards of {}", shard_size);
  if (zero == 3) text += fmt::format(" prefetch{}", prefetch);
  return text;
}

RunConfig run_config(const BenchCase& bench) {
  RunConfig config;
  config.parallel.dp = bench.dp;
  config.parallel.zero = bench.zero;
  config.parallel.threads = bench.threads;
  config.parallel.tp = bench.tp;
  config.parallel.sp = bench.sp;
  config.parallel.cp = bench.cp;
  config.parallel.cp_kind = bench.cp_kind;
  config.parallel.pp = bench.pp;
  config.parallel.vpp = bench.vpp;
  config.parallel.schedule = bench.schedule;
  config.parallel.shard_size = bench.shard_size;
  config.parallel.prefetch = bench.prefetch;
  config.comm.simulate = bench.simulate;
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

Result<BenchCase> parse_case(const std::vector<std::string>& settings) {
  BenchCase bench;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) return Error{setting, "is not KEY=VALUE", "for example hidden=512"};
    const std::string key = setting.substr(0, equals);
    const auto field = std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return f.key == key; });
    if (field == kFields.end()) return Error{setting, "unknown key \"" + key + "\"", ""};
    if (!field->set(bench, std::string_view(setting).substr(equals + 1)))
      return Error{setting, "is no value of " + key, ""};
  }
  return bench;
}

ProbeRequest probe_request(const BenchCase& bench, int updates) {
  ProbeRequest request;
  request.model = model_of(bench);
  const RunConfig config = run_config(bench);
  std::vector<Error> errors = validate_layout(request.model, config);
  if (errors.empty()) errors = validate_engine(request.model, config);
  FIVEFOLD_CHECK(errors.empty(), to_string(errors));
  request.config = resolve(config, request.model).value();
  request.batch = random_batch(bench, request.config.config.batch.global);
  request.simulate = load_simulated_network(config).value();
  request.updates = updates;
  request.want_gradients = false;
  request.want_hashes = false;
  return request;
}

}  // namespace fivefold::bench
