// A low-rank adapter as PEFT saves it: adapter_config.json beside adapter_model.safetensors. Of a module
// "model.layers.0.self_attn.q_proj" with weight [out, in] the file holds
//   base_model.model.MODULE.lora_A.weight [r, in], base_model.model.MODULE.lora_B.weight [out, r],
//   base_model.model.MODULE.lora_magnitude_vector [out] (DoRA alone).
// Whole or refused: an open folder has all tensors of each of its modules, each of the shape that the others and the
// configuration ask for, and nothing else. What is read and written: docs/formats/peft.md.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/hub_folder.h"
#include "store/peft_config.h"
#include "store/safetensors.h"

namespace fivefold {

inline constexpr std::string_view kPeftConfigFile = "adapter_config.json";
inline constexpr std::string_view kPeftModelFile = "adapter_model.safetensors";

enum class PeftTensor : uint8_t { kA, kB, kMagnitude };

// "base_model.model.MODULE.lora_A.weight" and so on, and the other way round; nothing for any other name.
std::string peft_tensor_name(std::string_view module, PeftTensor tensor);
struct PeftTensorName {
  std::string module;
  PeftTensor tensor = PeftTensor::kA;
};
std::optional<PeftTensorName> parse_peft_tensor_name(std::string_view name);

// A module that has an adapter, and the sides of its weight.
struct PeftModule {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  int64_t out = 0, in = 0;
};

// What the tensors of an adapter are, from their names and shapes: its modules, sorted by name.
// Errors name `where` and the tensor: a name that no adapter of a linear module has; A without B, or DoRA's magnitude
// missing or not asked for; shapes that contradict one another or the rank; no floating-point type; a module that
// `targets` does not name, or a target that no module answers to.
Result<std::vector<PeftModule>> peft_modules(const PeftConfig& config, std::span<const TensorInfo> tensors,
                                             const std::string& where);

// Movable; safe to read from several threads.
class PeftFolder {
 public:
  // Errors: a file is missing or damaged, and those of parse_peft_config and peft_modules.
  static Result<PeftFolder> open(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return folder_; }
  void release_pages() const { file_.release_pages(); }  // MappedFile's
  const PeftConfig& config() const { return config_; }
  const std::vector<PeftModule>& modules() const { return modules_; }
  const std::map<std::string, std::string>& metadata() const { return file_.metadata(); }

  // Names of tensors, sorted.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const { return file_.find(name) != nullptr; }
  // Errors: no such tensor; the hint has the nearest name.
  Result<HubTensor> tensor(std::string_view name) const;

 private:
  PeftFolder(std::filesystem::path folder, PeftConfig config, SafetensorsFile file);

  std::filesystem::path folder_;
  PeftConfig config_;
  SafetensorsFile file_;
  std::vector<PeftModule> modules_;
  std::vector<std::string> names_;
};

// Whether the folder is one that PEFT saved, going by its files alone.
bool is_peft_folder(const std::filesystem::path& folder);

}  // namespace fivefold
