#include "kernels/embedding.h"

#include <algorithm>

#include "kernels/clones.h"
#include "kernels/parallel.h"

namespace fivefold::kernels {
namespace {

void check_ids(const int32_t* ids, int64_t rows, int64_t table_rows) {
  for (int64_t r = 0; r < rows; ++r) {
    FIVEFOLD_CHECK(ids[r] >= 0 && ids[r] < table_rows, "embedding: an id is outside the table");
  }
}

// Ids of the whole table, of which this one is all or a part.
template <class A>
void check_table_ids(const A& a) {
  FIVEFOLD_CHECK(a.whole_rows > 0 ? a.first_id >= 0 && a.first_id + a.table_rows <= a.whole_rows : a.first_id == 0);
  check_ids(a.ids, a.rows, a.whole_rows > 0 ? a.whole_rows : a.table_rows);
}

bool is_inside(int64_t id, int64_t first_id, int64_t table_rows) {
  return id >= first_id && id < first_id + table_rows;
}

template <class T>
FIVEFOLD_CLONES void forward_rows(const EmbeddingForward<T>& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* out = a.out + r * a.cols;
    const T* position = a.position_table == nullptr ? nullptr : a.position_table + a.positions[r] * a.cols;
    if (!is_inside(a.ids[r], a.first_id, a.table_rows)) {
      position == nullptr ? std::fill_n(out, a.cols, T{}) : std::copy_n(position, a.cols, out);
      continue;
    }
    const T* token = a.table + (a.ids[r] - a.first_id) * a.cols;
    if (position == nullptr) {
#pragma omp simd
      for (int64_t c = 0; c < a.cols; ++c) out[c] = from_float<T>(a.scale * to_float(token[c]));
    } else {
#pragma omp simd
      for (int64_t c = 0; c < a.cols; ++c) {
        out[c] = from_float<T>(a.scale * to_float(token[c]) + to_float(position[c]));
      }
    }
  }
}

// Work of the backward is cut by table rows and by columns, so that one frequent id does not leave a thread alone.
constexpr int64_t kTileIds = 64;
constexpr int64_t kTileCols = 256;

template <class T>
FIVEFOLD_CLONES void add_row(const T* row, int64_t cols, float* sum) {
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) sum[c] += to_float(row[c]);
}

template <class D>
FIVEFOLD_CLONES void write_row(const float* sum, int64_t cols, float scale, Accumulate mode, D* target) {
  if (mode == Accumulate::kAdd) {
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) target[c] = from_float<D>(to_float(target[c]) + scale * sum[c]);
  } else {
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) target[c] = from_float<D>(scale * sum[c]);
  }
}

// starts[i] .. starts[i + 1] delimits, in `order`, the rows whose id is first_id + i, ascending: a counting sort.
void sort_rows_by_id(const int32_t* ids, int64_t rows, int64_t first_id, int64_t table_rows, int32_t* starts,
                     int32_t* order) {
  std::fill_n(starts, table_rows + 1, 0);
  for (int64_t r = 0; r < rows; ++r)
    if (is_inside(ids[r], first_id, table_rows)) ++starts[ids[r] - first_id + 1];
  for (int64_t i = 0; i < table_rows; ++i) starts[i + 1] += starts[i];
  // Filling moves each start to its end, which is the next one's start; shifting by one undoes that.
  for (int64_t r = 0; r < rows; ++r)
    if (is_inside(ids[r], first_id, table_rows)) order[starts[ids[r] - first_id]++] = static_cast<int32_t>(r);
  for (int64_t i = table_rows; i > 0; --i) starts[i] = starts[i - 1];
  starts[0] = 0;
}

// Gradient of table rows [id_begin, id_end), columns [col_begin, col_end). Sums take 64 rows at a time, so that
// rounding grows with the number of such groups and not with that of rows.
template <class T, class D>
void backward_tile(const EmbeddingBackward<T>& a, const int32_t* starts, const int32_t* order, int64_t id_begin,
                   int64_t id_end, int64_t col_begin, int64_t col_end) {
  const int64_t cols = col_end - col_begin;
  D* grad = static_cast<D*>(a.table_grad.data) + col_begin;
  for (int64_t id = id_begin; id < id_end; ++id) {
    const int64_t first = starts[id];
    const int64_t last = starts[id + 1];
    if (first == last) {
      if (a.table_grad.mode == Accumulate::kOverwrite) std::fill_n(grad + id * a.cols, cols, D{});
      continue;
    }
    float sum[kTileCols] = {};
    for (int64_t group = first; group < last; group += kBlockRows) {
      float group_sum[kTileCols] = {};
      for (int64_t i = group; i < std::min(last, group + kBlockRows); ++i) {
        add_row(a.dout + order[i] * a.cols + col_begin, cols, group_sum);
      }
      add_row(group_sum, cols, sum);
    }
    write_row(sum, cols, a.scale, a.table_grad.mode, grad + id * a.cols);
  }
}

}  // namespace

template <class T>
void embedding_forward(const EmbeddingForward<T>& a) {
  check_table_ids(a);
  if (a.position_table != nullptr) check_ids(a.positions, a.rows, a.position_rows);
  for_each_block(a.rows, independent_block_rows(a.cols), a.num_threads,
                 [&](int64_t, int64_t begin, int64_t end) { forward_rows(a, begin, end); });
}

template <class T>
void embedding_backward(const EmbeddingBackward<T>& a) {
  check_table_ids(a);
  int32_t* starts = static_cast<int32_t*>(a.scratch);
  int32_t* order = starts + a.table_rows + 1;
  sort_rows_by_id(a.ids, a.rows, a.first_id, a.table_rows, starts, order);
  const int64_t col_tiles = div_ceil(a.cols, kTileCols);
  const int64_t tiles = div_ceil(a.table_rows, kTileIds) * col_tiles;
  visit_element(a.table_grad.type, [&]<class D>(std::type_identity<D>) {
  // Dynamic: the tiles are as unequal as word frequencies. Each element is still written by one tile.
#pragma omp parallel for num_threads(a.num_threads) schedule(dynamic, 8)
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t id_begin = tile / col_tiles * kTileIds;
      const int64_t col_begin = tile % col_tiles * kTileCols;
      backward_tile<T, D>(a, starts, order, id_begin, std::min(a.table_rows, id_begin + kTileIds), col_begin,
                          std::min(a.cols, col_begin + kTileCols));
    }
  });
}

template void embedding_forward(const EmbeddingForward<float>&);
template void embedding_forward(const EmbeddingForward<BFloat16>&);
template void embedding_forward(const EmbeddingForward<Float16>&);
template void embedding_backward(const EmbeddingBackward<float>&);
template void embedding_backward(const EmbeddingBackward<BFloat16>&);
template void embedding_backward(const EmbeddingBackward<Float16>&);

int64_t embedding_backward_scratch_bytes(int64_t rows, int64_t table_rows) {
  return (table_rows + 1 + rows) * int64_t{sizeof(int32_t)};
}

}  // namespace fivefold::kernels
