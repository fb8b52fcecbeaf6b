// TextStream: the text of tokens that come one after the other, in pieces that never end inside a character: bytes of
// one may be spread over up to four tokens. The pieces together are the text of all tokens. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace fivefold {

class TextStream {
 public:
  // `before` are tokens whose text has been shown already (the prompt). REQUIRES: `tokenizer` outlives the stream.
  explicit TextStream(const Tokenizer& tokenizer, std::vector<int32_t> before = {});

  // What the token completes; empty while a character is open, and for special tokens.
  std::string push(int32_t id);
  // What is left when no token follows: an open character, as the tokenizer decodes it.
  std::string finish();

 private:
  std::string take(std::string text);

  const Tokenizer& tokenizer_;
  // The last tokens whose text was shown, since a token's text may depend on what stands before it (a leading space
  // that the first word loses), and those that were not.
  std::vector<int32_t> ids_;
  size_t num_shown_ = 0;
};

}  // namespace fivefold
