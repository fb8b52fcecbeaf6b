// AddedTokens: the tokens of a tokenizer.json that are found in the text before it is cut into words: special tokens
// and others that the model's merges do not reach. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "data/bpe.h"
#include "data/json_fields.h"
#include "data/normalizer.h"

namespace fivefold {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  std::string spelling;      // what is looked for and what decode writes: the content, normalized when `normalized`
  bool single_word = false;  // only between characters that are not of a word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for (normalized itself) in the normalized text, else in the text as it came
  bool special = false;      // left out by decode
};

class AddedTokens {
 public:
  AddedTokens(AddedTokens&&) = default;
  AddedTokens& operator=(AddedTokens&&) = default;

  // `list` is the file's "added_tokens", `normalizer` may be null. Errors: missing or wrong fields, an empty content,
  // an id twice, an id that another token of the model has, a content of the model with another id.
  static Result<AddedTokens> parse(const nlohmann::json& list, const BpeModel& model, const Normalizer* normalizer,
                                   const std::string& where);

  // Cuts a text into added tokens and the parts between them, leftmost first, the longest where several begin. `token`
  // gets an id, `part` a text that is not empty and whether it stands at the very start. Each part is normalized on its
  // own.
  void split(const std::string& text, const Normalizer* normalizer, const std::function<void(int32_t)>& token,
             const std::function<void(std::string, bool)>& part) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }  // by id
  const AddedToken* find(std::string_view content) const;

 private:
  // The spellings to look for, by first byte, longest first.
  using Spellings = std::vector<std::vector<const AddedToken*>>;

  explicit AddedTokens(std::vector<AddedToken> tokens);
  void split(const Spellings& spellings, std::string_view text, const std::function<void(int32_t)>& token,
             const std::function<void(std::string_view, size_t)>& part) const;

  std::vector<AddedToken> tokens_;
  Spellings as_written_, normalized_;
};

}  // namespace fivefold
