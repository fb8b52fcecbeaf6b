// Set-up of a TrainingExecutor: weights.
#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "engine/executor.h"
#include "kernels/elementwise.h"

namespace fivefold {
namespace {

// Elements [first, first + values.size()) of the whole parameter.
void draw(const ParameterEntry& entry, uint64_t seed, int64_t first, std::span<float> values) {
  const auto stream = random_stream(entry.name);
  switch (entry.initializer) {
    case Initializer::kRowLengths:  // afterwards
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

bool TrainingExecutor::has_magnitudes(int unit) const {
  const auto& operations = context_.operations[static_cast<size_t>(unit)].operations;
  return holds(unit) &&
         std::any_of(operations.begin(), operations.end(), [](const Operation& op) { return op.adapter.scales(); });
}

void TrainingExecutor::start_magnitudes(int unit) {
  Microbatch none;
  none.stream.resize(buffers_.size());
  none.slots.resize(buffers_.size());
  for (const auto& [parameter, lengths] : UnitRun(context_, buffers(unit), none, unit).row_lengths())
    set_local(unit, parameter, {elements<float>(lengths), static_cast<size_t>(lengths.numel())}, 0);
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
  if (own_begin < own_end && !frozen && options_.sharding.has_fp32_weights()) {
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
    visit_half(working, [&]<class T>(std::type_identity<T>) {
      kernels::convert(source, elements<T>(working) + (offset + from), to - from, context_.threads);
    });
  }
}

void TrainingExecutor::refresh_working_weights() {
  if (!options_.sharding.has_master()) return;
  for (const auto& unit_buffers : buffers_) {
    if (unit_buffers == nullptr || !unit_buffers->trained()) continue;
    const at::Tensor master = unit_buffers->master_shard(), working = unit_buffers->params_shard();
    visit_half(working, [&]<class T>(std::type_identity<T>) {
      kernels::convert(elements<float>(master), elements<T>(working), master.numel(), context_.threads);
    });
  }
}

}  // namespace fivefold
