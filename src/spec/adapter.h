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
