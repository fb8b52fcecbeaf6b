#include "engine/layers/low_rank.h"

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

void low_rank_input_grad(const LowRankWeights& weights, const at::Tensor& du, at::Tensor& dx) {
  matrix_product(du, weights.a, dx, dx);
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
