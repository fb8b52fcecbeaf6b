// TokenDecoder: token strings back to text. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/json_fields.h"

namespace fivefold {

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  // The strings whose concatenation is the text.
  virtual std::vector<std::string> apply(std::vector<std::string> tokens) const = 0;
  virtual double growth() const = 0;  // data/growth.h
};

// Errors: unknown type (hint: the known ones), missing or wrong fields.
Result<std::unique_ptr<TokenDecoder>> parse_token_decoder(const nlohmann::json& json, const std::string& where,
                                                          int nesting = 0);

}  // namespace fivefold
