// Work: how many floating-point operations and bytes each operation of a unit costs, forward and backward. One
// definition for the planner, which divides it by rates, and for calibrate, which divides it by measured seconds. What
// is counted, per operation: docs/communication.md#time. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/run_program.h"
#include "spec/hardware.h"
#include "spec/inventory.h"
#include "spec/model.h"
#include "spec/operations.h"

namespace fivefold {

// One matrix product, [m, k] x [k, n].
struct Gemm {
  int64_t m = 0, n = 0, k = 0;

  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
  // Operands and result, once each.
  double bytes(int64_t element) const {
    return static_cast<double>(m * k + k * n + m * n) * static_cast<double>(element);
  }
};

// Of one operation in one pass. Matrix products are `gemms`, everything else `flops` and `bytes`.
struct OperationWork {
  std::vector<Gemm> gemms;
  double flops = 0;  // outside gemms: attention, or a block that only the planner knows
  double bytes = 0;  // read and written outside gemms

  double total_flops() const;
};

struct WorkShape {
  int64_t tokens = 0;          // of a microbatch on this rank, before sequence parallelism
  int64_t sequence_parts = 1;  // into which sequence parallelism cuts them outside the linears
  int64_t sequence = 0;        // tokens that attend to one another
  DType compute = DType::kBFloat16;
};

// Backward is input and weight gradient; what a backward rebuilds (norm outputs, activation products) counts in its
// bytes. The loss is counted whole under kBackward, forward only (evaluation) under kForward.
OperationWork operation_work(const ModelSpec& model, const Unit& unit, const UnitOperations& operations, int operation,
                             Pass pass, const WorkShape& shape);

// What the loops over flat buffers read and write per element. Optimizer: the gradient read; master copy (or fp32
// weights) and each moment read and written; working weights written. Accumulation of a microbatch's gradient: it is
// read, the sum read and written.
double optimizer_bytes_per_element(const ShardingPolicy& policy, OptimizerStates states);
double accumulate_bytes_per_element(const ShardingPolicy& policy);

// How many operations, from the first, a recompute runs: all, or up to the last that writes what backward reads when
// the unit's output exists already.
int num_recomputed_operations(const UnitOperations& operations, bool output_unused);

// The operations that selective recompute computes again within a backward. Norms are not among them: their backward
// counts one pass to make their output again, and a rebuild spares it. Exchanges alone are no computation.
std::vector<int> rebuilt_operations(const UnitOperations& operations);

// Floating-point operations of a step over all ranks. Two conventions for attention: `causal` counts the pairs that the
// mask leaves (6 L a d s per token), `full` all (12 L a d s).
struct StepFlops {
  double matrices = 0;  // flops_per_token() of each
  double attention_causal = 0, attention_full = 0;
  double recomputed_matrices = 0, recomputed_attention_causal = 0, recomputed_attention_full = 0;

  double model_causal() const { return matrices + attention_causal; }
  double model_full() const { return matrices + attention_full; }
  double hardware_causal() const { return model_causal() + recomputed_matrices + recomputed_attention_causal; }
  double hardware_full() const { return model_full() + recomputed_matrices + recomputed_attention_full; }
};
StepFlops step_flops(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config);

// Of a linear's backward, the products that make gradients of its weight or of its adapter.
OperationWork weight_gradient_work(const Unit& unit, const Operation& op, const WorkShape& shape);

// Of one token of full training: 6 N, and attention over the pairs that its mask leaves, or over all.
struct TokenFlops {
  double causal = 0, full = 0;
};
TokenFlops model_flops_per_token(const ModelSpec& model, int64_t sequence);

// Elements that the matrix products of the model multiply a token by: N of the 6 N convention.
int64_t multiplied_parameters(const ModelSpec& model);

// Of the matrix products of the model: 6 N, N = multiplied_parameters(); under an adapter 4 N, as frozen weights have
// no gradient, and 6 for each trained parameter.
double flops_per_token(const ModelSpec& model, const Inventory& inventory);

}  // namespace fivefold
