#include "store/peft_method.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "base/text.h"
#include "spec/hub_layout.h"

namespace fivefold {
namespace {

std::string last_name(const std::string& module) { return module.substr(module.rfind('.') + 1); }

// 8 as "8", 0.5 as "0.5".
std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  for (int digits = 6; digits < 17; ++digits) {
    char shorter[32];
    std::snprintf(shorter, sizeof shorter, "%.*g", digits, value);
    if (std::stod(shorter) == value) return shorter;
  }
  return text;
}

const char* flag(bool value) { return value ? "true" : "false"; }

// Settings of the kind of adapter, as `method` has them and as the folder does.
struct Setting {
  std::string key, folder, method;
};
std::vector<Setting> settings(const PeftConfig& config, const MethodConfig& method) {
  return {{"method.rank", std::to_string(config.rank), std::to_string(method.rank)},
          {"method.alpha", number(config.alpha), number(method.alpha)},
          {"method.rank_stabilized", flag(config.rank_stabilized), flag(method.rank_stabilized)},
          {"method.dora", flag(config.dora), flag(method.dora)}};
}

std::string targets_setting(const PeftFolder& folder) {
  std::set<std::string> names;
  for (const PeftModule& module : folder.modules()) names.insert(last_name(module.name));
  return "method.targets=" + join({names.begin(), names.end()}, ",");
}

std::string hint(const std::vector<std::string>& settings) { return "use --set " + join(settings, " --set "); }

// The tensors of the inventory's adapters: name and shape on disk.
template <class F>
void for_each_adapter_part(const Inventory& inventory, const F& f) {
  for (const Unit& unit : inventory.units)
    for (const ParameterEntry& entry : unit.parameters)
      if (entry.adapter)
        for (const HubPart& part : entry.parts) f(entry, part);
}

// Whether the model stores matrices of layers [in, out].
bool stores_transposed(const Inventory& inventory) {
  for (const Unit& unit : inventory.units)
    for (const ParameterEntry& entry : unit.parameters)
      for (const HubPart& part : entry.parts)
        if (!entry.adapter && part.transposed) return true;
  return false;
}

Status check_tensors(const PeftFolder& folder, const Inventory& inventory) {
  std::set<std::string> wanted;
  Status status = Ok{};
  for_each_adapter_part(inventory, [&](const ParameterEntry& entry, const HubPart& part) {
    wanted.insert(part.name);
    if (!status.ok()) return;
    const std::string place = folder.path().string() + " (" + part.name + ")";
    if (!folder.contains(part.name)) {
      status =
          Error{place, "is missing: the run adapts this module, the adapter does not", hint({targets_setting(folder)})};
      return;
    }
    const auto shape = [](const std::vector<int64_t>& dims) {
      std::vector<std::string> texts;
      for (const int64_t dim : dims) texts.push_back(std::to_string(dim));
      return "[" + join(texts, ", ") + "]";
    };
    const std::vector<int64_t> has = folder.tensor(part.name)->info.shape, needs = hub_shape(entry, part);
    if (has != needs)
      status = Error{place, "has shape " + shape(has) + ", the model needs " + shape(needs),
                     "the adapter belongs to another base"};
  });
  if (!status.ok()) return status;
  for (const std::string& name : folder.names())
    if (!wanted.contains(name))
      return Error{folder.path().string() + " (" + name + ")", "is of a module that the run does not adapt",
                   hint({targets_setting(folder)}) + "; if that is so already, the adapter belongs to another base"};
  return Ok{};
}

}  // namespace

std::vector<std::string> method_settings(const PeftFolder& folder) {
  std::vector<std::string> texts;
  for (const Setting& setting : settings(folder.config(), {})) texts.push_back(setting.key + "=" + setting.folder);
  texts.push_back(targets_setting(folder));
  return texts;
}

Status check_peft_method(const PeftFolder& folder, const MethodConfig& method, const Inventory& inventory) {
  std::vector<std::string> differences, matching;
  for (const Setting& setting : settings(folder.config(), method)) {
    if (setting.folder == setting.method) continue;
    differences.push_back(setting.key + " is " + setting.method + ", the adapter has " + setting.folder);
    matching.push_back(setting.key + "=" + setting.folder);
  }
  if (!differences.empty())
    return Error{"method.adapter: " + folder.path().string(), join(differences, "; "), hint(matching)};
  if (folder.config().fan_in_fan_out && !stores_transposed(inventory))
    return Error{(folder.path() / kPeftConfigFile).string() + " (fan_in_fan_out)",
                 "is true, but the model stores its matrices [out, in]", "the adapter belongs to another base (GPT-2)"};
  return check_tensors(folder, inventory);
}

PeftConfig peft_config_of(const MethodConfig& method, const Inventory& inventory, const std::string& base_model) {
  std::set<std::string> targets;
  for_each_adapter_part(inventory, [&](const ParameterEntry&, const HubPart& part) {
    if (const auto name = parse_peft_tensor_name(part.name)) targets.insert(last_name(name->module));
  });
  return {.rank = method.rank,
          .alpha = method.alpha,
          .dropout = method.dropout,
          .rank_stabilized = method.rank_stabilized,
          .dora = method.dora,
          .fan_in_fan_out = stores_transposed(inventory),
          .targets = {targets.begin(), targets.end()},
          .base_model = base_model};
}

std::vector<TensorDeclaration> peft_tensors_of(const Inventory& inventory, DType dtype) {
  std::vector<TensorDeclaration> tensors;
  for_each_adapter_part(inventory, [&](const ParameterEntry& entry, const HubPart& part) {
    tensors.push_back({part.name, dtype, hub_shape(entry, part)});
  });
  return tensors;
}

}  // namespace fivefold
