// Microbatch: the tokens of one microbatch on this rank, and the tensors that live between its instructions.
#pragma once

#include <array>
#include <vector>

#include "engine/tensors.h"
#include "spec/attention_segments.h"
#include "spec/operations.h"

namespace fivefold {

// What a rank is given for one microbatch. All arrays are row-major [rows x sequence].
struct MicrobatchTokens {
  int64_t rows = 0, sequence = 0;
  std::vector<int32_t> input_ids, targets, positions;
  std::vector<int32_t> cu_seqlens;  // documents end to end over the rows; first 0, last rows * sequence
  std::vector<int64_t> numbers;     // of each token its place in the run's data, under dropout; empty: nothing drops
  int64_t context_degree = 1;       // ranks that share the rows: cu_seqlens is of the rows in full
};

// Appends tokens that count nowhere to each row until it has `sequence` of them: a document of its own, id 0, no
// target.
// Numbers the tokens of rows whose first is sample `first_sample` of the run, before the rows are padded or split.
void number_tokens(int64_t first_sample, MicrobatchTokens& tokens);
MicrobatchTokens pad_rows(const MicrobatchTokens& tokens, int64_t sequence);

// What the first part of a layer's backward leaves for the second: of each linear its input and its output's gradient;
// of norms the weight gradients themselves.
struct KeptForWeights {
  struct Product {
    size_t operation;
    at::Tensor input, output_gradient;
  };
  struct Vector {
    int parameter;
    at::Tensor gradient;  // fp32
  };
  std::vector<Product> products;
  std::vector<Vector> vectors;
};

// Under context parallelism, which keys the queries of this rank see (spec/attention_segments.h).
struct ContextSegments {
  std::vector<std::vector<AttentionSegment>> ring;  // by the rank whose keys they are
  std::vector<AttentionSegment> gathered;           // all keys
  std::vector<AttentionSegment> all;                // all queries, in rank order, against all keys
  std::vector<int32_t> chunks;                      // where the chunks of `gathered` and `all` lie
  int64_t chunk_rows = 0;
};
// The part of each row that rank `rank` of `degree` holds; documents stay those of the whole rows.
// REQUIRES: 2 degree divides the sequence.
MicrobatchTokens split_rows(const MicrobatchTokens& tokens, int degree, int rank);
ContextSegments context_segments(const MicrobatchTokens& whole, int degree, int rank);

struct Microbatch {
  int64_t tokens = 0;
  int64_t valid_tokens = 0;
  at::Tensor input_ids, targets, positions;  // int32 [tokens]
  at::Tensor cu_seqlens;                     // int32, `num_documents + 1` of its capacity are used
  int64_t num_documents = 0;
  ContextSegments context;             // under context parallelism
  std::vector<int64_t> token_numbers;  // under dropout: MicrobatchTokens::numbers

  std::vector<at::Tensor> stream;              // by unit: its output, until its reader's backward frees it
  std::vector<std::vector<at::Tensor>> slots;  // by unit and slot: saved and rebuilt tensors
  std::vector<KeptForWeights> kept;            // by unit
  // By unit and operation, under fp8 with one scale a tensor: largest magnitudes by Fp8Role.
  std::vector<std::vector<std::array<float, kNumFp8Roles>>> fp8_amax;
  at::Tensor stream_gradient;  // gradient of the residual stream, from the loss down to the embedding
};

}  // namespace fivefold
