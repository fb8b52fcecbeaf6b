// Weights in 4 bits of a unit's buffers: quantising and dequantising (Note [NF4 storage] in spec/quantized_layout.h).
#include <algorithm>
#include <cstring>

#include "base/integer.h"
#include "engine/unit_buffers.h"
#include "kernels/nf4.h"
#include "kernels/parallel.h"

namespace fivefold {
namespace {

// The scales of one run, in the bytes of its entry.
kernels::Nf4Scales scales_of(const FourBitLayout& layout, const FourBitRun& run, const std::byte* entry,
                             bool double_quantization) {
  const std::byte* scales = entry + layout.scales_begin;
  if (!double_quantization) return {.absmax = reinterpret_cast<const float*>(scales) + run.scales};
  const auto piece = static_cast<size_t>(run.piece);
  const int64_t group = run.first_block() / kFourBitScaleBlock - layout.second_first[piece];
  return {.absmax_codes = reinterpret_cast<const uint8_t*>(scales) + run.scales,
          .absmax2 = reinterpret_cast<const float*>(entry + layout.second_begin) + layout.second_offset[piece] + group,
          .offset = reinterpret_cast<const float*>(entry + layout.means_begin)[piece]};
}

// One tensor on disk: its blocks' scales, and with double quantisation these in 8 bits.
struct QuantizedTensor {
  std::vector<float> absmax, absmax2;
  std::vector<uint8_t> absmax_codes;
  float offset = 0;

  QuantizedTensor(std::span<const float> values, bool double_quantization) {
    const auto count = static_cast<int64_t>(values.size());
    absmax.resize(static_cast<size_t>(div_ceil(count, kFourBitBlock)));
    kernels::nf4_absmax(values.data(), count, absmax.data(), 1);
    if (!double_quantization) return;
    const auto blocks = static_cast<int64_t>(absmax.size());
    absmax_codes.resize(absmax.size());
    absmax2.resize(static_cast<size_t>(div_ceil(blocks, kFourBitScaleBlock)));
    offset = kernels::nf4_double_quantise(absmax.data(), blocks, absmax_codes.data(), absmax2.data(), 1);
  }
};

void write_run(const FourBitLayout& layout, const FourBitRun& run, const QuantizedTensor& tensor,
               std::span<const float> values, bool double_quantization, std::byte* entry) {
  const int64_t block = run.first_block(), blocks = run.num_blocks();
  kernels::nf4_quantise(values.data() + run.first, run.first, run.count, tensor.absmax.data() + block,
                        reinterpret_cast<uint8_t*>(entry) + run.codes, 1);
  std::byte* scales = entry + layout.scales_begin;
  if (!double_quantization) {
    std::copy_n(tensor.absmax.begin() + block, blocks, reinterpret_cast<float*>(scales) + run.scales);
    return;
  }
  std::copy_n(tensor.absmax_codes.begin() + block, blocks, reinterpret_cast<uint8_t*>(scales) + run.scales);
  const auto piece = static_cast<size_t>(run.piece);
  const int64_t first = block / kFourBitScaleBlock, last = (block + blocks - 1) / kFourBitScaleBlock;
  float* second = reinterpret_cast<float*>(entry + layout.second_begin) + layout.second_offset[piece];
  for (int64_t group = first; group <= last; ++group)
    second[group - layout.second_first[piece]] = tensor.absmax2[static_cast<size_t>(group)];
  reinterpret_cast<float*>(entry + layout.means_begin)[piece] = tensor.offset;
}

}  // namespace

void UnitBuffers::quantize(int index, std::span<const float> whole) {
  const ParameterEntry& entry = unit_->parameters[static_cast<size_t>(index)];
  const FourBitLayout& layout = layouts_[static_cast<size_t>(index)];
  FIVEFOLD_CHECK(static_cast<int64_t>(whole.size()) == entry.whole_numel(), entry.name);
  std::vector<std::byte> bytes(static_cast<size_t>(layout.bytes));
  for (size_t part = 0; part < entry.parts.size(); ++part) {
    const auto cols = static_cast<size_t>(entry.whole_cols());
    const auto values = whole.subspan(static_cast<size_t>(entry.parts[part].row_begin) * cols,
                                      static_cast<size_t>(entry.parts[part].rows) * cols);
    const QuantizedTensor tensor(values, policy_.double_quantization);
    for (const FourBitRun& run : layout.runs)
      if (run.piece == static_cast<int>(part))
        write_run(layout, run, tensor, values, policy_.double_quantization, bytes.data());
  }
  // The shard's part of these bytes.
  const int64_t first = policy_.shards_params() ? four_bit_.numel() * shard_ : 0, last = first + four_bit_.numel();
  const int64_t begin = std::max(first, entry.offset), end = std::min(last, entry.offset + layout.bytes);
  if (begin < end)
    std::memcpy(static_cast<std::byte*>(four_bit_.data_ptr()) + (begin - first), bytes.data() + (begin - entry.offset),
                static_cast<size_t>(end - begin));
}

void UnitBuffers::dequantize(int index, at::Tensor& out, int threads) const {
  const ParameterEntry& entry = unit_->parameters[static_cast<size_t>(index)];
  const FourBitLayout& layout = layouts_[static_cast<size_t>(index)];
  const at::Tensor& whole = policy_.shards_params() ? unsharded_four_bit_ : four_bit_;
  FIVEFOLD_CHECK(whole.defined() && out.numel() == entry.numel(), unit_->name + " is not gathered");
  const auto* bytes = static_cast<const std::byte*>(whole.data_ptr()) + entry.offset;
  int64_t covered = 0;
  for (const FourBitRun& run : layout.runs) covered += run.count;
  if (covered < entry.numel()) std::memset(out.data_ptr(), 0, out.nbytes());  // padding of tensor parallelism
  visit_dtype(out, [&]<class T>(std::type_identity<T>) {
    T* to = elements<T>(out);
    const auto run_of = [&](const FourBitRun& run, int run_threads) {
      const kernels::Nf4Run codes{.codes = reinterpret_cast<const uint8_t*>(bytes) + run.codes,
                                  .scales = scales_of(layout, run, bytes, policy_.double_quantization),
                                  .first = run.first,
                                  .count = run.count};
      kernels::nf4_dequantise(codes, 0, run.count, to + run.local, run_threads);
    };
    // Few long runs are cut among the threads; many short ones, rows of a row linear's columns, are dealt to them.
    constexpr size_t kFewRuns = 8;
    if (layout.runs.size() <= kFewRuns) {
      for (const FourBitRun& run : layout.runs) run_of(run, threads);
      return;
    }
    kernels::for_each_block(static_cast<int64_t>(layout.runs.size()), 16, threads,
                            [&](int64_t, int64_t begin, int64_t end) {
                              for (int64_t i = begin; i < end; ++i) run_of(layout.runs[static_cast<size_t>(i)], 1);
                            });
  });
}

}  // namespace fivefold
