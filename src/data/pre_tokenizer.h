// PreTokenizer: cuts a normalized text into the words that BPE works on. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/json_fields.h"

namespace fivefold {

struct Piece {
  std::string text;
  bool at_start = false;  // begins where the whole input begins (Metaspace asks)
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // REQUIRES: well-formed UTF-8. No piece of the result is empty.
  virtual std::vector<Piece> apply(std::vector<Piece> pieces) const = 0;
  virtual double growth() const = 0;  // data/growth.h
};

// Errors: unknown type (hint: the known ones), missing or wrong fields.
Result<std::unique_ptr<PreTokenizer>> parse_pre_tokenizer(const nlohmann::json& json, const std::string& where,
                                                          int nesting = 0);

// Metaspace's rule for the replacement character before a text; "add_prefix_space" in older files.
enum class PrependScheme : uint8_t { kAlways, kFirst, kNever };
struct MetaspaceOptions {
  std::string replacement;  // one character
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;
};
// Shared by the pre-tokenizer and the decoder of that name.
Result<MetaspaceOptions> parse_metaspace(const JsonFields& fields);

}  // namespace fivefold
