#include "planner/explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/integer.h"
#include "base/text.h"
#include "planner/kernel_scratch.h"
#include "planner/rank_view.h"
#include "spec/rank_grid.h"

namespace fivefold {
namespace {

int64_t padded_elements(const Inventory& inventory, int64_t shards) {
  int64_t elements = 0;
  for (const Unit& unit : inventory.units) elements += unit.padded_numel(shards);
  return elements;
}

// Ranges [begin, end) of equal layers.
std::vector<std::pair<int, int>> equal_layers(const ModelSpec& model) {
  std::vector<std::pair<int, int>> ranges;
  const int layers = static_cast<int>(model.layers.size());
  for (int begin = 0, end = 1; begin < layers; begin = end, ++end) {
    while (end < layers && model.layers[static_cast<size_t>(end)] == model.layers[static_cast<size_t>(begin)]) ++end;
    ranges.emplace_back(begin, end);
  }
  return ranges;
}

std::string range_name(std::pair<int, int> range) {
  return range.second - range.first == 1 ? fmt::format("layers.{}", range.first)
                                         : fmt::format("layers.{}-{}", range.first, range.second - 1);
}

class MemoryLines {
 public:
  MemoryLines(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config)
      : part_(model, inventory, config, 0),
        model_(part_.model()),
        inventory_(part_.inventory()),
        config_(config),
        policy_(sharding_policy(config)),
        shape_(tape_shape(config)) {}

  std::vector<MemoryLine> lines() {
    add_states();
    add_data();
    add_activations();
    add_transients();
    return std::move(lines_);
  }

 private:
  void add(std::string name, Account account, int64_t bytes, std::string formula) {
    lines_.push_back({std::move(name), account, bytes, std::move(formula)});
  }

  void add_states() {
    const int64_t elements = padded_elements(inventory_, policy_.shards);
    struct Sum {
      int64_t bytes = 0, elements = 0;
      DType dtype = DType::kFloat32;
    };
    // By account; a moment in 8 bits is several buffers of a unit, one after the other.
    std::map<std::pair<Account, int>, Sum> sums;
    for (const Unit& unit : inventory_.units) {
      std::map<Account, int> buffers_of;
      for (const StateBuffer& buffer : state_buffers(unit, policy_, optimizer_states(config_.config.optimizer))) {
        const int place = is_8bit_moment(buffer.account) ? buffers_of[buffer.account]++ : 0;
        Sum& sum = sums[{buffer.account, place}];
        sum.bytes += buffer.bytes();
        sum.elements += buffer.elements;
        sum.dtype = buffer.dtype;
      }
    }
    if (model_.adapter) {
      sums.erase({Account::kParams, 0});
      add_adapted_params();
    }
    for (const auto& [key, sum] : sums) {
      const auto [account, place] = key;
      if (is_8bit_moment(account)) {
        if (place == 0) add_8bit_moment(account, sum.elements, sums.at({account, 2}).elements);
        continue;
      }
      const bool sharded = sum.elements < elements;
      add(std::string(to_string(account)), account, sum.bytes,
          fmt::format("{} elements (padded){} x {} B", format_count(elements),
                      sharded ? fmt::format(" / {} shards", policy_.shards) : "", dtype_bytes(sum.dtype)));
    }
  }

  bool is_8bit_moment(Account account) const {
    return policy_.moments == OptimizerStateKind::k8Bit &&
           (account == Account::kMoment1 || account == Account::kMoment2);
  }

  void add_8bit_moment(Account account, int64_t in_8bit, int64_t in_fp32) {
    const std::string name(to_string(account));
    add(name + ": 8 bits", account, in_8bit + 4 * div_exact(in_8bit, kStateBlock),
        fmt::format("{} elements of a rank x (1 B + 4 B / {})", format_count(in_8bit), kStateBlock));
    if (in_fp32 == 0) return;
    add(name + ": fp32", account, 4 * in_fp32,
        fmt::format("{} elements of a rank x 4 B, tensors under {} elements: {}", format_count(in_fp32),
                    format_count(kLeast8BitNumel), join(tensors_in_fp32(), ", ")));
  }

  // Names of the parameters whose moments stay in fp32, layers that have the same one together.
  std::vector<std::string> tensors_in_fp32() const {
    std::vector<std::string> names;
    for (const Unit& unit : inventory_.units) {
      for (const ParameterEntry& parameter : unit.parameters) {
        if (!parameter.trained() || has_8bit_states(parameter)) continue;
        const bool of_layer = unit.kind == UnitKind::kLayer && parameter.name.starts_with(unit.name);
        std::string name = of_layer ? "layers.*" + parameter.name.substr(unit.name.size()) : parameter.name;
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
      }
    }
    return names;
  }

  // Adapters, what is frozen in the compute type, and what is frozen in 4 bits.
  void add_adapted_params() {
    int64_t trained = 0, frozen = 0, four_bit = 0, four_bit_numel = 0;
    for (const Unit& unit : inventory_.units) {
      trained += unit.padded_numel(policy_.shards);
      frozen += unit.padded_frozen_numel(policy_.shards);
      four_bit += unit.padded_four_bit_bytes(policy_.shards);
      for (const ParameterEntry& entry : unit.parameters)
        if (entry.storage == Storage::kFourBit) four_bit_numel += entry.numel();
    }
    const int64_t element = dtype_bytes(policy_.compute), shards = policy_.shards_params() ? policy_.shards : 1;
    const std::string cut = shards > 1 ? fmt::format(" / {} shards", shards) : "";
    add("params: adapters", Account::kParams, trained / shards * element,
        fmt::format("{} elements (padded){} x {} B", format_count(trained), cut, element));
    add("params: frozen", Account::kParams, frozen / shards * element,
        fmt::format("{} elements (padded){} x {} B", format_count(frozen), cut, element));
    if (four_bit_numel == 0) return;
    add("params: frozen, 4 bits", Account::kParams, four_bit / shards,
        fmt::format("{} weights{} x {:.4f} B: codes, scales{}, padding", format_count(four_bit_numel), cut,
                    static_cast<double>(four_bit) / static_cast<double>(four_bit_numel),
                    policy_.double_quantization ? " in 8 bits" : ""));
  }

  void add_data() {
    const int64_t of_microbatch = microbatch_data_bytes(config_);
    add("tokens", Account::kData, config_.num_microbatches * of_microbatch,
        fmt::format("{} microbatches x 4 B x (3 x {} tokens + {} documents + 1)", config_.num_microbatches,
                    shape_.tokens, max_documents(config_)));
  }

  void add_activations() {
    const int every = lowering_options(config_).recompute_every;
    if (every > 0) {
      const auto layers = static_cast<int64_t>(model_.layers.size());
      const int64_t segments = div_ceil(layers, every);
      add("segment inputs", Account::kActivations,
          segments * shape_.stream_tokens() * model_.hidden * dtype_bytes(shape_.compute),
          fmt::format("ceil({} layers / {}) x {} tokens x h {} x {} B", layers, every, shape_.stream_tokens(),
                      model_.hidden, dtype_bytes(shape_.compute)));
    }
    for (const auto& range : equal_layers(model_)) {
      const int64_t count =
          every > 0 ? std::min<int64_t>(every, range.second - range.first) : range.second - range.first;
      for (const SavedTensor& tensor : saved_tensors(
               unit_operations(model_, inventory_, range.first + 1, part_.split(), part_.context(), part_.dropped()),
               range_name(range), shape_.compute))
        add(tensor.name, Account::kActivations, count * saved_bytes(tensor, shape_),
            fmt::format("{} layers{} x {}{} B", count, every > 0 ? " of a segment at once" : "",
                        tensor.per_feature
                            ? std::string()
                            : fmt::format("{} tokens x ", saved_bytes(tensor, shape_) / tensor.bytes_per_token),
                        tensor.bytes_per_token));
    }
  }

  void add_transients() {
    const int64_t element = dtype_bytes(shape_.compute), chunk = std::min(shape_.loss_chunk, shape_.tokens);
    add("logits of a chunk", Account::kLogits, chunk * (model_.vocab * element + 4),
        fmt::format("{} tokens x (V {} x {} B + 4 B)", chunk, model_.vocab, element));
    int64_t largest = 0, gathered = 0;
    for (const Unit& unit : inventory_.units) {
      largest = std::max(largest, unit.padded_numel(policy_.shards));
      gathered = std::max(gathered, gathered_bytes(unit, policy_));
    }
    if (policy_.shards_params())
      add("largest gathered unit", Account::kUnshardedParams, gathered,
          model_.adapter ? std::string("adapters and frozen weights; the peak holds the units in use and the one ahead")
                         : fmt::format("{} elements x {} B; the peak holds the units in use and the one ahead",
                                       format_count(largest), element));
    if (policy_.transient_grads())
      add("largest unit gradient", Account::kUnshardedGrads, largest * element,
          fmt::format("{} elements x {} B, until it is reduced or added", format_count(largest), element));
  }

  const RankView part_;
  const ModelSpec& model_;
  const Inventory& inventory_;
  const ResolvedConfig& config_;
  ShardingPolicy policy_;
  TapeShape shape_;
  std::vector<MemoryLine> lines_;
};

}  // namespace

Explanation explain(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                    const HardwareSpec& hardware) {
  Explanation e;
  e.config = config;
  // Of the pipeline's ranks the one that needs most.
  for (const int rank : RankGrid::create(config.degrees).value().group(GroupKind::kPp, 0)) {
    Ledger ledger = predict_memory(model, inventory, config, rank);
    if (rank > 0 && ledger.peak_total <= e.ledger.peak_total) continue;
    e.ledger = std::move(ledger);
    e.rank = rank;
  }
  const OutsideTensors outside = outside_tensors(model, inventory, config, hardware);
  add_outside_tensors(e.ledger, outside);
  if (outside.scratch > 0)
    e.scratch =
        scratch_line(model, inventory, config, threads_per_rank(config, static_cast<int>(hardware.device.cores)));
  e.capacity = planned_capacity(config, hardware);
  e.traffic = predict_traffic(model, inventory, config, e.rank);
  e.cost = predict_cost(model, inventory, config, hardware);
  e.flops = step_flops(model, inventory, config);
  e.peak_flops_per_s = peak_flops_per_s(config, hardware);
  e.tokens_per_s = static_cast<double>(config.tokens_per_step) / e.cost.seconds;
  return e;
}

std::vector<SavedTensor> saved_tensors_by_range(const ModelSpec& model, const Inventory& inventory,
                                                const ResolvedConfig& config) {
  const RankView part(model, inventory, config, 0);
  std::vector<SavedTensor> saved;
  for (const auto& range : equal_layers(model))
    for (const SavedTensor& tensor : saved_tensors(unit_operations(part.model(), part.inventory(), range.first + 1,
                                                                   part.split(), part.context(), part.dropped()),
                                                   range_name(range), config.compute))
      saved.push_back(tensor);
  return saved;
}

std::vector<MemoryLine> memory_lines(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config) {
  return MemoryLines(model, inventory, config).lines();
}

std::string traffic_formula(const TrafficLine& line, const Inventory& inventory, const ResolvedConfig& config) {
  const ShardingPolicy policy = sharding_policy(config);
  const int64_t group = line.group == GroupKind::kShard ? policy.shards
                        : line.group == GroupKind::kReplicate
                            ? policy.replicas
                            : RankGrid::create(config.degrees).value().group_size(line.group);
  const bool of_tensor_group = line.group == GroupKind::kTp || line.group == GroupKind::kKvHead;
  if (of_tensor_group && line.purpose == Purpose::kGradients)
    return fmt::format("2 x ({0} - 1) / {0} of what {0} ranks share and have in parts, x {1} B", group,
                       dtype_bytes(policy.grads));
  if (of_tensor_group && line.purpose == Purpose::kLoss)
    return fmt::format("{} chunks x ({} - 1) x tokens of a chunk x {} B", line.calls, group, kLossStatisticsBytes);
  if (of_tensor_group)
    return fmt::format("{0} calls x {1}({2} - 1) / {2} x {3} tokens x h x {4} B", line.calls,
                       line.kind == CollectiveKind::kAllReduce ? "2 " : "", group, tape_shape(config).tokens,
                       dtype_bytes(policy.compute));
  if (line.purpose != Purpose::kGradients && line.purpose != Purpose::kParameters)
    return fmt::format("{0} calls x 2 x ({1} - 1) x ceil(2 / {1}) elements of 8 B", line.calls, group);
  const int64_t full = padded_elements(inventory, policy.shards);
  const bool reduces_compute = line.kind == CollectiveKind::kReduceScatter && policy.shards_grads();
  const DType dtype = line.purpose == Purpose::kParameters || reduces_compute ? policy.compute : policy.grads;
  if (line.kind == CollectiveKind::kAllReduce)
    return fmt::format("2 x ({0} - 1) / {0} of {1} elements x {2} B, units rounded up to {0} chunks", group,
                       format_count(full / policy.shards), dtype_bytes(dtype));
  return fmt::format("{0} calls over {1} units: ({2} - 1) / {2} of each unit x {3} B; all units once: {4} elements",
                     line.calls, inventory.num_units(), group, dtype_bytes(dtype), format_count(full));
}

}  // namespace fivefold
