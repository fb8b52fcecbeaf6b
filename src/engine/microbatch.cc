#include "engine/microbatch.h"

#include "kernels/cross_entropy.h"

namespace fivefold {

MicrobatchTokens pad_rows(const MicrobatchTokens& tokens, int64_t sequence) {
  if (sequence == tokens.sequence) return tokens;
  FIVEFOLD_CHECK(sequence > tokens.sequence);
  const int64_t padding = sequence - tokens.sequence;
  MicrobatchTokens padded{
      .rows = tokens.rows, .sequence = sequence, .input_ids = {}, .targets = {}, .positions = {}, .cu_seqlens = {0}};
  size_t document = 1;
  for (int64_t row = 0; row < tokens.rows; ++row) {
    const auto copy = [&](const std::vector<int32_t>& from, std::vector<int32_t>& to) {
      to.insert(to.end(), from.begin() + row * tokens.sequence, from.begin() + (row + 1) * tokens.sequence);
    };
    copy(tokens.input_ids, padded.input_ids);
    copy(tokens.targets, padded.targets);
    copy(tokens.positions, padded.positions);
    for (int64_t i = 0; i < padding; ++i) {
      padded.input_ids.push_back(0);
      padded.targets.push_back(kernels::kIgnoredTarget);
      padded.positions.push_back(static_cast<int32_t>(i));
    }
    for (; document < tokens.cu_seqlens.size() && tokens.cu_seqlens[document] <= (row + 1) * tokens.sequence;
         ++document)
      padded.cu_seqlens.push_back(static_cast<int32_t>(tokens.cu_seqlens[document] + row * padding));
    padded.cu_seqlens.push_back(static_cast<int32_t>((row + 1) * sequence));
  }
  return padded;
}

}  // namespace fivefold
