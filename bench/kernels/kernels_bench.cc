// Bytes per second of each kernel at the shapes of a 32 M parameter model, beside a copy of the same size.
//
// Bytes counted are those that the kernel must read and write once: what it finds again in a cache is not counted.
// Arguments: number of threads. The copy (`memcpy` on as many threads) is the bandwidth to hold the others against.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/column_sum.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/instruction_set.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/qk_norm.h"
#include "kernels/rope.h"

namespace fivefold::kernels {
namespace {

constexpr int64_t kTokens = 4096;
constexpr int64_t kHidden = 512;
constexpr int64_t kFfn = 1536;
constexpr int64_t kHeads = 8;
constexpr int64_t kKvHeads = 4;
constexpr int64_t kHeadDim = 64;
constexpr int64_t kPackedRow = (kHeads + 2 * kKvHeads) * kHeadDim;
constexpr int64_t kVocab = 16384;
constexpr int64_t kLogitRows = 512;
constexpr int64_t kParams = 8 << 20;

template <class T>
std::vector<T> elements(int64_t n) {
  std::vector<T> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = from_float<T>(static_cast<float>(i * 2654435761u % 1000) * 0.002f - 1.0f);
  }
  return values;
}

std::vector<int32_t> indices(int64_t n, int64_t limit) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<int32_t>(i * 2654435761u % static_cast<size_t>(limit));
  return values;
}

void report(benchmark::State& state, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
  state.SetLabel(std::string(instruction_set()));
}

int threads(const benchmark::State& state) { return static_cast<int>(state.range(0)); }

void copy(benchmark::State& state) {
  std::vector<char> from(kTokens * kFfn * 4, 1), to(from.size());
  const int64_t bytes = static_cast<int64_t>(from.size());
  for (auto _ : state) {
    // Blocks as fill_zero's; the kernels have no copy of their own.
#pragma omp parallel for num_threads(threads(state))
    for (int64_t begin = 0; begin < bytes; begin += 1 << 18) {
      std::memcpy(to.data() + begin, from.data() + begin,
                  static_cast<size_t>(std::min<int64_t>(1 << 18, bytes - begin)));
    }
    benchmark::ClobberMemory();
  }
  report(state, 2 * bytes);
}

template <class T>
void rms_norm_forward(benchmark::State& state) {
  const auto x = elements<T>(kTokens * kHidden), weight = elements<T>(kHidden);
  auto y = x;
  std::vector<float> rstd(kTokens);
  for (auto _ : state) {
    kernels::rms_norm_forward<T>({.x = x.data(),
                                  .weight = weight.data(),
                                  .y = y.data(),
                                  .rstd = rstd.data(),
                                  .rows = kTokens,
                                  .cols = kHidden,
                                  .eps = 1e-5f,
                                  .num_threads = threads(state)});
  }
  report(state, 2 * kTokens * kHidden * int64_t{sizeof(T)});
}

template <class T>
void rms_norm_backward(benchmark::State& state) {
  const auto x = elements<T>(kTokens * kHidden), weight = elements<T>(kHidden), dy = x;
  auto dx = x, y = x;
  const std::vector<float> rstd(kTokens, 1.0f);
  std::vector<float> dw(kHidden);
  std::vector<float> scratch(static_cast<size_t>(rms_norm_backward_scratch_bytes(kTokens, kHidden)) / sizeof(float));
  for (auto _ : state) {
    kernels::rms_norm_backward<T>({.x = x.data(),
                                   .weight = weight.data(),
                                   .rstd = rstd.data(),
                                   .dy = dy.data(),
                                   .dx = dx.data(),
                                   .dx_mode = Accumulate::kOverwrite,
                                   .y = y.data(),
                                   .weight_grad = overwrite(dw.data()),
                                   .scratch = scratch.data(),
                                   .rows = kTokens,
                                   .cols = kHidden,
                                   .num_threads = threads(state)});
  }
  report(state, 4 * kTokens * kHidden * int64_t{sizeof(T)});
}

template <class T>
void layer_norm_forward(benchmark::State& state) {
  const auto x = elements<T>(kTokens * kHidden), weight = elements<T>(kHidden);
  auto y = x;
  std::vector<float> mean(kTokens), rstd(kTokens);
  for (auto _ : state) {
    kernels::layer_norm_forward<T>({.x = x.data(),
                                    .weight = weight.data(),
                                    .bias = weight.data(),
                                    .y = y.data(),
                                    .mean = mean.data(),
                                    .rstd = rstd.data(),
                                    .rows = kTokens,
                                    .cols = kHidden,
                                    .eps = 1e-5f,
                                    .num_threads = threads(state)});
  }
  report(state, 2 * kTokens * kHidden * int64_t{sizeof(T)});
}

template <class T>
void qk_norm_forward(benchmark::State& state) {
  auto qkv = elements<T>(kTokens * kPackedRow);
  const auto weight = std::vector<T>(kHeadDim, from_float<T>(1.0f));
  std::vector<T> pre_norm(static_cast<size_t>(kTokens * (kHeads + kKvHeads) * kHeadDim));
  std::vector<float> rstd(kTokens * (kHeads + kKvHeads));
  for (auto _ : state) {
    kernels::qk_norm_forward<T>({.qkv = qkv.data(),
                                 .q_weight = weight.data(),
                                 .k_weight = weight.data(),
                                 .pre_norm = pre_norm.data(),
                                 .rstd = rstd.data(),
                                 .rows = kTokens,
                                 .row_stride = kPackedRow,
                                 .num_q_heads = kHeads,
                                 .num_kv_heads = kKvHeads,
                                 .head_dim = kHeadDim,
                                 .eps = 1e-5f,
                                 .num_threads = threads(state)});
  }
  report(state, 3 * static_cast<int64_t>(pre_norm.size() * sizeof(T)));
}

template <class T>
void rope(benchmark::State& state) {
  auto packed = elements<T>(kTokens * kPackedRow);
  const std::vector<float> cos_table(kTokens * kHeadDim / 2, 0.6f), sin_table(kTokens * kHeadDim / 2, 0.8f);
  const std::vector<int32_t> positions = indices(kTokens, kTokens);
  for (auto _ : state) {
    kernels::rope<T>({.packed = packed.data(),
                      .cos_table = cos_table.data(),
                      .sin_table = sin_table.data(),
                      .positions = positions.data(),
                      .rows = kTokens,
                      .row_stride = kPackedRow,
                      .num_heads = kHeads + kKvHeads,
                      .head_dim = kHeadDim,
                      .rotary_dim = kHeadDim,
                      .num_threads = threads(state)});
  }
  report(state, kTokens * ((kHeads + kKvHeads) * kHeadDim * 2 * int64_t{sizeof(T)} + kHeadDim * 4));
}

template <class T>
void swiglu_forward(benchmark::State& state) {
  const auto gate_up = elements<T>(kTokens * 2 * kFfn);
  std::vector<T> act(kTokens * kFfn);
  for (auto _ : state) kernels::swiglu_forward(gate_up.data(), act.data(), kTokens, kFfn, threads(state));
  report(state, 3 * kTokens * kFfn * int64_t{sizeof(T)});
}

template <class T>
void swiglu_backward(benchmark::State& state) {
  auto gate_up = elements<T>(kTokens * 2 * kFfn), dact = elements<T>(kTokens * kFfn);
  for (auto _ : state) {
    kernels::swiglu_backward(gate_up.data(), dact.data(), kTokens, kFfn, threads(state));
  }
  report(state, 6 * kTokens * kFfn * int64_t{sizeof(T)});
}

template <class T>
void gelu_tanh_forward(benchmark::State& state) {
  const auto x = elements<T>(kTokens * kFfn);
  auto y = x;
  for (auto _ : state) {
    activation_forward(Activation::kGeluTanh, x.data(), y.data(), kTokens * kFfn, threads(state));
  }
  report(state, 2 * kTokens * kFfn * int64_t{sizeof(T)});
}

template <class T>
void column_sum(benchmark::State& state) {
  const auto x = elements<T>(kTokens * kFfn);
  std::vector<float> sum(kFfn);
  std::vector<float> scratch(static_cast<size_t>(column_sum_scratch_bytes(kTokens, kFfn)) / sizeof(float));
  for (auto _ : state) {
    kernels::column_sum(x.data(), kTokens, kFfn, overwrite(sum.data()), scratch.data(), threads(state));
  }
  report(state, kTokens * kFfn * int64_t{sizeof(T)});
}

template <class T>
void embedding_backward(benchmark::State& state) {
  const auto dout = elements<T>(kTokens * kHidden);
  const std::vector<int32_t> ids = indices(kTokens, kVocab);
  std::vector<T> grad(kVocab * kHidden);
  std::vector<int32_t> scratch(static_cast<size_t>(embedding_backward_scratch_bytes(kTokens, kVocab)) / 4);
  for (auto _ : state) {
    kernels::embedding_backward<T>({.dout = dout.data(),
                                    .ids = ids.data(),
                                    .table_grad = overwrite(grad.data()),
                                    .table_rows = kVocab,
                                    .rows = kTokens,
                                    .cols = kHidden,
                                    .scratch = scratch.data(),
                                    .num_threads = threads(state)});
  }
  report(state, (kTokens + kVocab) * kHidden * int64_t{sizeof(T)});
}

template <class T>
void cross_entropy(benchmark::State& state) {
  auto logits = elements<T>(kLogitRows * kVocab);
  const std::vector<int32_t> targets = indices(kLogitRows, kVocab);
  std::vector<float> losses(kLogitRows);
  for (auto _ : state) {
    cross_entropy_forward_backward<T>({.logits = logits.data(),
                                       .targets = targets.data(),
                                       .losses = losses.data(),
                                       .rows = kLogitRows,
                                       .vocab = kVocab,
                                       .row_stride = kVocab,
                                       .num_threads = threads(state)},
                                      1.0f / kLogitRows);
  }
  report(state, 2 * kLogitRows * kVocab * int64_t{sizeof(T)});
}

template <class G>
void adamw(benchmark::State& state) {
  auto param = elements<float>(kParams), m = param, v = std::vector<float>(kParams, 0.01f);
  const auto grad = elements<G>(kParams);
  std::vector<BFloat16> working(kParams);
  for (auto _ : state) {
    adamw_step<G>({.param = param.data(),
                   .m = m.data(),
                   .v = v.data(),
                   .grad = grad.data(),
                   .param_bf16 = working.data(),
                   .n = kParams,
                   .lr = 1e-4,
                   .step = 10,
                   .num_threads = threads(state)});
  }
  report(state, kParams * (24 + 2 + int64_t{sizeof(G)}));
}

template <class T>
void squares(benchmark::State& state) {
  const auto x = elements<T>(kParams);
  std::vector<double> scratch(static_cast<size_t>(sum_of_squares_scratch_bytes(kParams)) / sizeof(double));
  for (auto _ : state) {
    benchmark::DoNotOptimize(sum_of_squares(x.data(), kParams, scratch.data(), threads(state)));
  }
  report(state, kParams * int64_t{sizeof(T)});
}

void narrow(benchmark::State& state) {
  const auto from = elements<float>(kParams);
  std::vector<BFloat16> to(kParams);
  for (auto _ : state) convert(from.data(), to.data(), kParams, threads(state));
  report(state, kParams * 6);
}

#define FIVEFOLD_BENCH(name)                             \
  BENCHMARK(name<float>)->Arg(1)->Arg(2)->UseRealTime(); \
  BENCHMARK(name<BFloat16>)->Arg(1)->Arg(2)->UseRealTime()

BENCHMARK(copy)->Arg(1)->Arg(2)->UseRealTime();
FIVEFOLD_BENCH(rms_norm_forward);
FIVEFOLD_BENCH(rms_norm_backward);
FIVEFOLD_BENCH(layer_norm_forward);
FIVEFOLD_BENCH(qk_norm_forward);
FIVEFOLD_BENCH(rope);
FIVEFOLD_BENCH(swiglu_forward);
FIVEFOLD_BENCH(swiglu_backward);
FIVEFOLD_BENCH(gelu_tanh_forward);
FIVEFOLD_BENCH(column_sum);
FIVEFOLD_BENCH(embedding_backward);
FIVEFOLD_BENCH(cross_entropy);
FIVEFOLD_BENCH(adamw);
FIVEFOLD_BENCH(squares);
BENCHMARK(narrow)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace fivefold::kernels
