// The run with one setting changed, predicted again.
#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

#include "base/integer.h"
#include "reconcile/doctor_parts.h"
#include "spec/run_config_io.h"

namespace fivefold {
namespace {

struct Candidate {
  std::string name;
  RunConfig config;
  LineKind against;     // what it makes smaller
  std::string changes;  // of the result
  int order = 0;        // 0: nothing else changes; 1: the result does; 2: more GPUs
};

class Candidates {
 public:
  explicit Candidates(const FrameworkPrediction& before) : before_(before), run_(before.run) {}

  std::vector<Candidate> find() {
    add_loss();
    add_activations();
    add_recompute();
    add_states();
    add_layout();
    add_results();
    add_ranks();
    return std::move(found_);
  }

 private:
  bool is(Framework framework) const { return run_.framework == framework; }

  void add(const std::string& name, LineKind against, RunConfig config, const std::string& changes = "nothing",
           int order = 0) {
    if (config != before_.config) found_.push_back({name, std::move(config), against, changes, order});
  }
  void with(const std::string& name, LineKind against, const std::function<void(RunConfig&)>& change,
            const std::string& changes = "nothing", int order = 0) {
    RunConfig config = before_.config;
    change(config);
    add(name, against, std::move(config), changes, order);
  }
  void with_switch_set(const std::string& name, LineKind against, const std::string& key, const std::string& value,
                       const std::string& changes = "nothing") {
    add(name, against, with_switch(before_.config, key, value), changes);
  }

  void add_loss() {
    if (is(Framework::kMegatron) && run_.cross_entropy != CrossEntropyKernel::kTransformerEngine)
      with_switch_set("Transformer Engine's cross-entropy", LineKind::kLogits, "cross_entropy", "te");
    if ((is(Framework::kHf) || is(Framework::kFsdp2)) && run_.cross_entropy != CrossEntropyKernel::kChunked)
      with_switch_set("fused cross-entropy in chunks (Liger)", LineKind::kLogits, "cross_entropy", "chunked");
  }

  void add_activations() {
    if (run_.attention == AttentionKernel::kUnfused)
      with_switch_set("flash attention", LineKind::kActivations, "attention", "flash", "rounding");
    if (run_.tp > 1 && !run_.sp)
      with("sequence parallelism over tp", LineKind::kActivations, [](RunConfig& c) { c.parallel.sp = true; });
    for (int64_t micro = run_.micro / 2; micro >= 1; micro /= 2)
      if (run_.micro % micro == 0)
        with("micro-batch of " + std::to_string(micro), LineKind::kActivations,
             [micro](RunConfig& c) { c.batch.micro = micro; });
    if (is(Framework::kFsdp2) && !run_.sharding.compiled)
      with_switch_set("compiled layers", LineKind::kActivations, "compiled", "on", "rounding");
    if (is(Framework::kHf) && !run_.hf.fused_norms)
      with_switch_set("fused norms (Liger, Unsloth)", LineKind::kActivations, "fused_norms", "on", "rounding");
  }

  void add_recompute() {
    if (run_.checkpointing == Checkpointing::kNone && !is(Framework::kHf))
      with("selective recompute", LineKind::kActivations,
           [](RunConfig& c) { c.recompute.kind = RecomputeKind::kSelective; });
    if (run_.checkpointing != Checkpointing::kFull)
      with("full recompute", LineKind::kActivations, [](RunConfig& c) { c.recompute.kind = RecomputeKind::kFull; });
  }

  void add_states() {
    for (int zero = run_.zero + 1; zero <= 3; ++zero)
      if (run_.dp * run_.cp > 1)
        with(zero == 1 ? "sharded optimizer (ZeRO-1)" : "ZeRO-" + std::to_string(zero), LineKind::kStates,
             [zero](RunConfig& c) { c.parallel.zero = zero; });
    if (run_.shard_size > 0)
      with("shards over all replicas", LineKind::kStates, [](RunConfig& c) { c.parallel.shard_size = 0; });
    if (run_.optimizer_state_bits == 32 && !run_.trains_adapter)
      with(
          "8-bit optimizer states", LineKind::kStates,
          [](RunConfig& c) { c.precision.optimizer_state = OptimizerStateKind::k8Bit; }, "rounding");
    if (is(Framework::kMegatron) && run_.gradient_dtype == DType::kFloat32)
      with(
          "gradients in bf16", LineKind::kStates, [](RunConfig& c) { c.precision.grads = DType::kBFloat16; },
          "rounding");
    if (!run_.optimizer_on_host && !run_.trains_adapter)
      with_switch_set("optimizer states in host memory", LineKind::kStates, "optimizer_on_host", "on");
  }

  // Over the same GPUs, replicas given up.
  void add_layout() {
    const auto axis = [&](const char* name, int ParallelConfig::* degree, LineKind against) {
      for (const int factor : {2, 4}) {
        if (run_.dp % factor != 0) return;
        with(std::string(name) + " = " + std::to_string(before_.config.parallel.*degree * factor) + ", same GPUs",
             against, [&](RunConfig& c) {
               c.parallel.*degree *= factor;
               c.parallel.dp /= factor;
               if (degree == &ParallelConfig::tp) c.parallel.sp = true;
               if (c.parallel.shard_size > c.parallel.dp * c.parallel.cp) c.parallel.shard_size = 0;
             });
      }
    };
    axis("cp", &ParallelConfig::cp, LineKind::kLogits);
    if (2 * run_.tp <= before_.hardware.devices_per_node) axis("tp", &ParallelConfig::tp, LineKind::kActivations);
    axis("pp", &ParallelConfig::pp, LineKind::kStates);
  }

  void add_results() {
    if (!run_.trains_adapter && (is(Framework::kHf) || is(Framework::kFsdp2))) {
      with("LoRA", LineKind::kStates, [](RunConfig& c) { c.method.kind = MethodKind::kLora; }, "what is trained", 1);
      with(
          "QLoRA", LineKind::kStates, [](RunConfig& c) { c.method.kind = MethodKind::kQlora; },
          "what is trained, rounding", 1);
    }
    if (run_.trains_adapter && before_.config.method.kind == MethodKind::kLora && is(Framework::kHf))
      with("QLoRA", LineKind::kStates, [](RunConfig& c) { c.method.kind = MethodKind::kQlora; }, "rounding", 1);
    if (run_.sequence >= 2048)
      with(
          "sequences of " + std::to_string(run_.sequence / 2), LineKind::kActivations,
          [](RunConfig& c) { c.batch.sequence /= 2; }, "what a sequence sees", 1);
  }

  void add_ranks() {
    with(
        "twice the GPUs", LineKind::kStates,
        [](RunConfig& c) {
          c.parallel.dp *= 2;
          c.batch.global *= 2;
        },
        "batch, GPUs", 2);
  }

  const FrameworkPrediction& before_;
  const FrameworkRun& run_;
  std::vector<Candidate> found_;
};

// Where a framework has no axis for the sequence, what one would save: the memory of half of it.
std::optional<FrameworkRemedy> split_sequence(const FrameworkPrediction& before) {
  if (before.run.framework != Framework::kHf && before.run.framework != Framework::kDeepspeed) return std::nullopt;
  if (before.run.sequence < 8192) return std::nullopt;
  RunConfig config = before.config;
  config.batch.sequence /= 2;
  const auto half = changed(before, config);
  if (!half) return std::nullopt;
  return FrameworkRemedy{.name = "each sequence over 2 GPUs (cp, Ulysses)",
                         .config = {},
                         .settings = {},
                         .changes = "GPUs",
                         .need = half->need,
                         .fits = half->fits(),
                         .speed = {}};
}

// A setting replaces what an earlier remedy made of the same key; switches are set one by one.
RunConfig with_remedy(const RunConfig& config, const FrameworkRemedy& remedy) {
  std::vector<std::string> settings = remedy.settings;
  std::erase_if(settings, [](const std::string& setting) { return setting.starts_with("framework.switches="); });
  RunConfig next = load_config({.set = settings}, config).config;
  for (const std::string& setting : remedy.config.framework.switches) {
    const size_t equals = setting.find('=');
    next = with_switch(next, setting.substr(0, equals), setting.substr(equals + 1));
  }
  return next;
}

// Below this share of the peak a remedy is not worth its place.
constexpr double kWorthwhile = 0.01;
// Of the throughput: below it a remedy costs nothing.
constexpr double kFree = 0.005;

}  // namespace

std::vector<FrameworkRemedy> memory_remedies(const FrameworkPrediction& prediction) {
  std::vector<int64_t> bytes;
  const LineKind largest = largest_kind(prediction.memory, bytes);
  const auto least = static_cast<int64_t>(kWorthwhile * static_cast<double>(prediction.need));
  // By what they change of the result, whether they cost anything, and whether they are against what takes most.
  std::vector<std::pair<std::tuple<int, bool, bool>, FrameworkRemedy>> ordered;
  const auto add = [&](int order, LineKind against, FrameworkRemedy remedy) {
    if (prediction.need - remedy.need < least) return;
    const bool free = order == 0 && remedy.changes == "nothing" && remedy.speed && *remedy.speed > -kFree;
    ordered.emplace_back(std::tuple(order, !free, against != largest), std::move(remedy));
  };
  for (const Candidate& candidate : Candidates(prediction).find())
    if (auto remedy = remedy_of(prediction, candidate.config, candidate.name, candidate.changes))
      add(candidate.order, candidate.against, *std::move(remedy));
  if (auto split = split_sequence(prediction)) add(0, LineKind::kLogits, *std::move(split));
  std::ranges::stable_sort(ordered, {}, [](const auto& entry) { return entry.first; });
  std::vector<FrameworkRemedy> remedies;
  for (auto& [key, remedy] : ordered) remedies.push_back(std::move(remedy));
  return remedies;
}

std::optional<FrameworkRemedy> remedies_together(const FrameworkPrediction& prediction,
                                                 const std::vector<FrameworkRemedy>& remedies) {
  std::vector<const FrameworkRemedy*> used;
  const auto sum_of = [&](const std::vector<const FrameworkRemedy*>& parts) {
    RunConfig config = prediction.config;
    std::string name, changes;
    for (const FrameworkRemedy* part : parts) {
      config = with_remedy(config, *part);
      name += (name.empty() ? "" : " + ") + part->name;
      if (part->changes != "nothing") changes = part->changes;
    }
    return remedy_of(prediction, config, name, changes);
  };
  int64_t need = prediction.need;
  for (const FrameworkRemedy& remedy : remedies) {
    if (remedy.settings.empty()) continue;
    used.push_back(&remedy);
    const auto sum = sum_of(used);
    if (!sum || sum->need >= need) {
      used.pop_back();
      continue;
    }
    need = sum->need;
    if (sum->fits) break;
  }
  if (need > prediction.run.capacity_bytes) return std::nullopt;
  // Those without which the rest fits are left out; what costs most is tried first.
  std::vector<const FrameworkRemedy*> dearest = used;
  std::ranges::stable_sort(dearest, [](const FrameworkRemedy* a, const FrameworkRemedy* b) {
    return std::pair(a->changes != "nothing", -a->speed.value_or(0)) >
           std::pair(b->changes != "nothing", -b->speed.value_or(0));
  });
  for (const FrameworkRemedy* part : dearest) {
    std::vector<const FrameworkRemedy*> fewer = used;
    std::erase(fewer, part);
    if (const auto sum = sum_of(fewer); sum && sum->fits) used = std::move(fewer);
  }
  return sum_of(used);
}

}  // namespace fivefold
