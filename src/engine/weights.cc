#include "engine/weights.h"

#include <algorithm>
#include <cstring>

#include "base/integer.h"
#include "base/text.h"
#include "spec/hub_layout.h"
#include "spec/names.h"
#include "store/peft_method.h"

namespace fivefold {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> dims;
  for (const int64_t dim : shape) dims.push_back(std::to_string(dim));
  return "[" + join(dims, ", ") + "]";
}

// `tensor` when it has the part's shape and a floating-point type.
Result<HubTensor> checked(const HubTensor& tensor, const ParameterEntry& entry, const HubPart& part,
                          const std::string& where) {
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

Result<HubTensor> find_tensor(const HubFolder& folder, const ParameterEntry& entry, const HubPart& part) {
  for (const std::string& name : hub_name_variants(part.name)) {
    if (!folder.contains(name)) continue;
    FIVEFOLD_ASSIGN(const HubTensor tensor, folder.tensor(name));
    return checked(tensor, entry, part, folder.path().string() + " (" + name + ")");
  }
  return folder.tensor(part.name).error();
}

Result<HubTensor> find_tensor(const PeftFolder& folder, const ParameterEntry& entry, const HubPart& part) {
  FIVEFOLD_ASSIGN(const HubTensor tensor, folder.tensor(part.name));
  return checked(tensor, entry, part, folder.path().string() + " (" + part.name + ")");
}

// Reads the part's elements as fp32 into its rows of the packed matrix: in portions of rows, so that a large embedding
// needs no second copy beside it, unless its columns are what the disk has as rows.
void copy_part(const HubTensor& tensor, const ParameterEntry& entry, const HubPart& part, std::span<float> packed) {
  constexpr int64_t kPortion = int64_t{1} << 18;  // elements
  const AccountScope scope(Account::kOther);
  const int64_t cols = entry.whole_cols(),
                rows = part.transposed ? part.rows : std::max<int64_t>(1, div_floor(kPortion, cols));
  for (int64_t row = 0; row < part.rows; row += rows) {
    HubPart portion = part;
    portion.row_begin += row;
    portion.rows = std::min(rows, part.rows - row);
    // The file need not align its tensors: copy the bytes first.
    const at::Tensor raw = at::empty({portion.rows * cols}, scalar_type(tensor.info.dtype));
    std::memcpy(raw.data_ptr(), tensor.bytes.data() + row * cols * raw.element_size(), raw.nbytes());
    const at::Tensor values = raw.to(at::kFloat);
    place_hub_values(entry, portion, {elements<float>(values), static_cast<size_t>(values.numel())}, packed);
  }
}

// All parts of a parameter, from a source of tensors.
template <class Source>
Status read_parameter(const Source& source, const ParameterEntry& entry, std::span<float> packed) {
  for (const HubPart& part : entry.parts) {
    FIVEFOLD_ASSIGN(const HubTensor tensor, find_tensor(source, entry, part));
    copy_part(tensor, entry, part, packed);
  }
  return Ok{};
}

// Fills the parameters that `wanted` names from a source of tensors.
template <class Source, class Wanted>
Status load_parameters(const Source& source, const Inventory& inventory, TrainingExecutor& executor, Wanted wanted) {
  std::vector<float> packed;
  for (int unit = 0; unit < inventory.num_units(); ++unit) {
    if (!executor.holds(unit)) continue;
    const std::vector<ParameterEntry>& parameters = inventory.units[static_cast<size_t>(unit)].parameters;
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (!wanted(parameters[p])) continue;
      packed.resize(static_cast<size_t>(parameters[p].whole_numel()));
      FIVEFOLD_TRY(read_parameter(source, parameters[p], packed));
      executor.set_parameter(unit, static_cast<int>(p), packed);
      source.release_pages();
    }
  }
  return Ok{};
}

template <class Source, class Wanted>
Status check_parameters(const Source& source, const Inventory& inventory, Wanted wanted) {
  for (const Unit& unit : inventory.units)
    for (const ParameterEntry& entry : unit.parameters)
      for (const HubPart& part : entry.parts)
        if (wanted(entry)) FIVEFOLD_TRY(find_tensor(source, entry, part));
  return Ok{};
}

bool of_model(const ParameterEntry& entry) { return !entry.adapter; }
bool of_adapter(const ParameterEntry& entry) { return entry.adapter; }

}  // namespace

Status check_hub_weights(const HubFolder& folder, const Inventory& inventory) {
  return check_parameters(folder, inventory, of_model);
}

Status read_hub_parameter(const HubFolder& folder, const ParameterEntry& entry, std::span<float> packed) {
  return read_parameter(folder, entry, packed);
}

Status load_hub_weights(const HubFolder& folder, const Inventory& inventory, TrainingExecutor& executor) {
  return load_parameters(folder, inventory, executor, of_model);
}

Result<PeftFolder> open_adapter(const MethodConfig& method, const Inventory& inventory) {
  FIVEFOLD_ASSIGN(PeftFolder folder, PeftFolder::open(method.adapter));
  FIVEFOLD_TRY(check_peft_method(folder, method, inventory));
  return folder;
}

Status load_adapter_weights(const PeftFolder& folder, const Inventory& inventory, TrainingExecutor& executor) {
  return load_parameters(folder, inventory, executor, of_adapter);
}

std::vector<NamedTensor> to_hub_tensors(const ParameterEntry& entry, std::span<const float> values) {
  std::vector<NamedTensor> tensors;
  for (const HubPart& part : entry.parts)
    tensors.push_back({part.name, hub_shape(entry, part), hub_values(entry, part, values)});
  return tensors;
}

}  // namespace fivefold
