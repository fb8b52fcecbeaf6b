// AdapterSpec: low-rank adapters on the linears of a model, and a base that is frozen, in the compute type or in 4
// bits. Part of a ModelSpec: everything that is derived from the model (inventory, operations, tapes, FLOPs) then knows
// what is trained. Plain data, thread-safe. Formulas: docs/memory.md, docs/engine.md.
//
// Note [Adapters]
//   A linear y = x W^T with an adapter computes y = x W^T + scale (x A^T) B^T, A [r, in], B [out, r]. A packed linear
//   (q, k and v; gate and up) has one A and one B for each tensor on disk that it packs and that is adapted: A is
//   [n r, in], B [sum of the adapted tensors' rows, r].
//   Tensor parallelism. A column linear has all of A and its rows of B: the gradient of u = x A^T is a partial sum, so
//   A's gradient is one too, and the input's gradient joins the partial sum that is reduced anyway. A row linear has
//   its columns of A and all of B: u is a partial sum, and so is (u B^T), which joins the output's partial sum; B's
//   gradient, made with a partial u, is a partial sum. No collective is added but the sum of these small gradients.
//
// Note [DoRA]
//   Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation" (2024), as PEFT has it. With W' = W + scale B A, n_j the
//   length of row j of W' and m [out] trained: y = (m / n) x W'^T (+ bias). m starts as the lengths of W's rows. In the
//   gradients n is a constant (section 4.3 there): those of x, A and B are LoRA's with dy m / n for dy, and
//   dm_j = sum over tokens of dy_j (x W'^T)_j / n_j. Row j has m_j / n_j = 0 where n_j = 0: padding of tensor
//   parallelism, which m pads with zeros.
//   Forward measures n (one pass over W, one product of r wide) and keeps it for the microbatch's backward, which makes
//   x W'^T again for dm: a product more than LoRA, and no activation more.
//   A column linear has its rows of m; a row linear has all of m, sums the squares of n over its tensor group before
//   the product, scales the sum of the partial products, and has a partial sum as gradient of m.
//
// Note [Adapter dropout]
//   u = drop(x) A^T: elements of x are dropped with probability p, the rest divided by 1 - p, for the adapter alone
//   (with DoRA too: x W^T has all of x). The mask is a pure function of the run's seed, the linear, the token's place
//   in the run's data and the input's column (kernels/dropout.h): every layout draws the same, and so does every
//   computation of it: nothing is kept, recompute and the backward draw it again. Adapters of a packed linear share its
//   mask. Evaluation drops nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fivefold {

struct MethodConfig;
struct ModelSpec;
struct Unit;

struct AdapterSpec {
  int64_t rank = 0;
  double scale = 1.0;  // alpha / rank, or alpha / sqrt(rank)
  double dropout = 0.0;
  bool dora = false;
  bool four_bit_base = false;  // linears of layers in NF4 (spec/quantized_layout.h)
  bool double_quantization = true;
  std::vector<std::string> targets;  // last parts of module names ("q_proj"), or "all-linear"

  bool operator==(const AdapterSpec&) const = default;
};

// The model with the adapter of the method; with kind = full, without one.
ModelSpec with_method(ModelSpec model, const MethodConfig& method);

// Names that `targets` may have for this model's linears, in the order of a layer.
std::vector<std::string> adapter_targets(const ModelSpec& model);

// Freezes the unit's parameters and appends adapters of its linears. The unit is to be laid out afterwards.
void attach_adapter(Unit& unit, const AdapterSpec& adapter);

}  // namespace fivefold
