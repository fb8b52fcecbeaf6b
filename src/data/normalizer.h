// Normalizer: what a tokenizer.json does to a text before cutting it. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "data/json_fields.h"

namespace fivefold {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // REQUIRES: well-formed UTF-8.
  virtual std::string apply(std::string text) const = 0;
  virtual double growth() const = 0;  // data/growth.h
};

// Errors: unknown type (hint: the known ones), missing or wrong fields.
Result<std::unique_ptr<Normalizer>> parse_normalizer(const nlohmann::json& json, const std::string& where,
                                                     int nesting = 0);

}  // namespace fivefold
