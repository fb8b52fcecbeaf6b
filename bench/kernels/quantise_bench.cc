// Speed of the quantising kernels and of the optimizer steps on small states: elements a second on one and two threads.
#include <benchmark/benchmark.h>

#include <vector>

#include "kernels/fp8.h"
#include "kernels/nf4.h"
#include "kernels/optimizer.h"

namespace fivefold::kernels {
namespace {

constexpr int64_t kElements = int64_t{1} << 22;

std::vector<float> values() {
  std::vector<float> x(static_cast<size_t>(kElements));
  uint32_t state = 1;
  for (float& value : x) value = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f;
  return x;
}

int threads(const benchmark::State& state) { return static_cast<int>(state.range(0)); }
void report(benchmark::State& state) { state.SetItemsProcessed(state.iterations() * kElements); }

// Weights in 4 bits with scales in 8 bits.
template <class T>
void nf4(benchmark::State& state) {
  const std::vector<float> x = values();
  std::vector<float> absmax(static_cast<size_t>(nf4_blocks(0, kElements)));
  std::vector<float> absmax2(static_cast<size_t>(nf4_scale_groups(0, kElements)));
  std::vector<uint8_t> codes(static_cast<size_t>(nf4_code_bytes(kElements))), scale_codes(absmax.size());
  nf4_absmax(x.data(), kElements, absmax.data(), 2);
  nf4_quantise(x.data(), 0, kElements, absmax.data(), codes.data(), 2);
  const float offset =
      nf4_double_quantise(absmax.data(), static_cast<int64_t>(absmax.size()), scale_codes.data(), absmax2.data(), 1);
  const Nf4Run run{
      codes.data(), {.absmax_codes = scale_codes.data(), .absmax2 = absmax2.data(), .offset = offset}, 0, kElements};
  std::vector<T> out(static_cast<size_t>(kElements));
  for (auto _ : state) nf4_dequantise(run, 0, kElements, out.data(), threads(state));
  report(state);
}

template <class S>
void adamw_on(benchmark::State& state) {
  std::vector<float> param = values();
  const std::vector<float> grad = values();
  std::vector<S> m(param.size()), v(param.size());
  std::vector<float> m_absmax(param.size() / kOptimizerStateBlock), v_absmax = m_absmax;
  for (auto _ : state) {
    adamw_step(AdamW<float, S>{.param = param.data(),
                               .m = m.data(),
                               .v = v.data(),
                               .grad = grad.data(),
                               .n = kElements,
                               .lr = 1e-4,
                               .step = 10,
                               .num_threads = threads(state),
                               .m_absmax = m_absmax.data(),
                               .v_absmax = v_absmax.data()});
  }
  report(state);
}

void adamw_without_master(benchmark::State& state) {
  const std::vector<float> grad = values();
  std::vector<BFloat16> param(grad.size()), m(grad.size()), v(grad.size());
  for (auto _ : state) {
    adamw_step(AdamW<float, BFloat16>{.m = m.data(),
                                      .v = v.data(),
                                      .grad = grad.data(),
                                      .param_bf16 = param.data(),
                                      .n = kElements,
                                      .lr = 1e-4,
                                      .step = 10,
                                      .num_threads = threads(state),
                                      .rounding = {.seed = 1}});
  }
  report(state);
}

void fp8_cast(benchmark::State& state) {
  const std::vector<float> x = values();
  std::vector<uint8_t> codes(x.size());
  for (auto _ : state)
    fp8_quantise(x.data(), kElements, 300.0f, Fp8Format::kE4M3, Fp8Overflow::kSaturate, codes.data(), threads(state));
  report(state);
}

BENCHMARK(nf4<float>)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(nf4<BFloat16>)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(adamw_on<float>)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(adamw_on<BFloat16>)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(adamw_on<uint8_t>)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(adamw_without_master)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(fp8_cast)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace fivefold::kernels
