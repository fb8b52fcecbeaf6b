#include "planner/profiles/framework_space.h"

#include <algorithm>
#include <numeric>

#include "base/integer.h"
#include "planner/profiles/framework_config.h"

namespace fivefold {
namespace {

constexpr int64_t kLeastTokensOfCp = 1024, kMaxMicro = 64;
constexpr int kWidestTp = 64;

std::vector<int> divisors(int64_t number, int64_t most) {
  std::vector<int> all;
  for (int64_t d = 1; d <= std::min(number, most); ++d)
    if (number % d == 0) all.push_back(static_cast<int>(d));
  return all;
}

bool has_experts(const ModelSpec& model) {
  return std::ranges::any_of(model.layers, [](const LayerSpec& layer) { return layer.mlp.kind == MlpKind::kMoe; });
}

bool has(Framework framework, bool megatron, bool nanotron, bool fsdp2, bool deepspeed) {
  switch (framework) {
    case Framework::kMegatron:
      return megatron;
    case Framework::kNanotron:
      return nanotron;
    case Framework::kFsdp2:
      return fsdp2;
    case Framework::kDeepspeed:
      return deepspeed;
    default:
      return false;
  }
}

}  // namespace

std::vector<int64_t> stage_layers(int64_t layers, int pp, int vpp, EndsCount ends) {
  const int64_t chunks = int64_t{pp} * vpp;
  const int64_t counted = ends == EndsCount::kNothing ? 0 : ends == EndsCount::kLoss ? 1 : 2;
  const int64_t each = div_floor(layers + counted, chunks), more = (layers + counted) % chunks;
  if (counted > 0 && pp == 1) return {};
  if (ends != EndsCount::kUneven && more != 0) return {};
  if (ends == EndsCount::kUneven) {
    if (each < 1) return {};
    for (const int64_t even : {0, 1, 2})
      if ((layers + even) % chunks == 0) return {};
  }
  std::vector<int64_t> stages(static_cast<size_t>(chunks), each);
  // What is left over goes to the chunks behind the first.
  for (int64_t i = 0; i < more; ++i) ++stages[static_cast<size_t>(std::min(i + 1, chunks - 1))];
  if (counted == 2) --stages.front();
  if (counted > 0) --stages.back();
  return stages;
}

std::array<int64_t, 12> simplicity(const FrameworkLayout& l) {
  const int64_t splits = (l.tp > 1) + (l.cp > 1) + (l.pp > 1) + (l.ep > 1);
  return {splits,
          l.pp,
          l.cp,
          l.tp,
          l.ep,
          static_cast<int64_t>(l.checkpointing != Checkpointing::kNone),
          static_cast<int64_t>(l.ends),
          l.micro,
          l.vpp,
          l.etp > 1 ? 1 : 0,
          l.zero == 0 ? 1 : 0,  // sharded states are every framework's advice
          l.shard_size > 0 ? 1 : 0};
}

FrameworkSpace::FrameworkSpace(const FrameworkRun& base, const FixedKeys& fixed, const HardwareSpec& hardware,
                               int64_t gpus, int64_t global_batch, TensorReach reach)
    : base_(base),
      fixed_(fixed),
      devices_per_node_(hardware.devices_per_node),
      gpus_(gpus),
      global_(global_batch),
      widest_tp_(reach == TensorReach::kNode ? static_cast<int>(std::min<int64_t>(devices_per_node_, kWidestTp))
                                             : kWidestTp) {}

void FrameworkSpace::apply(const FrameworkLayout& layout, FrameworkRun& run) const {
  run.tp = layout.tp, run.sp = layout.sp, run.cp = layout.cp, run.pp = layout.pp, run.vpp = layout.vpp;
  run.ep = layout.ep;
  if (run.expert_tp != layout.etp || layout.ep > 1) run.expert_tp.set(layout.etp);
  run.dp = div_floor(gpus_, int64_t{layout.tp} * layout.cp * layout.pp);
  run.micro = layout.micro;
  run.microbatches = div_floor(global_, layout.micro * run.dp);
  run.zero = layout.zero, run.shard_size = layout.shard_size;
  run.checkpointing = layout.checkpointing;
  run.stage_layers.clear();
  if (layout.ends != EndsCount::kNothing)
    run.stage_layers = stage_layers(static_cast<int64_t>(run.model.layers.size()), layout.pp, layout.vpp, layout.ends);
}

std::vector<FrameworkSpace::Pipeline> FrameworkSpace::pipelines() const {
  const auto layers = static_cast<int64_t>(base_.model.layers.size());
  const bool splits = has(base_.framework, true, true, true, true);
  const bool interleaves = has(base_.framework, true, false, true, false);
  std::vector<Pipeline> all;
  for (const int pp : fixed_.pp ? std::vector{static_cast<int>(base_.pp)} : divisors(gpus_, splits ? layers : 1)) {
    for (int vpp = 1; int64_t{pp} * vpp <= layers && (vpp == 1 || (interleaves && pp > 1)); ++vpp) {
      if (fixed_.vpp && vpp != base_.vpp) continue;
      for (const EndsCount ends : {EndsCount::kNothing, EndsCount::kLoss, EndsCount::kBoth, EndsCount::kUneven}) {
        if (stage_layers(layers, pp, vpp, ends).empty()) continue;
        all.push_back({pp, vpp, ends});
      }
    }
  }
  return all;
}

std::vector<std::pair<int, int>> FrameworkSpace::expert_splits(int tp) const {
  if (!has_experts(base_.model)) return {{1, 1}};
  int64_t experts = 0;
  for (const LayerSpec& layer : base_.model.layers) experts = std::gcd(experts, layer.mlp.num_experts);
  const bool splits = has(base_.framework, true, false, true, false);
  std::vector<std::pair<int, int>> all;
  for (const int ep : fixed_.ep ? std::vector{static_cast<int>(base_.ep)} : divisors(experts, splits ? experts : 1))
    for (const int etp : splits&& tp > 1 ? std::vector{1, tp} : std::vector{1})
      if (!fixed_.etp || etp == base_.expert_tp) all.emplace_back(ep, etp);
  return all;
}

std::vector<Checkpointing> FrameworkSpace::checkpointings() const {
  if (fixed_.recompute) return {base_.checkpointing};
  // With a flash kernel nothing of the core attention is kept but its log-sum-exp.
  if (base_.framework == Framework::kMegatron && base_.attention == AttentionKernel::kUnfused)
    return {Checkpointing::kNone, Checkpointing::kCoreAttention, Checkpointing::kFull};
  if (base_.framework == Framework::kFsdp2)
    return {Checkpointing::kNone, Checkpointing::kPerOperation, Checkpointing::kFull};
  return {Checkpointing::kNone, Checkpointing::kFull};
}

std::vector<std::pair<int, int64_t>> FrameworkSpace::shardings(int tp, int64_t replicas, int pp) const {
  std::vector<int> levels;
  switch (base_.framework) {
    case Framework::kFsdp2:
      levels = {3};
      break;
    case Framework::kHf:
      levels = {0, 3};
      break;
    case Framework::kDeepspeed:
      levels = pp > 1 ? std::vector{0, 1} : std::vector{0, 1, 2, 3};
      break;
    default:
      levels = {0, 1};
  }
  std::vector<std::pair<int, int64_t>> all;
  for (const int level : fixed_.zero ? std::vector{base_.zero} : levels) {
    if (level != levels.front() && replicas == 1 && !fixed_.zero) continue;  // nothing to shard over
    if (fixed_.shard_size) {
      all.emplace_back(level, base_.shard_size);
      continue;
    }
    all.emplace_back(level, 0);
    const int64_t of_node = div_floor(devices_per_node_, tp);
    if (level == 3 && base_.framework == Framework::kFsdp2 && of_node > 1 && of_node < replicas &&
        replicas % of_node == 0)
      all.emplace_back(level, of_node);
  }
  return all;
}

std::vector<FrameworkLayout> FrameworkSpace::layouts() const {
  const bool tensor = has(base_.framework, true, true, true, true),
             context = has(base_.framework, true, false, true, false);
  std::vector<FrameworkLayout> all;
  FrameworkRun probe = base_;
  const std::vector<Pipeline> pipelines = this->pipelines();
  for (const int tp : fixed_.tp ? std::vector{static_cast<int>(base_.tp)} : divisors(gpus_, tensor ? widest_tp_ : 1))
    for (const bool sp : {false, true}) {
      // torchtitan's tensor parallelism is sequence parallel.
      if ((sp && tp == 1) || (!sp && tp > 1 && base_.framework == Framework::kFsdp2)) continue;
      if (fixed_.sp && sp != base_.sp) continue;
      for (const int cp :
           fixed_.cp ? std::vector{static_cast<int>(base_.cp)}
                     : divisors(div_floor(gpus_, tp), context ? div_floor(base_.sequence, kLeastTokensOfCp) : 1))
        for (const auto& [ep, etp] : expert_splits(tp))
          for (const Pipeline& pipeline : pipelines) {
            const int64_t model = int64_t{tp} * cp * pipeline.pp;
            if (gpus_ % model != 0) continue;
            const int64_t dp = div_exact(gpus_, model);
            if ((fixed_.dp && dp != base_.dp) || global_ % dp != 0) continue;
            FrameworkLayout layout{.tp = tp,
                                   .sp = sp,
                                   .cp = cp,
                                   .ep = ep,
                                   .etp = etp,
                                   .pp = pipeline.pp,
                                   .vpp = pipeline.vpp,
                                   .ends = pipeline.ends};
            for (const int micro : fixed_.micro ? std::vector{static_cast<int>(base_.micro)}
                                                : divisors(div_exact(global_, dp), kMaxMicro)) {
              if (div_exact(global_, dp) % micro != 0) continue;
              layout.micro = micro;
              layout.zero = fixed_.zero ? base_.zero : base_.framework == Framework::kFsdp2 ? 3 : 0;
              layout.checkpointing = Checkpointing::kNone;
              layout.shard_size = 0;
              apply(layout, probe);
              if (!framework_refusals(probe).empty()) continue;
              for (const auto& [zero, shard] : shardings(tp, dp * cp, pipeline.pp))
                for (const Checkpointing checkpointing : checkpointings()) {
                  layout.zero = zero, layout.shard_size = shard, layout.checkpointing = checkpointing;
                  all.push_back(layout);
                }
            }
          }
    }
  // What shares its times side by side.
  std::ranges::stable_sort(all, [](const FrameworkLayout& a, const FrameworkLayout& b) {
    const auto key = [](const FrameworkLayout& l) {
      return std::tuple(l.tp, l.sp, l.cp, l.ep, l.etp, l.micro, l.checkpointing, l.pp > 1);
    };
    return key(a) < key(b);
  });
  return all;
}

}  // namespace fivefold
