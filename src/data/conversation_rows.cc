#include "data/conversation_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/philox.h"
#include "data/sampling.h"

namespace fivefold {

int64_t ConversationRows::places(int64_t conversation) const {
  return std::min(tokens_.document_length(conversation), sequence_);
}

Result<std::shared_ptr<const ConversationRows>> ConversationRows::create(TokenFile tokens, TokenFile counted,
                                                                         int64_t sequence, Packing packing,
                                                                         std::optional<uint64_t> shuffle_seed) {
  if (sequence < 1 || sequence > int64_t{1} << 30)
    return Error{"batch.sequence", fmt::format("{} is not between 1 and 2^30", sequence), ""};
  if (tokens.num_documents() != counted.num_documents())
    return Error{counted.path().string(), "is not of the same conversations as " + tokens.path().string(), ""};
  std::shared_ptr<ConversationRows> rows(
      new ConversationRows(std::move(tokens), std::move(counted), sequence, packing));
  FIVEFOLD_ASSIGN(std::vector<int64_t> conversations, rows->usable_conversations());
  if (conversations.empty())
    return Error{rows->tokens_.path().string(),
                 fmt::format("no conversation has a token that counts among its first {}", sequence + 1),
                 "a longer batch.sequence"};
  if (shuffle_seed) {
    const Permutation order(static_cast<int64_t>(conversations.size()), *shuffle_seed,
                            random_stream("conversation order"));
    std::vector<int64_t> drawn(conversations.size());
    for (size_t i = 0; i < drawn.size(); ++i)
      drawn[i] = conversations[static_cast<size_t>(order(static_cast<int64_t>(i)))];
    conversations = std::move(drawn);
  }
  rows->fill_rows(conversations);
  return std::shared_ptr<const ConversationRows>(std::move(rows));
}

Result<std::vector<int64_t>> ConversationRows::usable_conversations() {
  std::vector<int64_t> usable;
  std::vector<int32_t> counted;
  for (int64_t i = 0; i < tokens_.num_documents(); ++i) {
    const int64_t length = tokens_.document_length(i), kept = std::min(length, sequence_ + 1);
    if (counted_.document_length(i) != length)
      return Error{counted_.path().string(), fmt::format("conversation {} has another length", i), ""};
    counted.resize(static_cast<size_t>(kept));
    FIVEFOLD_TRY(counted_.read(i, 0, counted));
    if (counted.size() < 2 || std::count(counted.begin() + 1, counted.end(), 1) == 0) {
      ++num_left_out_;
      continue;
    }
    usable.push_back(i);
    num_tokens_ += kept;
    longest_ = std::max(longest_, length);
    if (length == kept) continue;
    ++num_cut_;
    cut_tokens_ += length - kept;
  }
  return usable;
}

void ConversationRows::fill_rows(const std::vector<int64_t>& conversations) {
  std::multimap<int64_t, size_t> open;  // rows by the room they have
  for (const int64_t conversation : conversations) {
    const int64_t needed = places(conversation);
    const auto best = open.lower_bound(needed);
    size_t row = rows_.size();
    int64_t room = sequence_;
    if (best == open.end()) {
      rows_.emplace_back();
    } else {
      std::tie(room, row) = *best;
      open.erase(best);
    }
    rows_[row].push_back(conversation);
    if (room > needed) open.emplace(room - needed, row);
  }
}

Status ConversationRows::append_conversation(int64_t conversation, TokenBatch& out) const {
  const int64_t length = places(conversation);
  const auto kept = static_cast<size_t>(std::min(tokens_.document_length(conversation), sequence_ + 1));
  std::vector<int32_t> ids(kept), counted(kept);
  FIVEFOLD_TRY(tokens_.read(conversation, 0, ids));
  FIVEFOLD_TRY(counted_.read(conversation, 0, counted));
  for (size_t i = 0; i < static_cast<size_t>(length); ++i) {
    const bool counts = i + 1 < kept && counted[i + 1] == 1;
    out.input_ids.push_back(ids[i]);
    out.targets.push_back(counts ? ids[i + 1] : kIgnoredTarget);
    out.valid_tokens += counts ? 1 : 0;
  }
  return Ok{};
}

Status ConversationRows::append(int64_t sample, TokenBatch& out) const {
  FIVEFOLD_CHECK(sample >= 0 && sample < num_samples());
  std::vector<int32_t> lengths;
  int64_t room = sequence_;
  for (const int64_t conversation : rows_[static_cast<size_t>(sample)]) {
    FIVEFOLD_TRY(append_conversation(conversation, out));
    lengths.push_back(static_cast<int32_t>(places(conversation)));
    room -= lengths.back();
  }
  if (room > 0) lengths.push_back(static_cast<int32_t>(room));
  out.input_ids.resize(out.input_ids.size() + static_cast<size_t>(room), 0);
  out.targets.resize(out.targets.size() + static_cast<size_t>(room), kIgnoredTarget);
  if (packing_ == Packing::kConcatenate) lengths = {static_cast<int32_t>(sequence_)};
  for (const int32_t length : lengths) {
    out.positions.resize(out.positions.size() + static_cast<size_t>(length));
    std::iota(out.positions.end() - length, out.positions.end(), 0);
  }
  out.document_lengths.push_back(std::move(lengths));
  ++out.rows;
  return Ok{};
}

std::vector<std::string> ConversationRows::remarks() const {
  std::vector<std::string> remarks;
  if (num_cut_ > 0)
    remarks.push_back(
        fmt::format("{} of {} conversations are longer than {} tokens: {} tokens are cut off "
                    "(batch.sequence = {} keeps all)",
                    num_cut_, tokens_.num_documents(), sequence_ + 1, cut_tokens_, longest_ - 1));
  if (num_left_out_ > 0)
    remarks.push_back(fmt::format("{} of {} conversations are left out: none of their first {} tokens counts",
                                  num_left_out_, tokens_.num_documents(), sequence_ + 1));
  return remarks;
}

}  // namespace fivefold
