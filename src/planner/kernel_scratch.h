// KernelScratch: the most bytes that a kernel of fivefold's engine takes for itself during a step
// (Account::kWorkspace). A rank runs one kernel at a time, so the largest scratch is the bound, not the sum. It is no
// prediction: which kernels run at the peak, and on how long documents, is not asked. Formulas: docs/memory.md#scratch.
// Pure functions, thread-safe.
#pragma once

#include "planner/ledger.h"

namespace fivefold {

enum class ScratchKernel : uint8_t {
  kAttention,
  kNormBackward,
  kQkNormBackward,
  kBiasGradient,
  kMagnitudeGradient,
  kTokenGradient,
  kGradientNorm,
  kProduct,
  kFp16Product,
  kFp8Rounding,
};
inline constexpr int kNumScratchKernels = 10;

// Of a product of oneDNN, whose blocks are packed in buffers of the thread; measured at most 1.65 MiB, for whatever
// size (tests/distributed/product_scratch_test.cc).
inline constexpr int64_t kProductScratchPerThread = int64_t{2} << 20;

struct KernelScratch {
  ScratchKernel kernel = ScratchKernel::kAttention;
  int64_t bytes = 0;
};

// `threads`: of a rank, threads_per_rank().
KernelScratch largest_scratch(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                              int threads);
// The same with its formula.
MemoryLine scratch_line(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config, int threads);

}  // namespace fivefold
