#include "engine/layers/rope_tables.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

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

at::Tensor copied(std::span<const float> values, int64_t rows, int64_t cols) {
  at::Tensor tensor = allocate(Account::kData, {rows, cols}, DType::kFloat32);
  FIVEFOLD_CHECK(static_cast<int64_t>(values.size()) == tensor.numel());
  std::memcpy(tensor.data_ptr(), values.data(), tensor.nbytes());
  return tensor;
}

}  // namespace

std::vector<RopeTables> rope_tables(const ModelSpec& model, int64_t positions) {
  const std::vector<LayerSpec>& layers = model.layers;
  std::vector<int64_t> rows(static_cast<size_t>(positions));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  std::vector<RopeTables> tables(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].mixer.has_rope) continue;
    const RopeSpec& rope = layers[i].mixer.rope;
    const auto earlier =
        std::find_if(layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(i),
                     [&](const LayerSpec& l) { return l.mixer.has_rope && same_rope(l.mixer.rope, rope); });
    if (earlier != layers.begin() + static_cast<std::ptrdiff_t>(i)) {
      tables[i] = tables[static_cast<size_t>(earlier - layers.begin())];
      continue;
    }
    const RopeTable table = rope_table(rope, positions, rows);
    tables[i] = {copied(table.cos, positions, rope.rotary_dim / 2), copied(table.sin, positions, rope.rotary_dim / 2)};
  }
  return tables;
}

}  // namespace fivefold
