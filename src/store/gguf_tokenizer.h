// What a GGUF file says of its tokenizer, as the Hub's files: tokenizer.json, tokenizer_config.json and the ids of its
// special tokens. Byte-level BPE only (`tokenizer.ggml.model` gpt2): the file holds tokens and merges; how a text is
// cut before them is one word, `tokenizer.ggml.pre`, whose meaning is that of llama.cpp's src/llama-vocab.cpp and of
// the Hub's tokenizer.json files from which llama.cpp took it. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "store/gguf.h"

namespace fivefold {

struct GgufTokenizer {
  std::string tokenizer_json;
  std::string tokenizer_config_json;  // chat_template, and the special tokens by role
  int64_t vocab_size = 0;
  std::optional<int64_t> bos, eos, pad;
  std::string pre;            // the file's word
  std::string chat_template;  // empty: the file has none
};

// Errors: another kind of tokenizer, an unknown `pre` (the hint lists the known ones), no or damaged tokens, types and
// merges, a token twice, special tokens outside the vocabulary.
Result<GgufTokenizer> read_gguf_tokenizer(const GgufFile& file);

}  // namespace fivefold
