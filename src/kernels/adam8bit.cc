// AdamW with states in 8 bits: Note [States in 8 bits] of optimizer.h.
#include "kernels/dynamic_block.h"
#include "kernels/optimizer_elements.h"

namespace fivefold::kernels {
namespace {

constexpr int64_t kBlock = kOptimizerStateBlock;
static_assert(kBlockElements % kBlock == 0 && kRandomChunk % kBlock == 0);

struct Maps {
  const float* signed_values;
  const float* unsigned_values;
  const uint32_t* signed_bins;
  const uint32_t* unsigned_bins;
};

// The elements [begin, end) of one block.
template <class G, Weights kWeights>
FIVEFOLD_CLONES void adamw8_block(const AdamW<G, uint8_t>& a, AdamWFactors f, Maps maps, int64_t begin, int64_t end,
                                  const uint16_t* random) {
  float m_next[kBlock], v_next[kBlock];
  const int64_t block = begin / kBlock, n = end - begin;
  float* param = a.param;
  BFloat16* param_bf16 = a.param_bf16;
  const G* grad = a.grad;
  uint8_t* m = a.m + begin;
  uint8_t* v = a.v + begin;
  const float m_absmax = a.m_absmax[block], v_absmax = a.v_absmax[block];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = to_float(grad[begin + i]) * f.grad_scale;
    m_next[i] = next_m(f, maps.signed_values[static_cast<int32_t>(m[i])] * m_absmax, g);
    v_next[i] = next_v(f, maps.unsigned_values[static_cast<int32_t>(v[i])] * v_absmax, g);
    const float next = next_weight(f, read_weight<kWeights>(param, param_bf16, begin + i), m_next[i], v_next[i]);
    write_weight<kWeights>(param, param_bf16, begin + i, next, random, begin);
  }
  a.m_absmax[block] = block_absmax(m_next, n);
  a.v_absmax[block] = block_absmax(v_next, n);
  quantise_block(maps.signed_bins, m_next, n, a.m_absmax[block], m);
  quantise_block(maps.unsigned_bins, v_next, n, a.v_absmax[block], v);
}

template <class G>
void adamw8_step(const AdamW<G, uint8_t>& a) {
  FIVEFOLD_CHECK(a.m_absmax != nullptr && a.v_absmax != nullptr);
  const AdamWFactors factors = adamw_factors(a);
  const Maps maps{dynamic_map(DynamicMapKind::kSigned).data(), dynamic_map(DynamicMapKind::kUnsigned).data(),
                  dynamic_code_table(DynamicMapKind::kSigned).bins.data(),
                  dynamic_code_table(DynamicMapKind::kUnsigned).bins.data()};
  for_each_weight_range(a, kBlockElements, [&]<Weights kWeights>(int64_t begin, int64_t end, const uint16_t* random) {
    for (int64_t from = begin; from < end; from += kBlock)
      adamw8_block<G, kWeights>(a, factors, maps, from, std::min(end, from + kBlock),
                                random == nullptr ? nullptr : random + (from - begin));
  });
}

}  // namespace

template <>
void adamw_step(const AdamW<float, uint8_t>& a) {
  adamw8_step(a);
}
template <>
void adamw_step(const AdamW<BFloat16, uint8_t>& a) {
  adamw8_step(a);
}
template <>
void adamw_step(const AdamW<Float16, uint8_t>& a) {
  adamw8_step(a);
}

}  // namespace fivefold::kernels
