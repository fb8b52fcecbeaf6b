// Microbatch: the tokens of one microbatch on this rank, and the tensors that live between its instructions.
#pragma once

#include <vector>

#include "engine/tensors.h"

namespace fivefold {

// What a rank is given for one microbatch. All arrays are row-major [rows x sequence].
struct MicrobatchTokens {
  int64_t rows = 0, sequence = 0;
  std::vector<int32_t> input_ids, targets, positions;
  std::vector<int32_t> cu_seqlens;  // documents end to end over the rows; first 0, last rows * sequence
};

struct Microbatch {
  int64_t tokens = 0;
  int64_t valid_tokens = 0;
  at::Tensor input_ids, targets, positions;  // int32 [tokens]
  at::Tensor cu_seqlens;                     // int32, `num_documents + 1` of its capacity are used
  int64_t num_documents = 0;

  std::vector<at::Tensor> stream;              // by unit: its output, until its reader's backward frees it
  std::vector<std::vector<at::Tensor>> slots;  // by unit and slot: saved and rebuilt tensors
  at::Tensor stream_gradient;                  // gradient of the residual stream, from the loss down to the embedding
};

}  // namespace fivefold
