#include "record/plain_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/nesting.h"

namespace fivefold {
namespace {

using Json = nlohmann::json;

// At most kMaxJsonNesting deep.
PlainData::Node add_json(const Json& json, PlainData& data) {  // NOLINT(misc-no-recursion)
  using Kind = PlainData::Kind;
  PlainData::Value value;
  if (json.is_number_unsigned()) {
    const auto number = json.get<uint64_t>();
    value = {.kind = Kind::kInteger,
             .integer = number > static_cast<uint64_t>(INT64_MAX) ? 0 : static_cast<int64_t>(number)};
  } else if (json.is_number_integer()) {
    value = {.kind = Kind::kInteger, .integer = json.get<int64_t>()};
  } else if (json.is_boolean()) {
    value = {.kind = Kind::kInteger, .integer = json.get<bool>() ? 1 : 0};
  } else if (json.is_number_float()) {
    value = {.kind = Kind::kReal, .real = json.get<double>()};
  } else if (json.is_string()) {
    value = {.kind = Kind::kText, .text = json.get<std::string>()};
  } else if (json.is_array()) {
    value.kind = Kind::kList;
    for (const Json& element : json) value.elements.push_back(add_json(element, data));
  } else if (json.is_object()) {
    value.kind = Kind::kDictionary;
    for (const auto& [key, element] : json.items()) {
      const PlainData::Node name = data.add({.kind = Kind::kText, .text = key});
      value.entries.emplace_back(name, add_json(element, data));
    }
  }
  return data.add(std::move(value));
}

}  // namespace

int64_t PlainData::integer(Node node) const { return nodes_[node].integer; }

std::string_view PlainData::text(Node node) const { return nodes_[node].text; }

const std::vector<PlainData::Node>& PlainData::elements(Node node) const { return nodes_[node].elements; }

PlainData::Node PlainData::at(Node dictionary, std::string_view key) const {
  // The last of equal keys counts, as in Python.
  const auto& entries = nodes_[dictionary].entries;
  const auto found = std::find_if(entries.rbegin(), entries.rend(), [&](const auto& entry) {
    return nodes_[entry.first].kind == Kind::kText && nodes_[entry.first].text == key;
  });
  return found == entries.rend() ? Node{0} : found->second;
}

PlainData::Node PlainData::add(Value value) {
  nodes_.push_back(std::move(value));
  return static_cast<Node>(nodes_.size() - 1);
}

Result<PlainData> read_json_data(std::string_view text, const std::string& where) {
  FIVEFOLD_TRY(check_json_nesting(text, where));
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return Error{where, "is no JSON", ""};
  PlainData data;
  data.set_root(add_json(json, data));
  return data;
}

}  // namespace fivefold
