// Set-up of a TrainingExecutor: RoPE tables and weights.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/philox.h"
#include "engine/executor.h"
#include "kernels/elementwise.h"
#include "spec/rope.h"

namespace fivefold {
namespace {

bool same_rope(const RopeSpec& a, const RopeSpec& b) {
  return a.theta == b.theta && a.rotary_dim == b.rotary_dim && a.scaling == b.scaling && a.factor == b.factor &&
         a.original_max_positions == b.original_max_positions && a.low_freq_factor == b.low_freq_factor &&
         a.high_freq_factor == b.high_freq_factor && a.beta_fast == b.beta_fast && a.beta_slow == b.beta_slow &&
         a.attention_factor == b.attention_factor && a.mscale == b.mscale && a.mscale_all_dim == b.mscale_all_dim &&
         a.truncate == b.truncate;
}

at::Tensor copied(Account account, std::span<const float> values, int64_t rows, int64_t cols) {
  at::Tensor tensor = allocate(account, {rows, cols}, DType::kFloat32);
  FIVEFOLD_CHECK(static_cast<int64_t>(values.size()) == tensor.numel());
  std::memcpy(tensor.data_ptr(), values.data(), tensor.nbytes());
  return tensor;
}

// Elements [first, first + values.size()) of the whole parameter.
void draw(const ParameterEntry& entry, uint64_t seed, int64_t first, std::span<float> values) {
  const auto stream = random_stream(entry.name);
  switch (entry.initializer) {
    case Initializer::kOnes:
      std::fill(values.begin(), values.end(), 1.0f);
      return;
    case Initializer::kZeros:
      std::fill(values.begin(), values.end(), 0.0f);
      return;
    case Initializer::kNormal:
      fill_normal(seed, stream, static_cast<uint64_t>(first), values);
      for (float& value : values) value *= static_cast<float>(entry.init_std);
      return;
    case Initializer::kUniform: {
      // Uniform in +-a has standard deviation a / sqrt(3).
      const auto bound = static_cast<float>(std::sqrt(3.0) * entry.init_std);
      fill_uniform(seed, stream, static_cast<uint64_t>(first), values);
      for (float& value : values) value = bound * (2 * value - 1);
      return;
    }
  }
}

}  // namespace

void TrainingExecutor::build_rope_tables(int64_t positions) {
  const std::vector<LayerSpec>& layers = context_.model->layers;
  std::vector<int64_t> rows(static_cast<size_t>(positions));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  context_.rope.resize(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].mixer.has_rope) continue;
    const RopeSpec& rope = layers[i].mixer.rope;
    const auto earlier =
        std::find_if(layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(i),
                     [&](const LayerSpec& l) { return l.mixer.has_rope && same_rope(l.mixer.rope, rope); });
    if (earlier != layers.begin() + static_cast<std::ptrdiff_t>(i)) {
      context_.rope[i] = context_.rope[static_cast<size_t>(earlier - layers.begin())];
      continue;
    }
    const RopeTable table = rope_table(rope, positions, rows);
    context_.rope[i] = {copied(Account::kData, table.cos, positions, rope.rotary_dim / 2),
                        copied(Account::kData, table.sin, positions, rope.rotary_dim / 2)};
  }
}

void TrainingExecutor::initialize_weights(uint64_t seed, Draw which) {
  // In portions, so that no rank holds a whole parameter beside its buffers; a parameter in 4 bits is quantised as a
  // whole.
  constexpr int64_t kPortion = int64_t{1} << 16;
  std::vector<float> values;
  for (int unit = 0; unit < inventory().num_units(); ++unit) {
    if (!holds(unit)) continue;
    const Unit& spec = inventory().units[static_cast<size_t>(unit)];
    for (size_t p = 0; p < spec.parameters.size(); ++p) {
      const ParameterEntry& entry = spec.parameters[p];
      if (which == Draw::kAdapters && !entry.trained()) continue;
      if (entry.storage == Storage::kFourBit) {
        values.resize(static_cast<size_t>(entry.whole_numel()));
        draw(entry, seed, 0, values);
        buffers(unit).quantize(static_cast<int>(p), values);
        continue;
      }
      for (const ElementRun& run : element_runs(entry, 0, entry.numel())) {
        for (int64_t done = 0; done < run.count; done += kPortion) {
          const int64_t count = std::min(kPortion, run.count - done);
          values.resize(static_cast<size_t>(count));
          draw(entry, seed, run.whole + done, values);
          set_local(unit, static_cast<int>(p), values, run.local + done);
        }
      }
    }
  }
}

void TrainingExecutor::set_parameter(int unit, int parameter, std::span<const float> values, int64_t begin) {
  const ParameterEntry& entry = buffers(unit).unit().parameters[static_cast<size_t>(parameter)];
  const int64_t end = begin + static_cast<int64_t>(values.size());
  FIVEFOLD_CHECK(begin >= 0 && end <= entry.whole_numel());
  if (entry.storage == Storage::kFourBit) {
    FIVEFOLD_CHECK(begin == 0 && end == entry.whole_numel(), entry.name + " is quantised as a whole");
    return buffers(unit).quantize(parameter, values);
  }
  for (const ElementRun& run : element_runs(entry, 0, entry.numel())) {
    const int64_t first = std::max(begin, run.whole), last = std::min(end, run.whole + run.count);
    if (first >= last) continue;
    set_local(unit, parameter, values.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(last - first)),
              run.local + first - run.whole);
  }
}

// Elements [begin, begin + values.size()) of what this rank's tensor group position holds of the parameter.
void TrainingExecutor::set_local(int unit, int parameter, std::span<const float> values, int64_t begin) {
  UnitBuffers& unit_buffers = buffers(unit);
  const ParameterEntry& entry = unit_buffers.unit().parameters[static_cast<size_t>(parameter)];
  const int64_t end = begin + static_cast<int64_t>(values.size());
  FIVEFOLD_CHECK(begin >= 0 && end <= entry.numel());
  const bool frozen = !entry.trained();
  const ShardRange own = unit_buffers.range(parameter);
  const int64_t own_begin = std::max(begin, own.begin), own_end = std::min(end, own.end);
  if (own_begin < own_end && !frozen) {
    float* master = elements<float>(unit_buffers.master_shard()) + (own.shard_offset + own_begin - own.begin);
    std::copy(values.begin() + (own_begin - begin), values.begin() + (own_end - begin), master);
  }
  // The working weights: in full below ZeRO-3, else the shard.
  const bool full = !options_.sharding.shards_params();
  const int64_t from = full ? begin : own_begin, to = full ? end : own_end;
  if (from >= to) return;
  const int64_t offset = full ? entry.offset : own.shard_offset - own.begin;
  const float* source = values.data() + (from - begin);
  const at::Tensor& working = frozen ? unit_buffers.frozen() : unit_buffers.params();
  if (context_.compute == DType::kFloat32) {
    std::copy(source, source + (to - from), elements<float>(working) + (offset + from));
  } else {
    kernels::convert(source, elements<kernels::BFloat16>(working) + (offset + from), to - from, context_.threads);
  }
}

void TrainingExecutor::refresh_working_weights() {
  if (!options_.sharding.has_master()) return;
  for (const auto& unit_buffers : buffers_) {
    if (unit_buffers == nullptr || !unit_buffers->trained()) continue;
    const at::Tensor master = unit_buffers->master_shard();
    kernels::convert(elements<float>(master), elements<kernels::BFloat16>(unit_buffers->params_shard()), master.numel(),
                     context_.threads);
  }
}

}  // namespace fivefold
