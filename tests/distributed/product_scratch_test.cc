// What products of oneDNN take for themselves: it packs blocks of the operands, of a size that does not grow with
// theirs. The planner's bound of it is a measured figure; this measures again.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/memory/counting_allocator.h"
#include "engine/ops/matrix_product.h"
#include "planner/kernel_scratch.h"

namespace fivefold::testing {
namespace {

int64_t scratch_of(const at::Tensor& a, const at::Tensor& b, bool add) {
  at::Tensor out = at::zeros({a.size(0), b.size(1)}, a.options());
  MemoryLedger ledger;
  const LedgerScope scope(ledger);
  ops::matrix_product(a, b, add ? out : at::Tensor(), out);
  return ledger.peak()[Account::kWorkspace];
}

// The three products of a linear, forward, of the input's gradient and of the weight's.
int64_t scratch_of_linear(at::ScalarType type, int64_t tokens, int64_t in, int64_t out) {
  const at::Tensor x = at::ones({tokens, in}, type), w = at::ones({out, in}, type), dy = at::ones({tokens, out}, type);
  int64_t most = 0;
  for (const bool add : {false, true})
    most = std::max({most, scratch_of(x, w.t(), add), scratch_of(dy, w, add), scratch_of(dy.t(), x, add)});
  return most;
}

TEST(ProductScratch, IsBelowItsBound) {
  install_counting_allocator();
  const c10::InferenceMode inference;
  const std::pair<int64_t, int64_t> widths[] = {{16, 2048},  {576, 960},   {576, 3072}, {1536, 576},
                                                {576, 9000}, {2048, 2048}, {4096, 1024}};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const int64_t tokens : {7, 64, 300, 1024, 2048}) {
      int64_t most = 0;
      for (const auto& [in, out] : widths) most = std::max(most, scratch_of_linear(type, tokens, in, out));
      EXPECT_LE(most, at::get_num_threads() * kProductScratchPerThread) << type << ", " << tokens << " tokens";
    }
}

}  // namespace
}  // namespace fivefold::testing
