#include "spec/hardware_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "spec/toml_number.h"

namespace fivefold {
namespace {

constexpr double kMaxNumber = 1e18;

}  // namespace

const std::vector<std::pair<std::string_view, Provenance>>& provenance_names() {
  static const std::vector<std::pair<std::string_view, Provenance>> names = {{"derived", Provenance::kDerived},
                                                                             {"measured", Provenance::kMeasured},
                                                                             {"published", Provenance::kPublished},
                                                                             {"assumed", Provenance::kAssumed}};
  return names;
}

HardwareReader::HardwareReader(const toml::table& table, std::string where, std::string prefix)
    : table_(&table),
      where_(std::move(where)),
      prefix_(std::move(prefix)),
      error_(std::make_shared<std::optional<Error>>()) {}

const toml::node* HardwareReader::find(const std::string& key) {
  asked_.push_back(key);
  return table_->get(key);
}

bool HardwareReader::has(const std::string& key) { return find(key) != nullptr; }

void HardwareReader::fail(const std::string& key, std::string problem, std::string hint) {
  if (ok()) error_->emplace(Error{where_ + ": " + prefix_ + key, std::move(problem), std::move(hint)});
}

std::string HardwareReader::text(const std::string& key, const std::string& fallback) {
  const toml::node* node = find(key);
  if (!node) return fallback;
  if (const auto* value = node->as_string()) return value->get();
  fail(key, "expected a string");
  return fallback;
}

double HardwareReader::checked_number(const std::string& key, const toml::node& node) {
  if (!node.is_number()) {
    fail(key, "expected a number");
    return 1.0;
  }
  const double x = toml_number(node);
  if (x > 0.0 && x <= kMaxNumber) return x;
  if (x > kMaxNumber)
    fail(key, fmt::format("{} is out of range", x), fmt::format("at most {}", kMaxNumber));
  else
    fail(key, fmt::format("{} is not a positive number", x));
  return 1.0;
}

double HardwareReader::required_number(const std::string& key) {
  if (const toml::node* node = find(key)) return checked_number(key, *node);
  fail(key, "missing");
  return 1.0;
}

double HardwareReader::number(const std::string& key, double fallback) {
  const toml::node* node = find(key);
  return node ? checked_number(key, *node) : fallback;
}

int64_t HardwareReader::count(const std::string& key, int64_t fallback, int64_t most) {
  const toml::node* node = find(key);
  if (!node) return fallback;
  if (const auto* value = node->as_integer()) {
    if (value->get() > 0 && value->get() <= most) return value->get();
    if (value->get() > most)
      fail(key, fmt::format("{} is out of range", value->get()), fmt::format("at most {}", most));
    else
      fail(key, fmt::format("{} is not positive", value->get()));
  } else {
    fail(key, "expected a whole number");
  }
  return fallback;
}

int64_t HardwareReader::required_count(const std::string& key) {
  if (!has(key)) fail(key, "missing");
  return count(key, 1);
}

Figure HardwareReader::figure(const std::string& key) {
  Figure figure;
  const toml::node* node = find(key);
  if (!node) return figure;
  if (!node->is_table()) {
    fail(key, "expected { value = ..., kind = \"...\", source = \"...\" }");
    return figure;
  }
  HardwareReader fields = table(key);
  figure.value = fields.required_number("value");
  figure.kind = fields.name("kind", provenance_names());
  figure.source = fields.text("source", "");
  if (figure.source.empty()) fields.fail("source", "missing", "say where the number comes from");
  fields.finish();
  return figure;
}

Figure HardwareReader::required_figure(const std::string& key) {
  if (!has(key)) fail(key, "missing");
  return figure(key);
}

HardwareReader HardwareReader::table(const std::string& key) {
  static const toml::table kEmpty;
  const toml::node* node = find(key);
  if (node && !node->is_table()) fail(key, "expected a table");
  HardwareReader nested(node && node->is_table() ? *node->as_table() : kEmpty, where_, prefix_ + key + ".");
  nested.error_ = error_;
  return nested;
}

std::vector<HardwareReader> HardwareReader::tables(const std::string& key) {
  std::vector<HardwareReader> readers;
  const toml::node* node = find(key);
  if (!node) return readers;
  const toml::array* array = node->as_array();
  if (!array) {
    fail(key, "expected a list of tables");
    return readers;
  }
  for (size_t i = 0; i < array->size(); ++i) {
    const toml::table* item = array->get(i)->as_table();
    if (!item) {
      fail(key, "expected a list of tables");
      return {};
    }
    readers.emplace_back(*item, where_, fmt::format("{}{}[{}].", prefix_, key, i));
    readers.back().error_ = error_;
  }
  return readers;
}

void HardwareReader::finish() {
  std::sort(asked_.begin(), asked_.end());
  asked_.erase(std::unique(asked_.begin(), asked_.end()), asked_.end());
  for (const auto& [key, node] : *table_) {
    const std::string name(key.str());
    if (!std::binary_search(asked_.begin(), asked_.end(), name)) fail(name, "unknown key", name_hint(name, asked_));
  }
}

}  // namespace fivefold
