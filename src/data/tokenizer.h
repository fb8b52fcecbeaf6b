// Tokenizer: text to token ids and back. Two kinds: "bytes" (256 byte values and <eos>) and a Hub `tokenizer.json` with
// a BPE model. Not a trainer of vocabularies, and not chat templates. Thread-safety: const functions may be called from
// several threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fivefold {

// Whether encode() adds what the tokenizer's post-processor puts around a text (Llama 3: <|begin_of_text|> before it).
enum class Specials : uint8_t { kOmit, kAdd };

struct SpecialToken {
  int32_t id = 0;
  std::string content;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Bytes that are not UTF-8 count as U+FFFD, one per maximal ill-formed part (Unicode 3.9, the rule browsers and
  // Python use); the byte tokenizer alone keeps them. Special tokens written out in the text become their ids. Throws
  // std::runtime_error when a regular expression of the file exceeds the match limits on this text.
  virtual std::vector<int32_t> encode(std::string_view text, Specials specials = Specials::kOmit) const = 0;

  // The text of `ids`. Ids without a token (holes of the vocabulary, ids >= vocab_size) give nothing. Special tokens
  // are left out under kOmit and written out under kAdd.
  virtual std::string decode(std::span<const int32_t> ids, Specials specials = Specials::kOmit) const = 0;

  // Largest id + 1. A model's vocabulary must be at least this (it may be padded beyond).
  virtual int32_t vocab_size() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;
  // By id.
  virtual std::vector<SpecialToken> special_tokens() const = 0;
  // Equal for equal tokenizers, different (64-bit hash) when anything that encode() depends on differs.
  virtual uint64_t fingerprint() const = 0;
};

// Ids 0-255 are the bytes, 256 is <eos>: vocabulary 257. No text encodes to 256; Specials::kAdd adds nothing.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

// `source` is "bytes" or the path of a tokenizer.json (or of a folder that holds one). EOS and BOS come from
// `tokenizer_config.json` beside it when there is one, else from the usual names among the special tokens.
// Errors: no such file, and those of parse_tokenizer_json.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::string& source);

// The two JSON texts of a Hub tokenizer; `config_json` may be empty. Supported: model BPE (merges as strings or pairs,
// byte_fallback, fuse_unk, ignore_merges); normalizers NFC, Prepend, Replace, Sequence; pre-tokenizers ByteLevel,
// Split, Digits, Metaspace, Sequence; post-processors ByteLevel, TemplateProcessing, RobertaProcessing, Sequence;
// decoders ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence; added tokens. Errors (where: `where` and
// the key): not JSON, unsupported model or component, missing vocab, an id twice, negative or beyond 2^24, a merge of
// unknown tokens or with an unknown result, an invalid regular expression, an unknown unk_token, a template that names
// an unknown token.
Result<std::unique_ptr<Tokenizer>> parse_tokenizer_json(std::string_view json, std::string_view config_json,
                                                        const std::string& where);

}  // namespace fivefold
