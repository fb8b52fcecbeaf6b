// Rows of a table by index: token and position embeddings.
//
// Indices must lie in [0, table_rows): whoever reads the data rejects others with an error of its own; here they abort.
// A table may be a part of a larger one, for a vocabulary that is split over ranks: rows [first_id, first_id +
// table_rows) of whole_rows. Ids of other rows then contribute nothing.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::kernels {

template <class T>
struct EmbeddingForward {
  const T* table = nullptr;      // [table_rows, cols]
  const int32_t* ids = nullptr;  // [rows]
  int64_t table_rows = 0;
  int64_t first_id = 0, whole_rows = 0;  // a part of a table; whole_rows 0: it is all of it
  const T* position_table = nullptr;     // [position_rows, cols] or null
  const int32_t* positions = nullptr;    // [rows]; read only with position_table
  int64_t position_rows = 0;
  T* out = nullptr;  // [rows, cols]
  int64_t rows = 0;
  int64_t cols = 0;
  float scale = 1;  // of the token's row, not of the position's
  int num_threads = 1;
};
// out[r] = scale table[ids[r] - first_id] (+ position_table[positions[r]]); the first term is 0 for ids of other parts.
template <class T>
void embedding_forward(const EmbeddingForward<T>&);

template <class T>
struct EmbeddingBackward {
  const T* dout = nullptr;       // [rows, cols]
  const int32_t* ids = nullptr;  // [rows]; the positions for the gradient of a position table
  GradTarget table_grad = {};    // [table_rows, cols]; kOverwrite zeroes the rows that no id names
  int64_t table_rows = 0;
  int64_t first_id = 0, whole_rows = 0;  // as above
  int64_t rows = 0;
  int64_t cols = 0;
  float scale = 1;
  void* scratch = nullptr;  // embedding_backward_scratch_bytes(rows, table_rows), aligned for int32_t
  int num_threads = 1;
};
// table_grad[i] (=, +=) scale x sum of dout[r] over the rows r with ids[r] = first_id + i: each table row is summed in
// fp32 in row order and written once.
template <class T>
void embedding_backward(const EmbeddingBackward<T>&);

int64_t embedding_backward_scratch_bytes(int64_t rows, int64_t table_rows);

}  // namespace fivefold::kernels
