// Tensor parallelism as arithmetic: the narrower model that each of t ranks computes, and the inventory of what a rank
// holds, each parameter with the blocks of the whole one that it is made of. Planner and engine then treat a rank's
// part as a model of its own; only the collectives between the parts are added (spec/operations.h). Derivation:
// docs/communication.md. Pure functions, thread-safe.
//
// A rank has a/t query heads, k/t KV heads (one, shared with its neighbours, when k < t), ceil(f/t) columns of a dense
// MLP and ceil(V/t) rows of the vocabulary. Where t does not divide f or V the last ranks hold rows and columns of
// padding: they start at zero, and stay there, because their gradient is exactly zero.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/inventory.h"

namespace fivefold {

struct TensorSplit {
  int size = 1;                    // t
  int rank = 0;                    // this rank's position in its tensor group
  bool sequence_parallel = false;  // norms, residual stream and what depends on them are cut along the tokens

  // Parts into which the tokens of the residual stream are cut.
  int64_t sequence_parts() const { return sequence_parallel ? size : 1; }
};

// The model of one rank: the same for all of them. REQUIRES: validate_layout accepts the degree.
ModelSpec split_model(const ModelSpec& whole, int64_t degree);

// What rank `split.rank` holds of one unit of the whole inventory.
Unit split_unit(const ModelSpec& whole, const Inventory& inventory, int unit, const TensorSplit& split);

// What rank `split.rank` holds. All ranks of the group have buffers of the same layout. With size 1: build_inventory().
Inventory split_inventory(const ModelSpec& whole, const TensorSplit& split);

// Tensor ranks that share one KV head: t / k neighbours, or one.
int kv_holders(const ModelSpec& whole, int degree);

// Elements [local, local + count) of the rank's parameter are elements [whole, whole + count) of the whole one, both
// flattened row by row.
struct ElementRun {
  int64_t local = 0, whole = 0, count = 0;
};
// The runs inside elements [begin, end) of the rank's parameter, ascending; what no run covers is padding.
std::vector<ElementRun> element_runs(const ParameterEntry& entry, int64_t begin, int64_t end);

// Sum of gradients that is left to do after the data-parallel reduction: elements [begin, end) of a unit's buffer hold
// a partial sum, to be added up over the tensor group, over the holders of a KV head, or, of a tied embedding, over the
// first and the last stage of the pipeline.
struct PartialRange {
  int64_t begin = 0, end = 0;
};
enum class PartialOver : uint8_t { kTensorGroup, kKvHolders, kTiedEnds };
inline constexpr PartialOver kAllPartialOver[] = {PartialOver::kTensorGroup, PartialOver::kKvHolders,
                                                  PartialOver::kTiedEnds};
// Of kTiedEnds: the token table, for a rank whose embedding is shared with another one.
std::vector<PartialRange> partial_gradients(const Unit& unit, const TensorSplit& split, PartialOver over);

// Elements of a unit's buffer that this rank counts in the gradient norm: every element that has several holders is
// counted by the first of them. Ascending, neighbours joined; padding may be inside (it is zero).
std::vector<PartialRange> counted_in_norm(const Unit& unit);

}  // namespace fivefold
