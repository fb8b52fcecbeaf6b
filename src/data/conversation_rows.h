// ConversationRows: samples as rows that whole conversations fill. A conversation of L tokens takes L places of a row,
// one for each token as an input, where the last one has no target; one of S + 1 tokens fits as well, its last token
// being a target only. A longer one is cut to S + 1. What a row has left is padding: id 0, no targets, a document of
// its own. Each conversation goes into the row with the least room that still holds it, in the order of the file or,
// for training, in one drawn from a seed: rows are the same in every epoch and for any number of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/sample_rows.h"
#include "data/token_file.h"
#include "spec/run_config.h"

namespace fivefold {

class ConversationRows final : public SampleRows {
 public:
  // `counted` has the documents of `tokens` with 1 for each token that counts and 0 for the others. Conversations none
  // of whose targets counts are left out. Errors: files of other documents than each other's, ids outside the
  // vocabulary, no conversation that is left.
  static Result<std::shared_ptr<const ConversationRows>> create(TokenFile tokens, TokenFile counted, int64_t sequence,
                                                                Packing packing, std::optional<uint64_t> shuffle_seed);

  int64_t num_samples() const override { return static_cast<int64_t>(rows_.size()); }
  int64_t num_tokens() const override { return num_tokens_; }  // without padding and what is cut off
  Status append(int64_t sample, TokenBatch& out) const override;
  // How many tokens are cut off, and how many conversations left out.
  std::vector<std::string> remarks() const override;

 private:
  ConversationRows(TokenFile tokens, TokenFile counted, int64_t sequence, Packing packing)
      : tokens_(std::move(tokens)), counted_(std::move(counted)), sequence_(sequence), packing_(packing) {}
  Result<std::vector<int64_t>> usable_conversations();
  void fill_rows(const std::vector<int64_t>& conversations);
  Status append_conversation(int64_t conversation, TokenBatch& out) const;
  int64_t places(int64_t conversation) const;

  TokenFile tokens_, counted_;
  int64_t sequence_;
  Packing packing_;
  std::vector<std::vector<int64_t>> rows_;  // conversations of each
  int64_t num_tokens_ = 0, cut_tokens_ = 0, num_cut_ = 0, num_left_out_ = 0, longest_ = 0;
};

}  // namespace fivefold
