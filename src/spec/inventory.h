// Inventory: every parameter of a model, grouped into units, each unit one flat buffer. The planner sums it, the engine
// allocates by it, checkpoints and gradients are keyed by it. Derivation and worked numbers: docs/memory.md.
// Immutable after build_inventory, thread-safe.
//
// With adapters (spec/adapter.h) a unit has up to three buffers: of what is trained, of what is frozen, and of what is
// frozen in 4 bits.
//
// A unit is the embedding, one layer, or the head (final norm and output matrix). Each parameter starts on a
// 256-element boundary of its unit's buffer; the buffer is padded to 256 x D elements for D shards and cut evenly, so a
// unit is one collective, a rank's shard of a parameter is a block-aligned range, and 256-element quantisation blocks
// never span parameters. A tied output matrix lives in the embedding unit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/enums.h"
#include "spec/model.h"

namespace fivefold {

inline constexpr int64_t kParameterAlignment = 256;  // elements

// How a parameter divides over the tensor (or expert-tensor) axis.
enum class Split : uint8_t {
  kReplicated,
  kColumn,      // dim 0 (output features), padded
  kRow,         // dim 1 (input features), padded
  kVocabulary,  // dim 0, padded
  kHeads,       // dim 0 by heads: packed QKV; heads fewer than ranks are replicated
};

// What each rank of a tensor group computes as gradient of a replicated parameter.
enum class ReplicatedGrad : uint8_t {
  kWhole,              // all of it: the ranks' gradients are equal
  kPartialOfSequence,  // under sequence parallelism the part of its tokens, else all of it
  kPartial,            // the part of its heads
};

// Which optimizer group: `[optimizer] decay = "matrices"` decays only kMatrix.
enum class DecayClass : uint8_t { kMatrix, kVector };

enum class Initializer : uint8_t {
  kNormal,
  kUniform,
  kOnes,
  kZeros,
  kRowLengths,  // of the frozen weight that DoRA's magnitudes belong to, once that is there
};

// In which of its unit's buffers a parameter lies. Gradients, master weights and optimizer states exist of trained
// ones.
enum class Storage : uint8_t {
  kTrained,
  kFrozen,   // in the compute type
  kFourBit,  // NF4 codes and scales (spec/quantized_layout.h)
};

// A tensor on disk that fills rows [row_begin, row_begin + rows) of a packed parameter.
struct HubPart {
  std::string name;  // Hub name
  int64_t row_begin = 0;
  int64_t rows = 0;
  bool transposed = false;  // stored [in, out] on disk (GPT-2)
};

// A block of a parameter: rows and columns of the whole one that a rank holds (spec/tensor_split.h).
struct ParameterSlice {
  int64_t row = 0, rows = 0;        // of the rank's parameter
  int64_t whole_row = 0;            // the first of them in the whole parameter
  int64_t cols = 0, whole_col = 0;  // columns from 0 on are these columns of the whole parameter
  int32_t holders = 1, holder = 0;  // ranks of the tensor group that hold this block, and which of them this is
};

struct ParameterEntry {
  std::string name;                    // "layers.3.qkv.weight"
  std::vector<int64_t> shape;          // [out, in] or [n], as this rank holds it
  std::vector<int64_t> whole_shape;    // of the parameter in full; equal to `shape` without tensor parallelism
  std::vector<ParameterSlice> slices;  // what `shape` holds of `whole_shape`, in row order; the rest is padding
  std::vector<HubPart> parts;          // in row order, covering every row of the whole parameter
  std::vector<int64_t> pieces;         // rows of each packed piece: q, k and v; gate and up
  Split split = Split::kReplicated;
  ReplicatedGrad replicated_grad = ReplicatedGrad::kWhole;
  DecayClass decay = DecayClass::kMatrix;
  Initializer initializer = Initializer::kNormal;
  double init_std = 0.02;          // of kNormal and kUniform
  bool expert = false;             // lives on the expert grid
  bool adapter = false;            // not of the model but of its adapter; parts have PEFT's names
  std::vector<int> adapted_parts;  // of an adapter's B: which parts of the linear's weight it adapts
  Storage storage = Storage::kTrained;
  int64_t offset = 0;  // from the start of its buffer, a multiple of 256: elements, or of kFourBit bytes

  bool trained() const { return storage == Storage::kTrained; }

  int64_t numel() const;
  int64_t rows() const { return shape[0]; }
  int64_t cols() const { return shape.size() > 1 ? shape[1] : 1; }
  int64_t whole_numel() const;
  int64_t whole_cols() const { return whole_shape.size() > 1 ? whole_shape[1] : 1; }
};

enum class UnitKind : uint8_t { kEmbedding, kLayer, kHead };

struct Unit {
  UnitKind kind = UnitKind::kLayer;
  int64_t layer = -1;  // of kLayer
  std::string name;    // "embedding", "layers.3", "head"
  std::vector<ParameterEntry> parameters;
  int64_t numel = 0;           // sum over parameters, without padding
  int64_t aligned_numel = 0;   // of the trained ones: end of the last, rounded up to 256
  int64_t frozen_numel = 0;    // of the frozen ones, likewise
  int64_t four_bit_bytes = 0;  // of those in 4 bits, likewise

  bool trained() const { return aligned_numel > 0; }
  // Elements of the flat buffer of trained parameters when cut into `shards` equal parts.
  int64_t padded_numel(int64_t shards) const;
  int64_t shard_numel(int64_t shards) const { return padded_numel(shards) / shards; }
  // The same of the frozen ones, in elements, and of those in 4 bits, in bytes.
  int64_t padded_frozen_numel(int64_t shards) const;
  int64_t padded_four_bit_bytes(int64_t shards) const;
  // Index of a parameter by its last name part(s), for example "qkv.weight"; -1 when the unit has none.
  int find(const std::string& suffix) const;
};

struct Inventory {
  std::vector<Unit> units;  // embedding, layers in order, head
  bool tied_embeddings = false;

  int num_units() const { return static_cast<int>(units.size()); }
  int embedding() const { return 0; }
  int head() const { return num_units() - 1; }
  int64_t num_parameters() const;  // exact, padding excluded
  int64_t num_trained() const;     // of these, those that are trained
};

// Gives every parameter its place in the unit's buffers, and these their sizes.
void lay_out(Unit& unit, bool double_quantization);

// Unit `unit` of the model's inventory: 0 the embedding, then the layers, then the head.
Unit build_unit(const ModelSpec& model, int unit);
// Every parameter in full; what a tensor-parallel rank holds is split_inventory() of spec/tensor_split.h.
Inventory build_inventory(const ModelSpec& model);

// The range of a parameter that shard `shard` of `shards` holds, in elements of the parameter (not of the buffer).
// Empty (begin == end) when the shard holds nothing of it. REQUIRES: it is not in 4 bits.
struct ShardRange {
  int64_t begin = 0, end = 0;
  int64_t shard_offset = 0;  // where `begin` lies in the shard's buffer
};
ShardRange shard_range(const Unit& unit, const ParameterEntry& parameter, int64_t shards, int64_t shard);

}  // namespace fivefold
