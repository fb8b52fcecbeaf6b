#include "engine/layers/low_rank.h"

#include <algorithm>

#include "base/integer.h"
#include "engine/ops/matrix_product.h"

namespace fivefold::ops {
namespace {

// out = alpha a b + (out, or nothing).
void scaled_product(const at::Tensor& a, const at::Tensor& b, double alpha, bool add, const at::Tensor& out) {
  at::Tensor result = out;
  at::addmm_out(result, result, a, b, add ? 1.0 : 0.0, alpha);
}

// Calls f(columns of the linear's output, of u, rows of B) for each piece.
template <class F>
void for_each_piece(const LowRankAdapter& adapter, F&& f) {
  int64_t u_column = 0;
  for (const LowRankAdapter::Piece& piece : adapter.pieces) {
    f(piece, u_column);
    u_column += adapter.rank;
  }
}

}  // namespace

void low_rank_down(const LowRankWeights& weights, const at::Tensor& x, at::Tensor& u) {
  matrix_product(x, weights.a.t(), at::Tensor(), u);
}

void low_rank_up(const LowRankWeights& weights, const at::Tensor& u, at::Tensor& y) {
  for_each_piece(*weights.adapter, [&](const LowRankAdapter::Piece& piece, int64_t column) {
    scaled_product(u.narrow(1, column, weights.adapter->rank), weights.b.narrow(0, piece.b_row, piece.rows).t(),
                   weights.adapter->scale, true, y.narrow(1, piece.output_row, piece.rows));
  });
}

void low_rank_down_grad(const LowRankWeights& weights, const at::Tensor& dy, at::Tensor& du) {
  for_each_piece(*weights.adapter, [&](const LowRankAdapter::Piece& piece, int64_t column) {
    scaled_product(dy.narrow(1, piece.output_row, piece.rows), weights.b.narrow(0, piece.b_row, piece.rows),
                   weights.adapter->scale, false, du.narrow(1, column, weights.adapter->rank));
  });
}

void low_rank_input_part(const LowRankWeights& weights, const at::Tensor& du, at::Tensor& part) {
  matrix_product(du, weights.a, at::Tensor(), part);
}

void low_rank_input_grad(const LowRankWeights& weights, const at::Tensor& du, at::Tensor& dx) {
  matrix_product(du, weights.a, dx, dx);
}

// In fp32, some rows at a time, so that the sum with the weight is never there in full.
void row_squares(const LowRankWeights& weights, const at::Tensor& weight, const at::Tensor& squares) {
  constexpr int64_t kPortion = int64_t{1} << 19;  // elements
  const int64_t portion = std::max<int64_t>(1, div_floor(kPortion, weight.size(1)));
  const at::Tensor a = weights.a.to(at::kFloat);
  for_each_piece(*weights.adapter, [&](const LowRankAdapter::Piece& piece, int64_t column) {
    for (int64_t row = 0; row < piece.rows; row += portion) {
      const int64_t rows = std::min(portion, piece.rows - row);
      at::Tensor sum = weight.narrow(0, piece.output_row + row, rows)
                           .to(at::kFloat, /*non_blocking=*/false,
                               /*copy=*/true);
      scaled_product(weights.b.narrow(0, piece.b_row + row, rows).to(at::kFloat),
                     a.narrow(0, column, weights.adapter->rank), weights.adapter->scale, true, sum);
      at::Tensor out = squares.narrow(0, piece.b_row + row, rows);
      at::sum_out(out, sum.square_(), {1});
    }
  });
}

void low_rank_weight_grad(const LowRankWeights& weights, const at::Tensor& x, const at::Tensor& u, const at::Tensor& dy,
                          const at::Tensor& du, const at::Tensor& da, const at::Tensor& db, bool accumulate) {
  for_each_piece(*weights.adapter, [&](const LowRankAdapter::Piece& piece, int64_t column) {
    scaled_product(dy.narrow(1, piece.output_row, piece.rows).t(), u.narrow(1, column, weights.adapter->rank),
                   weights.adapter->scale, accumulate, db.narrow(0, piece.b_row, piece.rows));
  });
  matrix_product(du.t(), x, accumulate ? da : at::Tensor(), da);
}

}  // namespace fivefold::ops
