#include "store/peft_folder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.h"
#include "store/tensor_values.h"

namespace fivefold {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::array<std::string_view, 3> kEndings = {".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"};

std::string_view ending(PeftTensor tensor) { return kEndings[static_cast<size_t>(tensor)]; }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> dims;
  for (const int64_t dim : shape) dims.push_back(std::to_string(dim));
  return "[" + join(dims, ", ") + "]";
}

// The tensors of one module; nullptr where there is none.
using ModuleTensors = std::array<const TensorInfo*, 3>;

Error foreign_tensor(const std::string& name, const std::string& where) {
  const std::string place = where + " (" + name + ")";
  if (name.find(".lora_embedding_") != std::string::npos)
    return Error{place, "is an adapter of an embedding", "adapters of linear modules are read"};
  return Error{place, "is not a tensor of a LoRA adapter",
               "names are base_model.model.MODULE.lora_A.weight, .lora_B.weight or .lora_magnitude_vector"};
}

Result<PeftModule> check_module(const std::string& module, const ModuleTensors& tensors, const PeftConfig& config,
                                const std::string& where) {
  for (const PeftTensor kind : {PeftTensor::kA, PeftTensor::kB, PeftTensor::kMagnitude}) {
    const TensorInfo* tensor = tensors[static_cast<size_t>(kind)];
    const std::string place = where + " (" + peft_tensor_name(module, kind) + ")";
    const bool wanted = kind != PeftTensor::kMagnitude || config.dora;
    if (wanted && tensor == nullptr)
      return Error{place, "is missing",
                   kind == PeftTensor::kMagnitude ? "use_dora asks for one in each module" : "the file is incomplete"};
    if (!wanted && tensor != nullptr) return Error{place, "is a tensor of DoRA", "use_dora must be true to use it"};
    if (tensor != nullptr && !is_float_storage(tensor->dtype))
      return Error{place, "is " + std::string(to_string(tensor->dtype)) + ", not a floating-point tensor",
                   "save the adapter in fp32 or bf16"};
  }
  const auto& a = tensors[0]->shape;
  const auto& b = tensors[1]->shape;
  const std::string r = std::to_string(config.rank);
  if (a.size() != 2 || a[0] != config.rank || a[1] < 1)
    return Error{where + " (" + tensors[0]->name + ")", "has shape " + shape_text(a),
                 "with r = " + r + " it is [" + r + ", inputs of the module]"};
  if (b.size() != 2 || b[1] != config.rank || b[0] < 1)
    return Error{where + " (" + tensors[1]->name + ")", "has shape " + shape_text(b),
                 "with r = " + r + " it is [outputs of the module, " + r + "]"};
  if (config.dora && tensors[2]->shape != std::vector<int64_t>{b[0]})
    return Error{where + " (" + tensors[2]->name + ")", "has shape " + shape_text(tensors[2]->shape),
                 "lora_B says " + std::to_string(b[0]) + " outputs"};
  return PeftModule{module, b[0], a[1]};
}

// Modules and targets answer to each other.
Status check_targets(const PeftConfig& config, const std::vector<PeftModule>& modules, const std::string& where) {
  for (const PeftModule& module : modules)
    if (!config.targets_module(module.name))
      return Error{where + " (" + module.name + ")",
                   "has an adapter, but target_modules of " + std::string(kPeftConfigFile) + " does not name it",
                   "target_modules: " + join(config.targets, ", ")};
  for (const std::string& target : config.targets) {
    PeftConfig alone;
    alone.targets = {target};
    const bool found = std::ranges::any_of(modules, [&](const PeftModule& m) { return alone.targets_module(m.name); });
    if (!found)
      return Error{where, "holds no adapter for the target \"" + target + "\" of " + std::string(kPeftConfigFile),
                   "the file is incomplete, or of another adapter"};
  }
  return Ok{};
}

}  // namespace

std::string peft_tensor_name(std::string_view module, PeftTensor tensor) {
  return std::string(kPrefix) + std::string(module) + std::string(ending(tensor));
}

std::optional<PeftTensorName> parse_peft_tensor_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  for (const PeftTensor tensor : {PeftTensor::kA, PeftTensor::kB, PeftTensor::kMagnitude})
    if (name.ends_with(ending(tensor)) && name.size() > ending(tensor).size())
      return PeftTensorName{std::string(name.substr(0, name.size() - ending(tensor).size())), tensor};
  return std::nullopt;
}

Result<std::vector<PeftModule>> peft_modules(const PeftConfig& config, std::span<const TensorInfo> tensors,
                                             const std::string& where) {
  std::map<std::string, ModuleTensors> found;
  for (const TensorInfo& tensor : tensors) {
    const auto name = parse_peft_tensor_name(tensor.name);
    if (!name) return foreign_tensor(tensor.name, where);
    found.try_emplace(name->module, ModuleTensors{}).first->second[static_cast<size_t>(name->tensor)] = &tensor;
  }
  std::vector<PeftModule> modules;
  for (const auto& [module, of_module] : found) {
    FIVEFOLD_ASSIGN(PeftModule checked, check_module(module, of_module, config, where));
    modules.push_back(std::move(checked));
  }
  FIVEFOLD_TRY(check_targets(config, modules, where));
  return modules;
}

PeftFolder::PeftFolder(std::filesystem::path folder, PeftConfig config, SafetensorsFile file)
    : folder_(std::move(folder)), config_(std::move(config)), file_(std::move(file)) {
  for (const TensorInfo& tensor : file_.tensors()) names_.push_back(tensor.name);
  std::ranges::sort(names_);
}

Result<PeftFolder> PeftFolder::open(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return Error{folder.string(), "no such folder", ""};
  const std::filesystem::path config_path = folder / kPeftConfigFile, model_path = folder / kPeftModelFile;
  if (!std::filesystem::exists(config_path, ignored))
    return Error{folder.string(), "has no " + std::string(kPeftConfigFile), "a folder that PEFT saved has one"};
  if (!std::filesystem::exists(model_path, ignored)) {
    const bool pickled = std::filesystem::exists(folder / "adapter_model.bin", ignored);
    return Error{folder.string(), "has no " + std::string(kPeftModelFile),
                 pickled ? "adapter_model.bin is not read; save the adapter with safe_serialization=True"
                         : "the download is incomplete"};
  }
  FIVEFOLD_ASSIGN(const MappedFile config_file, MappedFile::open(config_path));
  FIVEFOLD_ASSIGN(PeftConfig config, parse_peft_config(config_file.text(), config_path.string()));
  FIVEFOLD_ASSIGN(SafetensorsFile file, SafetensorsFile::open(model_path));
  PeftFolder adapter(folder, std::move(config), std::move(file));
  FIVEFOLD_ASSIGN(adapter.modules_, peft_modules(adapter.config_, adapter.file_.tensors(), model_path.string()));
  return adapter;
}

Result<HubTensor> PeftFolder::tensor(std::string_view name) const {
  const TensorInfo* info = file_.find(name);
  if (info == nullptr)
    return Error{(folder_ / kPeftModelFile).string() + " (" + std::string(name) + ")", "no such tensor",
                 name_hint(name, names_)};
  return HubTensor{*info, file_.bytes(*info)};
}

bool is_peft_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder / kPeftConfigFile, ignored);
}

}  // namespace fivefold
