// Operations: what a unit computes, as a static list, and the TAPES that follow from it: the ordered allocations and
// frees (buffer, bytes, account) of each instruction on a unit. The planner replays tapes, the engine implements the
// operations, and a test compares the engine's allocation log with the tape. Rules and worked numbers: docs/memory.md.
// Plain data and pure functions, thread-safe.
//
// Note [Buffer rules]
//   Forward, per operation in order: allocate what it writes, then free every buffer whose last forward reader it is
//   and that the keep mode does not keep.
//   Backward, per operation in reverse order: a linear whose input was not saved takes one buffer for both that input
//   and its gradient, a linear whose input was saved a new one for the gradient (other readers follow). The input of an
//   activation is overwritten by its gradient, and the one buffer freed; norms add into the one gradient buffer of the
//   residual stream. A saved buffer is freed after the last backward operation that reads it.
//   The residual gradient is allocated by the loss and freed by the embedding's backward.
//   A weight in 4 bits is dequantised into a buffer that lives for one product. An adapter takes a buffer for u = x A^T
//   (forward, and again when its gradients are made) and one for u's gradient. The input of a linear that needs it for
//   no weight's gradient is neither rebuilt nor kept for one. Under dropout the dropped input is a buffer while u or
//   the gradient of A is made, and the adapter's part of the input's gradient is one until it is added. DoRA: the
//   lengths of the weight's rows are measured before the linear's product (its weight in 4 bits dequantised for it).
//   Backward has one more buffer as wide as the output, for the scaled gradient of the output and, before or after, for
//   the product that is made again. What selective recompute drops is a saved buffer that forward frees after its last
//   reader and backward makes again: Note [Rebuilds] in spec/rebuild.h. Under fp8 the operands of a linear's product
//   are rounded copies that live for the product: of the weight, of the input or of the output's gradient. Backward in
//   two parts: the first makes input gradients and keeps, of each linear, its input and its output's gradient (a copy
//   where that is the residual gradient, which the norms add to) and, of norms, their weight gradients in fp32; the
//   second makes weight gradients and frees what was kept.
//
// Note [Tensor parallelism]
//   The list is that of one rank's narrower model (spec/tensor_split.h); the collectives are parts of the operations
//   that need them. Slots that are not split by tensor parallelism have the tokens of this rank's part of the residual
//   stream: all of them, or under sequence parallelism a t-th.
//   Column linear: reads all tokens. Under sequence parallelism its input is gathered, forward and again backward; its
//   input gradient is a partial sum, all-reduced, or reduce-scattered to this rank's tokens.
//   Row linear: its product is a partial sum, all-reduced, or reduce-scattered; bias and residual are added afterwards.
//   Under sequence parallelism its output's gradient is gathered.
//   Embedding: as a row linear. Loss: as a column linear, with the statistics of each chunk's softmax gathered.
//   Gathered tensors and partial sums of sequence parallelism are communication buffers that live within the operation.
//   Backward of a column linear has the input's gradient before the weight's, so that its collective is hidden by the
//   weight's product; it needs both tensors at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spec/dropped_tensors.h"
#include "spec/inventory.h"
#include "spec/run_config.h"
#include "spec/tensor_split.h"

namespace fivefold {

enum class OperationKind : uint8_t {
  kEmbedding,
  kNorm,
  kLinear,  // output = input W^T (+ bias) (+ residual)
  kQkNorm,  // in place on packed QKV
  kRope,    // in place on packed QKV
  kAttention,
  kGatedActivation,  // act(gate) * up
  kActivation,
  kAddNorm,  // output = residual + norm(input): post-norm families, planner only
  kBlock,    // a mixer or MLP that only the planner knows (MLA, linear attention, Mamba, MoE)
  kLoss,     // final norm, output matrix and cross-entropy, in chunks of tokens; the last kind
};
inline constexpr int kNumOperationKinds = static_cast<int>(OperationKind::kLoss) + 1;

enum class Lifetime : uint8_t {
  kInput,    // the unit's input: a stream tensor that the previous unit allocated
  kSaved,    // kept from forward to backward
  kRebuilt,  // freed in forward, rebuilt in backward from saved tensors by what reads it
  kDropped,  // would be kSaved; freed in forward, made again in backward by a rebuild of the unit
  kOutput,   // handed to the next unit
};

// One tensor of a unit: `width` elements per token.
struct Slot {
  std::string name;
  int64_t width = 0;
  bool fp32 = false;  // statistics; otherwise the compute dtype
  Lifetime lifetime = Lifetime::kSaved;
  bool split_by_tp = false;  // tensor parallelism divides the width (else only sequence parallelism divides the tokens)
  bool per_feature = false;  // `width` elements in all, whatever the tokens: lengths of a weight's rows
  std::optional<Droppable> name_to_drop = {};  // by which selective recompute drops it
};

// Context parallelism of the attention: the sequence is split over `degree` ranks.
struct ContextSplit {
  int degree = 1;
  CpKind kind = CpKind::kRing;
};

// How tensor parallelism cuts a linear: its output features or its input features.
enum class LinearCut : uint8_t { kNone, kColumn, kRow };

// The adapter of a linear (Note [Adapters] in spec/adapter.h). Indices are into Unit::parameters; -1: none.
struct LowRankAdapter {
  // Rows of A that belong to one block of output features, with the rows of B from `b_row` on.
  struct Piece {
    int64_t output_row = 0, rows = 0;  // of the linear's output features
    int64_t b_row = 0;
  };
  int a = -1, b = -1;
  int magnitude = -1;    // of DoRA (Note [DoRA] in spec/adapter.h) ...
  int row_lengths = -1;  // ... and the slot of the rows' lengths, in the order of B's rows
  int64_t rank = 0;
  double scale = 1.0;
  double dropout = 0.0;                   // of the input (Note [Adapter dropout] there)
  int64_t whole_in = 0, first_input = 0;  // columns of the whole input, and which of them is this rank's first
  std::vector<Piece> pieces;

  bool exists() const { return a >= 0; }
  bool scales() const { return magnitude >= 0; }
  int64_t width() const { return static_cast<int64_t>(pieces.size()) * rank; }  // of x A^T
};

// Indices are into Unit::parameters (weight, bias, weight2) and UnitOperations::slots; -1: none.
struct Operation {
  OperationKind kind = OperationKind::kLinear;
  std::string name;
  int weight = -1, bias = -1, weight2 = -1;
  int input = -1, output = -1, residual = -1;
  std::vector<int> extra;  // further saved slots it writes: statistics, log-sum-exp, copies
  LinearCut cut = LinearCut::kNone;
  bool trains = true;  // its own parameters are trained
  int64_t weight_numel = 0;
  bool four_bit = false;  // its weight is stored in 4 bits: dequantised at each use, into a buffer of its own
  LowRankAdapter adapter{};

  // Backward reads its input: for the gradient of its weight or of its adapter.
  bool needs_input() const { return trains || adapter.exists(); }
};

// What of an operation runs again; less than the whole only of attention under Ulysses.
enum class RebuildPart : uint8_t { kWhole, kExchange, kAfterExchange };

// Operations that run again, in this order, right before the backward of operation `before`.
struct Rebuild {
  struct Again {
    int operation = -1;
    RebuildPart part = RebuildPart::kWhole;
  };
  int before = -1;
  std::vector<Again> operations;
};

struct UnitOperations {
  UnitKind kind = UnitKind::kLayer;
  std::vector<Slot> slots;  // slot 0 is the input of a layer or head; the output slot is `output`
  int output = -1;
  std::vector<Operation> operations;
  std::vector<Rebuild> rebuilds;  // of selective recompute, in the order of backward

  // What runs again before the backward of an operation; empty: nothing.
  const std::vector<Rebuild::Again>& rebuilt_before(size_t operation) const;
};

// Numbers that delayed fp8 scaling keeps of a step: of each operation of each unit one for its input, its weight and
// its output's gradient.
inline constexpr int kNumFp8Roles = 3, kFp8OperationsPerUnit = 16;
constexpr int64_t fp8_slots(int64_t units) { return units * kFp8OperationsPerUnit * kNumFp8Roles; }

// Operations of unit `unit` of the inventory. Under tensor parallelism model and inventory are those of the rank.
UnitOperations unit_operations(const ModelSpec& model, const Inventory& inventory, int unit,
                               const TensorSplit& split = {}, const ContextSplit& context = {},
                               const DroppedTensors& dropped = {});

struct TapeShape;

// A saved tensor as the memory tables show it.
struct SavedTensor {
  std::string name;  // "layers.3.gate_up"
  int64_t bytes_per_token = 0;
  bool split_by_tp = false;
  std::optional<Droppable> name_to_drop = {};  // by which selective recompute drops it
  bool per_feature = false;                    // `bytes_per_token` in all
};
// Of a microbatch on this rank. Under sequence parallelism a tensor that is not split has this rank's tokens only.
int64_t saved_bytes(const SavedTensor& tensor, const TapeShape& shape);
// What a unit keeps from forward to backward unless its whole layer is recomputed, its input included.
std::vector<SavedTensor> saved_tensors(const UnitOperations& operations, const std::string& unit_name, DType compute);

// ---- Tapes ----

// What a tape depends on beside the unit.
struct TapeShape {
  int64_t tokens = 0;  // of a microbatch on this rank, before sequence parallelism
  TensorSplit split;
  ContextSplit context;
  int64_t loss_chunk = 512;  // tokens whose logits exist at once
  DType compute = DType::kFloat32;
  std::optional<Fp8Scaling> fp8 = {};  // products of linears have fp8 operands

  // Tokens of the residual stream.
  int64_t stream_tokens() const { return tokens / split.sequence_parts(); }
};

enum class Keep : uint8_t {
  kAll,        // everything backward needs
  kInputOnly,  // first layer of a recomputed segment
  kNothing,    // other layers of a recomputed segment, evaluation
};

enum class TapeStep : uint8_t {
  kForward,
  kRecompute,
  kBackward,
  kBackwardInput,   // the first part of a layer's backward
  kBackwardWeight,  // and the second
  kLoss,
  kEvaluateLoss,
};

struct TapeOptions {
  Keep keep = Keep::kAll;      // of kForward
  bool output_unused = false;  // kRecompute of the last layer of a segment: its output exists already
};

// Buffers are named by (owner, id): owner 0 is this unit, -1 the previous unit (whose output is this unit's input),
// kStreamOwner the microbatch. Ids: slot index, or kGradientId + slot index, or kStreamGradientId.
inline constexpr int kGradientId = 1000;
inline constexpr int kStreamGradientId = 2000;
inline constexpr int kTemporaryId = 3000;
inline constexpr int kKeptGradientId = 3100;  // + operation: an output gradient that waits for the weight's
inline constexpr int kKeptVectorId = 3200;    // + parameter: a norm's weight gradient that waits with it
inline constexpr int kGatheredId = 4000;      // all tokens of a tensor that sequence parallelism cuts
inline constexpr int kPartialSumId = 4001;    // the same size, before it is scattered
inline constexpr int kExchangeId = 4100;      // + number: buffers of context parallelism
inline constexpr int kDequantizedId = 4200;   // a weight, from its 4 bits
inline constexpr int kLowRankId = 4201;       // x A^T of an adapter
inline constexpr int kLowRankGradientId = 4202;
inline constexpr int kFp8InputId = 4203;         // a linear's input, rounded to fp8
inline constexpr int kFp8GradientId = 4204;      // its output's gradient, likewise
inline constexpr int kScaledId = 4205;           // DoRA: the output's gradient, scaled; the unscaled product
inline constexpr int kDroppedInputId = 4206;     // dropout: an adapter's input
inline constexpr int kDroppedGradientId = 4207;  // and its gradient

// Bytes of a token's softmax that tensor-parallel ranks exchange: log-sum-exp and target's logit, fp64.
inline constexpr int64_t kLossStatisticsBytes = 16;

enum class Owner : uint8_t { kThisUnit, kPreviousUnit, kMicrobatch };

struct TapeEvent {
  bool allocate = true;
  Owner owner = Owner::kThisUnit;
  int id = 0;
  Account account = Account::kActivations;
  int64_t bytes = 0;  // of an allocation; a free gives back what was allocated
};

// REQUIRES: the step exists for the unit's kind (layers: forward, recompute, backward or its parts; embedding: forward,
// backward;
// head: loss, evaluate-loss).
std::vector<TapeEvent> tape(const UnitOperations& operations, TapeStep step, const TapeShape& shape,
                            const TapeOptions& options = {});

}  // namespace fivefold
