#include "cli/reference.h"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/nesting.h"
#include "store/safetensors.h"

namespace fivefold {
namespace {

using Json = nlohmann::json;

Result<Json> read_json(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return Error{path.string(), "cannot be read", "a reference folder holds config.json, batch.json, expected.json"};
  std::stringstream text;
  text << file.rdbuf();
  FIVEFOLD_TRY(check_json_nesting(text.str(), path.string()));
  Json json = Json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) return Error{path.string(), "is not a JSON object", ""};
  return json;
}

bool is_integer_in(const Json& value, int64_t low, int64_t high) {
  if (!value.is_number_integer()) return false;
  const bool beyond = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(high);
  return !beyond && value.get<int64_t>() >= low && value.get<int64_t>() <= high;
}

// A rectangular array of integers in [low, high]: at least one row, and one column. REQUIRES: high >= 0.
Result<std::vector<std::vector<int32_t>>> read_rows(const Json& json, const char* key, const std::string& where,
                                                    int64_t low, int64_t high) {
  const std::string place = where + ": " + key;
  if (!json.contains(key) || !json[key].is_array() || json[key].empty())
    return Error{place, "is not a list of rows", ""};
  std::vector<std::vector<int32_t>> rows;
  for (const Json& row : json[key]) {
    if (!row.is_array()) return Error{place, "has a row that is not a list", ""};
    std::vector<int32_t> values;
    for (const Json& value : row) {
      if (!is_integer_in(value, low, high))
        return Error{place, "has the entry " + value.dump(),
                     "integers from " + std::to_string(low) + " to " + std::to_string(high)};
      values.push_back(value.get<int32_t>());
    }
    if (values.empty()) return Error{place, "has an empty row", ""};
    if (!rows.empty() && values.size() != rows[0].size()) return Error{place, "has rows of different lengths", ""};
    rows.push_back(std::move(values));
  }
  return rows;
}

Result<double> read_number(const Json& json, const char* key, const std::string& where) {
  if (!json.contains(key) || !json[key].is_number()) return Error{where + ": " + key, "is missing or not a number", ""};
  return json[key].get<double>();
}

void append(std::vector<int32_t>& to, const std::vector<std::vector<int32_t>>& rows) {
  for (const auto& row : rows) to.insert(to.end(), row.begin(), row.end());
}

// Targets from labels that are not shifted: position t predicts label t + 1.
std::vector<std::vector<int32_t>> shifted(std::vector<std::vector<int32_t>> labels) {
  for (auto& row : labels) {
    row.erase(row.begin());
    row.push_back(-100);
  }
  return labels;
}

Status read_batch(const std::filesystem::path& path, Reference& reference) {
  FIVEFOLD_ASSIGN(const Json json, read_json(path));
  const std::string where = path.string();
  const int64_t last = reference.model.vocab - 1;
  FIVEFOLD_ASSIGN(const auto ids, read_rows(json, "input_ids", where, 0, last));
  std::vector<std::vector<int32_t>> targets;
  if (json.contains("targets")) {
    FIVEFOLD_ASSIGN(targets, read_rows(json, "targets", where, -100, last));
  } else {
    FIVEFOLD_ASSIGN(auto labels, read_rows(json, "labels", where, -100, last));
    targets = shifted(std::move(labels));
  }
  GlobalBatch& batch = reference.batch;
  batch.rows = static_cast<int64_t>(ids.size());
  batch.sequence = static_cast<int64_t>(ids[0].size());
  if (targets.size() != ids.size() || targets[0].size() != ids[0].size())
    return Error{where, "has targets of another shape than input_ids", ""};
  append(batch.input_ids, ids);
  append(batch.targets, targets);
  if (json.contains("position_ids")) {
    FIVEFOLD_ASSIGN(const auto positions, read_rows(json, "position_ids", where, 0, batch.sequence - 1));
    if (positions.size() != ids.size() || positions[0].size() != ids[0].size())
      return Error{where, "has position_ids of another shape than input_ids", ""};
    append(batch.positions, positions);
  } else {
    for (int64_t row = 0; row < batch.rows; ++row)
      for (int32_t i = 0; i < batch.sequence; ++i) batch.positions.push_back(i);
  }
  reference.packed = json.contains("document_lengths");
  if (!reference.packed) {
    batch.document_lengths.assign(ids.size(), {static_cast<int32_t>(batch.sequence)});
    return Ok{};
  }
  if (!json["document_lengths"].is_array() || json["document_lengths"].size() != ids.size())
    return Error{where + ": document_lengths", "does not have a list for each row", ""};
  for (const Json& row : json["document_lengths"]) {
    if (!row.is_array()) return Error{where + ": document_lengths", "has a row that is not a list", ""};
    std::vector<int32_t> lengths;
    int64_t sum = 0;
    for (const Json& value : row) {
      if (!is_integer_in(value, 1, batch.sequence))
        return Error{where + ": document_lengths", "has the entry " + value.dump(), ""};
      lengths.push_back(value.get<int32_t>());
      sum += lengths.back();
    }
    if (sum != batch.sequence) return Error{where + ": document_lengths", "does not sum to the row's length", ""};
    batch.document_lengths.push_back(std::move(lengths));
  }
  return Ok{};
}

Status read_gradients(const std::filesystem::path& path, Reference& reference) {
  if (!std::filesystem::exists(path)) return Ok{};
  FIVEFOLD_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(path));
  for (const TensorInfo& info : file.tensors()) {
    if (info.dtype != DType::kFloat32) return Error{path.string() + " (" + info.name + ")", "is not fp32", ""};
    const auto bytes = file.bytes(info);
    NamedTensor tensor{info.name, info.shape, std::vector<float>(bytes.size() / sizeof(float))};
    std::memcpy(tensor.values.data(), bytes.data(), bytes.size());
    reference.gradients.emplace(info.name, std::move(tensor));
  }
  return Ok{};
}

}  // namespace

Result<Reference> read_reference(const std::filesystem::path& folder) {
  Reference reference;
  reference.folder = folder;
  FIVEFOLD_ASSIGN(reference.model, read_model_config(folder / "config.json"));
  FIVEFOLD_TRY(read_batch(folder / "batch.json", reference));
  const std::filesystem::path expected_path = folder / "expected.json";
  FIVEFOLD_ASSIGN(const Json expected, read_json(expected_path));
  FIVEFOLD_ASSIGN(reference.loss, read_number(expected, "loss", expected_path.string()));
  FIVEFOLD_ASSIGN(reference.grad_norm, read_number(expected, "grad_norm", expected_path.string()));
  if (expected.contains("grad_norms") && expected["grad_norms"].is_object())
    for (const auto& [name, norm] : expected["grad_norms"].items())
      if (norm.is_number()) reference.grad_norms[name] = norm.get<double>();
  FIVEFOLD_TRY(read_gradients(folder / "grads.safetensors", reference));
  return reference;
}

void pad_rows(GlobalBatch& batch, int64_t multiple) {
  while (batch.rows % multiple != 0) {
    for (int32_t i = 0; i < batch.sequence; ++i) {
      batch.input_ids.push_back(0);
      batch.targets.push_back(-100);
      batch.positions.push_back(i);
    }
    batch.document_lengths.push_back({static_cast<int32_t>(batch.sequence)});
    ++batch.rows;
  }
}

}  // namespace fivefold
