// The products of a linear's adapter (Note [Adapters] in spec/adapter.h), on tensors whose memory the caller chose.
// T tokens; a packed linear has n adapters of rank r, whose u = x A^T lie side by side, [T, n r].
#pragma once

#include <vector>

#include "engine/tensors.h"
#include "spec/operations.h"

namespace fivefold::ops {

struct LowRankWeights {
  const LowRankAdapter* adapter = nullptr;
  at::Tensor a, b;  // [n r, in], [rows of all pieces, r]
};

// u [T, n r] = x [T, in] A^T.
void low_rank_down(const LowRankWeights& weights, const at::Tensor& x, at::Tensor& u);
// y [T, out] += scale u B^T, in the columns of each piece.
void low_rank_up(const LowRankWeights& weights, const at::Tensor& u, at::Tensor& y);
// du [T, n r] = scale dy B.
void low_rank_down_grad(const LowRankWeights& weights, const at::Tensor& dy, at::Tensor& du);
// part [T, in] = du A.
void low_rank_input_part(const LowRankWeights& weights, const at::Tensor& du, at::Tensor& part);
// dx [T, in] += du A.
void low_rank_input_grad(const LowRankWeights& weights, const at::Tensor& du, at::Tensor& dx);
// squares [rows of B], fp32: of row j of (weight + scale B A), over the columns that are there, the sum of squares
// (Note [DoRA] in spec/adapter.h). `weight` [out, in].
void row_squares(const LowRankWeights& weights, const at::Tensor& weight, const at::Tensor& squares);
// dA (+)= du^T x; dB (+)= scale dy^T u.
void low_rank_weight_grad(const LowRankWeights& weights, const at::Tensor& x, const at::Tensor& u, const at::Tensor& dy,
                          const at::Tensor& du, const at::Tensor& da, const at::Tensor& db, bool accumulate);

}  // namespace fivefold::ops
