// BpeModel: byte-pair encoding of one word by a vocabulary and ranked merges. Knows nothing of how a text is cut into
// words. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "data/json_fields.h"

namespace fivefold {

class BpeModel {
 public:
  // From "model" of a tokenizer.json. Errors: see parse_tokenizer_json.
  static Result<std::unique_ptr<BpeModel>> parse(const JsonFields& model);

  // Appends the tokens of `word` (well-formed UTF-8). Characters that are neither in the vocabulary nor, with
  // byte_fallback, spelled by byte tokens become unk_token, and vanish when there is none.
  // Cost: n log n merges for n characters; short words are remembered.
  void encode(std::string_view word, std::vector<int32_t>& out) const;

  std::optional<int32_t> find(std::string_view token) const;
  const std::unordered_map<std::string, int32_t>& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    int32_t rank, result;
  };

  BpeModel() = default;
  Status parse_vocabulary(const JsonFields& model);
  Status parse_merges(const JsonFields& model);
  std::vector<int32_t> merge(std::string_view word) const;
  std::vector<int32_t> split_characters(std::string_view word) const;
  const Merge* find_merge(int32_t left, int32_t right) const;

  std::unordered_map<std::string, int32_t> vocabulary_;
  std::unordered_map<uint64_t, Merge> merges_;  // key: left id, right id
  std::vector<int32_t> byte_tokens_;            // <0x00> to <0xFF> under byte_fallback, -1 where missing; else empty
  std::optional<int32_t> unk_;
  bool fuse_unk_ = false, ignore_merges_ = false;

  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, std::vector<int32_t>> cache_;  // guarded by mutex_
};

}  // namespace fivefold
