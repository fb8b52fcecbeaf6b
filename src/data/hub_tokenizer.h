// HubTokenizer: the parts of a tokenizer.json put together. Use load_tokenizer or parse_tokenizer_json of
// data/tokenizer.h; this header exists for them alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/added_tokens.h"
#include "data/bpe.h"
#include "data/normalizer.h"
#include "data/pre_tokenizer.h"
#include "data/token_decoder.h"
#include "data/tokenizer.h"

namespace fivefold {

struct HubTokenizerParts {
  std::unique_ptr<BpeModel> model;
  std::unique_ptr<Normalizer> normalizer;       // may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // may be null: the whole text is one word
  std::unique_ptr<TokenDecoder> decoder;        // may be null: tokens are joined by spaces
  std::optional<AddedTokens> added;             // always set
  std::vector<int32_t> before, after;           // what the post-processor puts around a text
  std::optional<int32_t> eos, bos;
  uint64_t fingerprint = 0;
};

class HubTokenizer final : public Tokenizer {
 public:
  explicit HubTokenizer(HubTokenizerParts parts);

  std::vector<int32_t> encode(std::string_view text, Specials specials) const override;
  std::string decode(std::span<const int32_t> ids, Specials specials) const override;
  int32_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> eos_id() const override { return parts_.eos; }
  std::optional<int32_t> bos_id() const override { return parts_.bos; }
  std::vector<SpecialToken> special_tokens() const override;
  uint64_t fingerprint() const override { return parts_.fingerprint; }

 private:
  struct Entry {
    std::string text;
    bool special = false;
  };
  HubTokenizerParts parts_;
  std::unordered_map<int32_t, Entry> tokens_;  // by id; a file may number its tokens with holes of any size
  int32_t vocab_size_ = 0;
};

}  // namespace fivefold
