#include "cli/adapter_merge.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/text.h"
#include "cli/merged_matrix.h"
#include "spec/adapter.h"
#include "spec/inventory.h"
#include "spec/names.h"
#include "spec/run_config.h"
#include "store/hub_writer.h"
#include "store/tensor_values.h"

namespace fivefold {
namespace {

constexpr std::string_view kWeight = ".weight";

// A matrix of the model that an adapter may be for.
struct Target {
  int64_t out = 0, in = 0;
  bool transposed = false;  // [in, out] on disk
  bool of_layer = false;
  bool four_bit = false;  // in QLoRA's base
};

std::map<std::string, Target> targets_of(const ModelSpec& model) {
  const Inventory inventory = build_inventory(with_method(model, {.kind = MethodKind::kQlora}));
  std::map<std::string, Target> targets;
  for (const Unit& unit : inventory.units)
    for (const ParameterEntry& entry : unit.parameters)
      for (const HubPart& part : entry.parts)
        if (!entry.adapter && entry.whole_shape.size() == 2 && part.name.ends_with(kWeight))
          targets[part.name.substr(0, part.name.size() - kWeight.size())] = {
              .out = part.rows,
              .in = entry.whole_cols(),
              .transposed = part.transposed,
              .of_layer = unit.kind == UnitKind::kLayer && !entry.expert,
              .four_bit = entry.storage == Storage::kFourBit};
  return targets;
}

std::string last_name(const std::string& module) { return module.substr(module.rfind('.') + 1); }

std::string sides(int64_t out, int64_t in) { return "[" + std::to_string(out) + ", " + std::to_string(in) + "]"; }

double norm2(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

double distance2(std::span<const float> x, std::span<const float> y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(x[i]) - y[i];
    sum += d * d;
  }
  return sum;
}

// [rows, cols] -> [cols, rows].
std::vector<float> transpose(std::span<const float> values, int64_t rows, int64_t cols) {
  std::vector<float> result(values.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      result[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * cols + c)];
  return result;
}

// Whether each module of the adapter is a matrix of this model, of the same sides, and none that it targets is missing.
Status check_adapter(const AdapterValues& adapter, const std::map<std::string, Target>& targets,
                     const std::string& where) {
  std::set<std::string> modules, last_names;
  for (const PeftModule& module : adapter.modules) {
    const std::string place = where + " (" + module.name + ")";
    const auto found = targets.find(module.name);
    if (found == targets.end()) {
      std::vector<std::string> known;
      for (const auto& [name, target] : targets) known.push_back(name);
      return Error{place, "is no matrix of this model",
                   "the adapter belongs to another base; " +
                       nearest_name(module.name, known).value_or("its layers have other names")};
    }
    const Target& target = found->second;
    if (module.out != target.out || module.in != target.in)
      return Error{
          place, "is for a matrix " + sides(module.out, module.in) + ", the model has " + sides(target.out, target.in),
          "the adapter belongs to another base"};
    if (adapter.config.fan_in_fan_out && !target.transposed)
      return Error{where + " (fan_in_fan_out)", "is true, but the model stores " + module.name + " [out, in]",
                   "it belongs to models with Conv1D modules (GPT-2)"};
    modules.insert(module.name);
    last_names.insert(last_name(module.name));
  }
  const bool named = adapter.config.targets != std::vector<std::string>{"all-linear"};
  for (const auto& [name, target] : targets) {
    const bool wanted = named ? adapter.config.targets_module(name) : last_names.contains(last_name(name));
    if (target.of_layer && wanted && !modules.contains(name))
      return Error{where + " (" + name + ")", "has no adapter, though the model has this module",
                   "the adapter is incomplete, or belongs to a base with fewer layers"};
  }
  return Ok{};
}

// What is done to one tensor of the base.
struct Task {
  TensorDeclaration declared;  // as it is written
  Target target;
  const PeftModule* module = nullptr;  // whose adapter it gets
  bool through_nf4 = false;
  bool measured = false;  // its loss in 4 bits
  bool is_matrix() const { return module != nullptr || through_nf4 || measured; }
};

Status check_matrix(const HubTensor& tensor, const Target& target, const std::string& place) {
  const std::vector<int64_t> shape =
      target.transposed ? std::vector<int64_t>{target.in, target.out} : std::vector<int64_t>{target.out, target.in};
  if (tensor.info.shape != shape)
    return Error{place, "has not the shape that config.json says", "use the config.json that belongs to these weights"};
  if (!is_float_storage(tensor.info.dtype))
    return Error{place, "is " + std::string(to_string(tensor.info.dtype)) + ", not a floating-point tensor",
                 "merge into the model as it was before it was quantised"};
  return Ok{};
}

// Name on disk -> module of the model, for those that the base has.
Result<std::map<std::string, std::string>> modules_on_disk(const HubFolder& base, const AdapterValues& adapter,
                                                           const std::map<std::string, Target>& targets) {
  std::map<std::string, std::string> modules;
  std::set<std::string> found;
  for (const auto& [module, target] : targets)
    for (const std::string& name : hub_name_variants(module + std::string(kWeight)))
      if (base.contains(name) && found.insert(module).second) modules[name] = module;
  for (const PeftModule& module : adapter.modules) {
    if (found.contains(module.name)) continue;
    Error missing = base.tensor(module.name + std::string(kWeight)).error();
    missing.hint = "the adapter has this module: it belongs to another base, or to one without tied embeddings";
    return missing;
  }
  return modules;
}

Result<std::vector<Task>> plan_merge(const HubFolder& base, const std::map<std::string, Target>& targets,
                                     const AdapterValues& adapter, const MergeOptions& options) {
  FIVEFOLD_ASSIGN(const auto modules, modules_on_disk(base, adapter, targets));
  std::vector<Task> tasks;
  for (const std::string& name : base.names()) {
    FIVEFOLD_ASSIGN(const HubTensor tensor, base.tensor(name));
    Task task{.declared = tensor.info};
    if (const auto module = modules.find(name); module != modules.end()) {
      task.target = targets.at(module->second);
      const auto adapted = std::ranges::find(adapter.modules, module->second, &PeftModule::name);
      if (adapted != adapter.modules.end()) task.module = &*adapted;
      task.through_nf4 = task.target.four_bit && options.base == MergeBase::kQuantised;
      task.measured = task.target.four_bit && (options.measure_quantisation || task.through_nf4);
    }
    if (task.is_matrix()) FIVEFOLD_TRY(check_matrix(tensor, task.target, base.path().string() + " (" + name + ")"));
    if (options.dtype && is_float_storage(task.declared.dtype)) task.declared.dtype = *options.dtype;
    tasks.push_back(std::move(task));
  }
  return tasks;
}

// Squares of the report's norms.
struct Sums {
  double base = 0, change = 0, four_bit = 0, quantisation = 0, requantisation = 0;
};

// The new values of one matrix, in the disk's order.
Result<std::vector<float>> merged_values(const HubTensor& tensor, const Task& task, const AdapterValues& adapter,
                                         const MergeOptions& options, Sums& sums) {
  std::vector<float> weight = decode_values(tensor.info.dtype, tensor.bytes);
  const Target& target = task.target;
  if (target.transposed) weight = transpose(weight, target.in, target.out);
  if (task.measured) {
    std::vector<float> nf4 = through_nf4(weight, options.double_quantization);
    sums.four_bit += norm2(weight);
    sums.quantisation += distance2(nf4, weight);
    if (task.through_nf4) weight = std::move(nf4);
  }
  if (task.module != nullptr) {
    const PeftModule& module = *task.module;
    FIVEFOLD_ASSIGN(const std::vector<float> a, adapter.read(module, PeftTensor::kA));
    FIVEFOLD_ASSIGN(const std::vector<float> b, adapter.read(module, PeftTensor::kB));
    std::vector<float> magnitude;
    if (adapter.config.dora) {
      FIVEFOLD_ASSIGN(magnitude, adapter.read(module, PeftTensor::kMagnitude));
    }
    const std::vector<float> before = weight;
    merge_into(weight, a, b, magnitude, adapter.config.rank, adapter.config.scale());
    sums.base += norm2(before);
    sums.change += distance2(weight, before);
  }
  if (task.measured) sums.requantisation += distance2(through_nf4(weight, options.double_quantization), weight);
  if (target.transposed) weight = transpose(weight, target.out, target.in);
  return weight;
}

}  // namespace

AdapterValues adapter_values(const PeftFolder& folder) {
  return {folder.config(), folder.modules(),
          [&folder](const PeftModule& module, PeftTensor kind) -> Result<std::vector<float>> {
            FIVEFOLD_ASSIGN(const HubTensor tensor, folder.tensor(peft_tensor_name(module.name, kind)));
            return decode_values(tensor.info.dtype, tensor.bytes);
          }};
}

Result<MergeReport> write_merged_weights(const HubFolder& base, const ModelSpec& model, const AdapterValues& adapter,
                                         const std::string& where, const std::filesystem::path& to,
                                         const MergeOptions& options) {
  const std::map<std::string, Target> targets = targets_of(model);
  FIVEFOLD_TRY(check_adapter(adapter, targets, where));
  FIVEFOLD_ASSIGN(const std::vector<Task> tasks, plan_merge(base, targets, adapter, options));
  std::vector<TensorDeclaration> tensors;
  for (const Task& task : tasks) tensors.push_back(task.declared);
  HubWriter writer(to, tensors, {.max_shard_bytes = options.max_shard_bytes});
  MergeReport report;
  Sums sums;
  for (const Task& task : tasks) {
    const TensorDeclaration& declared = task.declared;
    FIVEFOLD_ASSIGN(const HubTensor tensor, base.tensor(declared.name));
    report.parameters += declared.bytes() / dtype_bytes(declared.dtype);
    ++(task.module != nullptr ? report.merged : report.copied);
    if (task.is_matrix()) {
      FIVEFOLD_ASSIGN(const std::vector<float> values, merged_values(tensor, task, adapter, options, sums));
      writer.write(declared.name, encode_values(values, declared.dtype));
    } else if (declared.dtype == tensor.info.dtype) {
      writer.write(declared.name, tensor.bytes);
    } else {
      writer.write(declared.name, encode_values(decode_values(tensor.info.dtype, tensor.bytes), declared.dtype));
    }
  }
  writer.finish();
  report.base_norm = std::sqrt(sums.base);
  report.change_norm = std::sqrt(sums.change);
  report.four_bit_norm = std::sqrt(sums.four_bit);
  report.quantisation_error = std::sqrt(sums.quantisation);
  report.requantisation_error = std::sqrt(sums.requantisation);
  return report;
}

}  // namespace fivefold
