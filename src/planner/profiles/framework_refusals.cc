// Which layouts each framework has for a model.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/integer.h"
#include "planner/profiles/framework_config.h"

namespace fivefold {
namespace {

class Refusals {
 public:
  explicit Refusals(const FrameworkRun& run) : run_(run) {}

  std::vector<Error> find() {
    check_axes();
    check_pipeline();
    check_zero();
    check_method();
    for (const LayerSpec& layer : run_.model.layers) {
      const size_t before = errors_.size();
      check_layer(layer);
      if (errors_.size() > before) break;  // the other layers would say the same
    }
    return std::move(errors_);
  }

 private:
  void refuse(std::string where, std::string problem, std::string hint) {
    errors_.push_back({std::move(where), std::move(problem), std::move(hint)});
  }
  std::string_view name() const { return to_string(run_.framework); }
  bool is(Framework framework) const { return run_.framework == framework; }

  // The largest divisor of `number` that is not above `most`.
  static int64_t nearest_divisor(int64_t number, int64_t most) {
    for (int64_t d = std::min(number, most); d > 1; --d)
      if (number % d == 0) return d;
    return 1;
  }
  void divides(std::string_view key, int64_t degree, int64_t size, std::string_view noun) {
    if (degree <= 0 || size % degree == 0) return;
    refuse(fmt::format("parallel.{}", key), fmt::format("{} = {} does not divide {} {}", key, degree, size, noun),
           fmt::format("use {}", nearest_divisor(size, degree)));
  }

  void check_axes() {
    const std::pair<const char*, int64_t> axes[] = {{"tp", run_.tp}, {"pp", run_.pp}, {"cp", run_.cp}, {"ep", run_.ep}};
    for (const auto& [key, degree] : axes) {
      const bool has = is(Framework::kMegatron) || is(Framework::kFsdp2) ||
                       (is(Framework::kNanotron) && (key[0] == 't' || key[0] == 'p')) ||
                       (is(Framework::kDeepspeed) && key[0] != 'c');
      if (degree > 1 && !has)
        refuse(fmt::format("parallel.{}", key), fmt::format("{} has no {}", name(), key),
               fmt::format("use {} = 1, or another framework", key));
    }
    if (run_.sp && run_.tp == 1)
      refuse("parallel.sp", "sequence parallelism is over the ranks of tp, which is 1", "use sp = false");
    if (run_.cp > 1 && run_.sequence % (2 * run_.cp) != 0)
      refuse("parallel.cp", fmt::format("{} tokens do not divide into 2 cp = {} parts", run_.sequence, 2 * run_.cp),
             fmt::format("use a sequence of {}", round_up(run_.sequence, 2 * run_.cp)));
    if (run_.sp && run_.sequence % (run_.tp * run_.cp) != 0)
      refuse("parallel.sp", fmt::format("tp x cp = {} does not divide {} tokens", run_.tp * run_.cp, run_.sequence),
             fmt::format("use a sequence of {}", round_up(run_.sequence, run_.tp * run_.cp)));
    check_experts();
    const int64_t experts = run_.ep * run_.expert_tp, ranks = run_.dp * run_.cp * run_.tp;
    if (experts > 0 && ranks % experts != 0)
      refuse("parallel.ep", fmt::format("ep x etp = {} does not divide dp x cp x tp = {}", experts, ranks),
             fmt::format("use {}", std::gcd(experts, ranks)));
  }

  void check_experts() {
    int64_t most = 0;
    for (const LayerSpec& layer : run_.model.layers) most = std::max(most, layer.mlp.num_experts);
    if (most == 0 && run_.ep > 1)
      refuse("parallel.ep", fmt::format("{} has no experts", run_.model.name), "use ep = 1");
    const double imbalance = run_.expert_imbalance;
    if (most > 0 && (imbalance < 1 || imbalance > static_cast<double>(most)))
      refuse("framework.switches", fmt::format("expert_imbalance = {:g} of {} experts", imbalance, most),
             fmt::format("use from 1 (all alike) to {} (one has all)", most));
  }

  void check_pipeline() {
    const auto layers = static_cast<int64_t>(run_.model.layers.size());
    if (run_.vpp > 1 && run_.pp == 1) refuse("parallel.vpp", "chunks of a pipeline of one stage", "use vpp = 1");
    if (run_.vpp > 1 && !is(Framework::kMegatron) && !is(Framework::kFsdp2))
      refuse("parallel.vpp", fmt::format("{} has no interleaved schedule", name()), "use vpp = 1");
    if (run_.pp == 1) return;
    if (run_.pp * run_.vpp > layers && run_.stage_layers.empty())
      return refuse("parallel.pp", fmt::format("{} stages of {} layers", run_.pp * run_.vpp, layers),
                    fmt::format("use {}", std::max<int64_t>(1, layers / run_.vpp)));
    if (run_.stage_layers.empty() && is(Framework::kMegatron)) divides("pp", run_.pp * run_.vpp, layers, "layers");
    if (!run_.stage_layers.empty()) check_stages(layers);
    if (run_.vpp > 1 && run_.microbatches % run_.pp != 0)
      refuse(
          "parallel.vpp",
          fmt::format("the interleaved schedule needs microbatches in groups of pp = {}, there are {}", run_.pp,
                      run_.microbatches),
          fmt::format("use a global batch of {} more", (run_.pp - run_.microbatches % run_.pp) * run_.micro * run_.dp));
  }
  void check_stages(int64_t layers) {
    const int64_t sum = std::accumulate(run_.stage_layers.begin(), run_.stage_layers.end(), int64_t{0});
    const auto entries = static_cast<int64_t>(run_.stage_layers.size());
    if ((entries != run_.pp * run_.vpp && entries != run_.pp) || sum != layers)
      refuse(
          "parallel.stages",
          fmt::format("{} stages of {} layers in all; there are {} and {}", entries, sum, run_.pp * run_.vpp, layers),
          "name every stage's layers");
  }

  void check_zero() {
    const bool optimizer_alone = (is(Framework::kMegatron) && !run_.megatron.fsdp) || is(Framework::kNanotron);
    const int most = optimizer_alone ? 1 : 3;
    const int least = is(Framework::kFsdp2) ? 2 : 0;
    if (run_.zero > most)
      refuse("parallel.zero", fmt::format("{} shards the optimizer's states only", name()), "use zero = 1");
    if (run_.zero < least) refuse("parallel.zero", "fully_shard shards gradients too", "use zero = 3");
    if (is(Framework::kDeepspeed) && run_.pp > 1 && run_.zero > 1)
      refuse("parallel.zero", "DeepSpeed's pipeline takes ZeRO levels 0 and 1", "use zero = 1");
    const int64_t shards = run_.shard_size, replicas = run_.dp * run_.cp;
    if (shards > 0 && replicas % shards != 0)
      refuse("parallel.shard_size", fmt::format("{} ranks do not divide dp x cp = {}", shards, replicas),
             fmt::format("use {}", nearest_divisor(replicas, shards)));
  }

  void check_method() {
    if (!run_.trains_adapter) return;
    if (is(Framework::kNanotron) || is(Framework::kDeepspeed))
      refuse("method.kind", fmt::format("{} trains no adapters", name()),
             is(Framework::kDeepspeed) ? "use framework hf with the switch deepspeed=on" : "use framework hf");
    if (is(Framework::kMegatron) && run_.frozen != FrozenWeights::kNone && run_.frozen != FrozenWeights::kBf16)
      refuse("method.kind", "megatron has no weights of 4 bits", "use lora");
  }

  void check_layer(const LayerSpec& layer) {
    const MixerSpec& mixer = layer.mixer;
    if (mixer.kind == MixerKind::kAttention || mixer.kind == MixerKind::kLatentAttention) {
      divides("tp", run_.tp, mixer.num_heads, "query heads");
      const int64_t kv = mixer.kind == MixerKind::kAttention ? mixer.num_kv_heads : mixer.num_heads;
      if (kv > 0 && kv % run_.tp != 0 && run_.tp % kv != 0) divides("tp", run_.tp, kv, "KV heads");
    }
    const MlpSpec& mlp = layer.mlp;
    if (mlp.kind == MlpKind::kGated || mlp.kind == MlpKind::kPlain)
      divides("tp", run_.tp, mlp.ffn, "features of the MLP");
    if (mlp.kind != MlpKind::kMoe) {
      return;
    }
    divides("ep", run_.ep, mlp.num_experts, "experts");
    divides("etp", run_.expert_tp, mlp.expert_ffn, "features of an expert");
    if (is(Framework::kMegatron) && run_.tp > 1 && !run_.sp)
      refuse("parallel.sp", "Megatron-LM wants sequence parallelism beside experts where tp > 1", "use sp = true");
  }

  const FrameworkRun& run_;
  std::vector<Error> errors_;
};

}  // namespace

std::vector<Error> framework_refusals(const FrameworkRun& run) { return Refusals(run).find(); }

}  // namespace fivefold
