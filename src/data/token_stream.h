// TokenStream: samples as windows of a token file. The documents are laid end to end, each followed by <eos> unless it
// ends with it already; empty documents vanish. Sample i starts at token i S of this stream and holds S + 1 tokens, S
// inputs and the S targets one further; the last tokens that fill no sample are left out.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/sample_rows.h"
#include "data/token_file.h"
#include "spec/run_config.h"

namespace fivefold {

class TokenStream final : public SampleRows {
 public:
  // `eos` must be below the file's vocabulary. Errors: a file with fewer than sequence + 1 tokens (with <eos> counted).
  static Result<std::shared_ptr<const TokenStream>> create(TokenFile tokens, int64_t sequence, Packing packing,
                                                           int32_t eos);

  int64_t num_samples() const override { return num_samples_; }
  int64_t num_tokens() const override { return stream_start_.back(); }  // with <eos>
  Status append(int64_t sample, TokenBatch& out) const override;

 private:
  TokenStream(TokenFile tokens, int64_t sequence, Packing packing, int32_t eos);

  TokenFile tokens_;
  int64_t sequence_;
  Packing packing_;
  int32_t eos_;
  int64_t num_samples_ = 0;
  std::vector<int64_t> stream_start_;  // per document, its first token in the stream; and the stream's length
};

}  // namespace fivefold
