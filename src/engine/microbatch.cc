#include "engine/microbatch.h"

#include <numeric>

#include "base/integer.h"
#include "kernels/cross_entropy.h"

namespace fivefold {

void number_tokens(int64_t first_sample, MicrobatchTokens& tokens) {
  tokens.numbers.resize(static_cast<size_t>(tokens.rows * tokens.sequence));
  std::iota(tokens.numbers.begin(), tokens.numbers.end(), first_sample * tokens.sequence);
}

MicrobatchTokens pad_rows(const MicrobatchTokens& tokens, int64_t sequence) {
  if (sequence == tokens.sequence) return tokens;
  FIVEFOLD_CHECK(sequence > tokens.sequence);
  const int64_t padding = sequence - tokens.sequence;
  MicrobatchTokens padded{.rows = tokens.rows,
                          .sequence = sequence,
                          .input_ids = {},
                          .targets = {},
                          .positions = {},
                          .cu_seqlens = {0},
                          .numbers = {}};
  size_t document = 1;
  for (int64_t row = 0; row < tokens.rows; ++row) {
    const auto copy = [&](const auto& from, auto& to) {
      to.insert(to.end(), from.begin() + row * tokens.sequence, from.begin() + (row + 1) * tokens.sequence);
    };
    copy(tokens.input_ids, padded.input_ids);
    copy(tokens.targets, padded.targets);
    copy(tokens.positions, padded.positions);
    if (!tokens.numbers.empty()) {
      copy(tokens.numbers, padded.numbers);
      padded.numbers.insert(padded.numbers.end(), static_cast<size_t>(padding), 0);
    }
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

MicrobatchTokens split_rows(const MicrobatchTokens& tokens, int degree, int rank) {
  if (degree == 1) return tokens;
  const ZigzagBatch batch{
      .rows = tokens.rows, .sequence = tokens.sequence, .degree = degree, .cu_seqlens = tokens.cu_seqlens};
  MicrobatchTokens part{.rows = tokens.rows,
                        .sequence = div_exact(tokens.sequence, degree),
                        .input_ids = {},
                        .targets = {},
                        .positions = {},
                        .cu_seqlens = tokens.cu_seqlens,
                        .numbers = {},
                        .context_degree = degree};
  for (int64_t row = 0; row < tokens.rows; ++row) {
    for (int64_t i = 0; i < part.sequence; ++i) {
      const auto at = static_cast<size_t>(row * tokens.sequence + zigzag_position(batch, rank, i));
      part.input_ids.push_back(tokens.input_ids[at]);
      part.targets.push_back(tokens.targets[at]);
      part.positions.push_back(tokens.positions[at]);
      if (!tokens.numbers.empty()) part.numbers.push_back(tokens.numbers[at]);
    }
  }
  return part;
}

ContextSegments context_segments(const MicrobatchTokens& whole, int degree, int rank) {
  const ZigzagBatch batch{
      .rows = whole.rows, .sequence = whole.sequence, .degree = degree, .cu_seqlens = whole.cu_seqlens};
  ContextSegments segments{
      .gathered = gathered_segments(batch, rank), .chunks = gathered_chunks(batch), .chunk_rows = batch.chunk_rows()};
  const int64_t rows = div_exact(whole.rows * whole.sequence, degree);
  for (int other = 0; other < degree; ++other) {
    segments.ring.push_back(ring_segments(batch, rank, other));
    for (AttentionSegment segment : gathered_segments(batch, other)) {
      segment.q_begin += other * rows;
      segments.all.push_back(segment);
    }
  }
  return segments;
}

}  // namespace fivefold
