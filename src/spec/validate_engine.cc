#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/integer.h"
#include "spec/run_config_resolve.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

// Ranks of `local` are threads of one process, each with its own buffers and a communication thread.
constexpr int64_t kMaxLocalRanks = 256;

constexpr std::string_view kDenseHint = "use a dense model such as Llama, Mistral, Qwen2, Qwen3 or GPT-2";

// What of the layer the engine has no operation for; empty when it has all.
std::string_view missing_operation(const LayerSpec& layer) {
  const MixerSpec& mixer = layer.mixer;
  const MlpSpec& mlp = layer.mlp;
  if (layer.single_norm) return "layers of one sublayer";
  if (layer.post_norm || !layer.pre_norm) return "norms after the sublayers";
  if (layer.norm.weight_plus_one) return "norms that scale by 1 + weight";
  if (layer.norm.kind == NormKind::kLayer && !layer.norm.bias) return "LayerNorm without a bias";
  switch (mixer.kind) {
    case MixerKind::kAttention:
      break;
    case MixerKind::kNone:
      return "layers without a mixer";
    case MixerKind::kLatentAttention:
      return "multi-head latent attention";
    case MixerKind::kLinearAttention:
      return "linear attention";
    case MixerKind::kMamba2:
      return "state space layers";
  }
  if (mixer.sinks) return "attention sinks";
  if (mixer.output_gate) return "gated attention output";
  if (mixer.softmax_scale != 0) return "attention scores scaled otherwise than by the root of the head size";
  switch (mlp.kind) {
    case MlpKind::kGated:
      if (mlp.activation != Activation::kSilu) return "gated MLPs with an activation other than SiLU";
      break;
    case MlpKind::kPlain:
      if (mlp.activation != Activation::kGeluTanh && mlp.activation != Activation::kGelu)
        return "plain MLPs with an activation other than GELU";
      break;
    case MlpKind::kNone:
      return "layers without an MLP";
    case MlpKind::kMoe:
      return "experts";
  }
  return "";
}

void check_model(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors) {
  const auto refuse = [&](std::string_view what, std::string_view where) {
    errors.push_back({"model", fmt::format("the engine does not run {} ({})", what, where), std::string(kDenseHint)});
  };
  if (model.logit_softcap != 0) refuse("capped logits", "head");
  if (model.embedding_scale != 1.0) refuse("scaled embeddings", "embedding");
  if (model.embedding_bias_head) refuse("heads with a bias", "head");
  if (model.final_norm.weight_plus_one) refuse("norms that scale by 1 + weight", "final norm");
  std::vector<std::string_view> reported;  // each missing operation once, at its first layer
  int64_t narrowest = 0;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const std::string_view missing = missing_operation(model.layers[i]);
    const bool seen = std::find(reported.begin(), reported.end(), missing) != reported.end();
    if (!missing.empty() && !seen) {
      refuse(missing, fmt::format("layer {}", i));
      reported.push_back(missing);
    }
    const int64_t window = model.layers[i].mixer.window;
    if (window > 0 && (narrowest == 0 || window < narrowest)) narrowest = window;
  }
  if (narrowest > 0 && narrowest < config.batch.sequence)
    errors.push_back({"batch.sequence",
                      fmt::format("the engine does not run {} tokens under an attention window of {}",
                                  config.batch.sequence, narrowest),
                      fmt::format("use sequence = {}", narrowest)});
}

void check_layout(const RunConfig& config, std::vector<Error>& errors) {
  const ParallelConfig& parallel = config.parallel;
  const std::pair<const char*, int> degrees[] = {{"ep", parallel.ep}, {"etp", parallel.etp}};
  for (const auto& [name, degree] : degrees)
    if (degree > 1)
      errors.push_back({fmt::format("parallel.{}", name), fmt::format("the engine does not run {} = {}", name, degree),
                        fmt::format("use {} = 1: dp with zero = 0 to 3, tp with or without sp, cp and pp run", name)});
  const int64_t ranks = int64_t{parallel.dp} * parallel.tp * parallel.cp * parallel.pp;
  if (ranks > kMaxLocalRanks) {
    const int64_t dp = div_floor(kMaxLocalRanks, div_exact(ranks, int64_t{parallel.dp}));
    errors.push_back(
        {"parallel.dp", fmt::format("{} ranks are too many threads for one process", ranks),
         dp > 0 ? fmt::format("use dp = {}", dp) : fmt::format("use dp x tp x cp x pp = {} or fewer", kMaxLocalRanks)});
  }
}

// The engine reduces the gradients it has; a copy in another type for the wire is only planned.
void check_reduce(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors) {
  RunConfig automatic = config;
  automatic.precision.reduce.reset();
  const Result<ResolvedConfig> resolved = resolve(automatic, model);
  if (!config.precision.reduce || !resolved.ok() || resolved->reduce == *config.precision.reduce) return;
  errors.push_back({"precision.reduce",
                    fmt::format("the engine does not run {} on the wire for gradients in {}",
                                to_string(*config.precision.reduce), to_string(resolved->reduce)),
                    "use reduce = auto"});
}

void check_settings(const RunConfig& config, std::vector<Error>& errors) {
  const auto refuse = [&](std::string_view key, std::string_view value, std::string_view hint) {
    errors.push_back({std::string(key), fmt::format("the engine does not run {}", value), fmt::format("use {}", hint)});
  };
  const PrecisionConfig& precision = config.precision;
  if (precision.compute != ComputeKind::kFp32 && precision.params == DType::kFloat32)
    refuse("precision.params", fmt::format("fp32 under {} compute", to_string(precision.compute)), "params = auto");
  if (precision.compute == ComputeKind::kFp16 && precision.master == MasterKind::kNone)
    refuse("precision.master", "fp16 weights without a master copy", "master = fp32, or compute = bf16");
  // An fp32 number that keeps a gradient of 1 above the smallest fp16.
  if (precision.compute == ComputeKind::kFp16 && !(precision.loss_scale >= 0x1p-24 && precision.loss_scale <= 0x1p127))
    refuse("precision.loss_scale", fmt::format("a loss scale of {:g}", precision.loss_scale), "loss_scale = 65536");
  if (config.comm.backend != CommBackend::kLocal)
    refuse("comm.backend", to_string(config.comm.backend), "backend = local");
  if (config.checkpoint.asynchronous) refuse("checkpoint.asynchronous", "an asynchronous save", "asynchronous = false");
}

}  // namespace

std::vector<Error> validate_engine(const ModelSpec& model, const RunConfig& config) {
  std::vector<Error> errors;
  check_model(model, config, errors);
  check_layout(config, errors);
  check_settings(config, errors);
  check_reduce(model, config, errors);
  return errors;
}

}  // namespace fivefold
