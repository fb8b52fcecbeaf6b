#include "kernels/row_product.h"

#include <type_traits>

#include "kernels/clones.h"
#include "kernels/elementwise.h"
#include "kernels/parallel.h"

namespace fivefold::kernels {
namespace {

// One row of the weight at a time: two or four rows that share the loads of x came out slower (17 to 22 against 31 GB/s
// of one core with AVX-512), the compiler's sums of several rows get in each other's way.
template <class T, class Out>
FIVEFOLD_CLONES void product_rows(const RowProduct<T>& a, const float* x, Out* out, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* w = a.weight + r * a.cols;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < a.cols; ++c) sum += to_float(w[c]) * x[c];
    if (a.bias != nullptr) sum += to_float(a.bias[r]);
    if (a.residual != nullptr) sum += to_float(a.residual[r]);
    out[r] = from_float<Out>(sum);
  }
}

template <class T, class Out>
void product(const RowProduct<T>& a, const float* x) {
  Out* out = static_cast<Out*>(a.out);
  for_each_block(a.rows, independent_block_rows(a.cols), a.num_threads,
                 [&](int64_t, int64_t begin, int64_t end) { product_rows(a, x, out, begin, end); });
}

}  // namespace

template <class T>
void row_product(const RowProduct<T>& a) {
  const float* x = nullptr;
  if constexpr (std::is_same_v<T, float>) {
    x = a.x;
  } else {
    convert(a.x, a.scratch, a.cols, 1);
    x = a.scratch;
  }
  if (a.out_type == ElementType::kFloat32) {
    product<T, float>(a, x);
  } else {
    FIVEFOLD_CHECK(a.out_type == kElementTypeOf<T>);
    product<T, T>(a, x);
  }
}

template void row_product(const RowProduct<float>&);
template void row_product(const RowProduct<BFloat16>&);
template void row_product(const RowProduct<Float16>&);

}  // namespace fivefold::kernels
