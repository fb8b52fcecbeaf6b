#include "engine/weights.h"

#include <cstring>

#include "base/text.h"
#include "spec/hub_layout.h"
#include "spec/names.h"

namespace fivefold {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> dims;
  for (const int64_t dim : shape) dims.push_back(std::to_string(dim));
  return "[" + join(dims, ", ") + "]";
}

Result<HubTensor> find_tensor(const HubFolder& folder, const ParameterEntry& entry, const HubPart& part) {
  for (const std::string& name : hub_name_variants(part.name)) {
    if (!folder.contains(name)) continue;
    FIVEFOLD_ASSIGN(HubTensor tensor, folder.tensor(name));
    const std::string where = folder.path().string() + " (" + name + ")";
    const std::vector<int64_t> expected = hub_shape(entry, part);
    if (tensor.info.shape != expected)
      return Error{where, "has shape " + shape_text(tensor.info.shape) + ", the model needs " + shape_text(expected),
                   "use the config.json that belongs to these weights"};
    switch (tensor.info.dtype) {
      case DType::kFloat32:
      case DType::kFloat16:
      case DType::kBFloat16:
      case DType::kFloat64:
        return tensor;
      default:
        return Error{where, "is " + std::string(to_string(tensor.info.dtype)) + ", not a floating-point tensor",
                     "convert the weights to bf16 or fp32"};
    }
  }
  return folder.tensor(part.name).error();
}

// Reads the part's elements as fp32 into its rows of the packed matrix.
void copy_part(const HubTensor& tensor, const ParameterEntry& entry, const HubPart& part, std::span<float> packed) {
  // The file need not align its tensors: copy the bytes first.
  const AccountScope scope(Account::kOther);
  const at::Tensor raw = at::empty({part.rows * entry.whole_cols()}, scalar_type(tensor.info.dtype));
  std::memcpy(raw.data_ptr(), tensor.bytes.data(), raw.nbytes());
  const at::Tensor values = raw.to(at::kFloat);
  place_hub_values(entry, part, {elements<float>(values), static_cast<size_t>(values.numel())}, packed);
}

}  // namespace

Status check_hub_weights(const HubFolder& folder, const Inventory& inventory) {
  for (const Unit& unit : inventory.units)
    for (const ParameterEntry& entry : unit.parameters)
      for (const HubPart& part : entry.parts) FIVEFOLD_TRY(find_tensor(folder, entry, part));
  return Ok{};
}

Status load_hub_weights(const HubFolder& folder, const Inventory& inventory, TrainingExecutor& executor) {
  std::vector<float> packed;
  for (int unit = 0; unit < inventory.num_units(); ++unit) {
    if (!executor.holds(unit)) continue;
    const std::vector<ParameterEntry>& parameters = inventory.units[static_cast<size_t>(unit)].parameters;
    for (size_t p = 0; p < parameters.size(); ++p) {
      packed.resize(static_cast<size_t>(parameters[p].whole_numel()));
      for (const HubPart& part : parameters[p].parts) {
        FIVEFOLD_ASSIGN(const HubTensor tensor, find_tensor(folder, parameters[p], part));
        copy_part(tensor, parameters[p], part, packed);
      }
      executor.set_parameter(unit, static_cast<int>(p), packed);
    }
  }
  return Ok{};
}

std::vector<NamedTensor> to_hub_tensors(const ParameterEntry& entry, std::span<const float> values) {
  std::vector<NamedTensor> tensors;
  for (const HubPart& part : entry.parts)
    tensors.push_back({part.name, hub_shape(entry, part), hub_values(entry, part, values)});
  return tensors;
}

}  // namespace fivefold
