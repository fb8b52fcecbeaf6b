#include "spec/tensor_split.h"

#include <algorithm>

#include "base/integer.h"

namespace fivefold {
namespace {

// The blocks of the whole parameter that rank `split.rank` holds in `local`.
std::vector<ParameterSlice> slices_of(const ParameterEntry& whole, const ParameterEntry& local,
                                      const TensorSplit& split) {
  FIVEFOLD_CHECK(whole.pieces.size() == local.pieces.size(), whole.name);
  std::vector<ParameterSlice> slices;
  int64_t local_row = 0, whole_row = 0;
  for (size_t i = 0; i < whole.pieces.size(); ++i) {
    const int64_t rows = whole.pieces[i], own = local.pieces[i];
    ParameterSlice slice{.row = local_row, .rows = rows, .whole_row = whole_row, .cols = whole.cols()};
    switch (whole.split) {
      case Split::kReplicated:
        slice.holders = split.size;
        slice.holder = split.rank;
        break;
      case Split::kColumn:
      case Split::kVocabulary: {
        const int64_t begin = std::min(rows, split.rank * own);
        slice.rows = std::min(own, rows - begin);
        slice.whole_row += begin;
        break;
      }
      case Split::kHeads:
        slice.holders = static_cast<int>(div_exact(own * split.size, rows));
        slice.holder = split.rank % slice.holders;
        slice.rows = own;
        slice.whole_row += split.rank / slice.holders * own;
        break;
      case Split::kRow: {
        const int64_t begin = std::min(whole.cols(), split.rank * local.cols());
        slice.cols = std::min(local.cols(), whole.cols() - begin);
        slice.whole_col = begin;
        break;
      }
    }
    if (slice.rows > 0 && slice.cols > 0) slices.push_back(slice);
    local_row += own;
    whole_row += rows;
  }
  return slices;
}

void add_range(std::vector<PartialRange>& ranges, int64_t begin, int64_t end) {
  if (!ranges.empty() && ranges.back().end == begin) {
    ranges.back().end = end;
  } else if (begin < end) {
    ranges.push_back({begin, end});
  }
}

}  // namespace

ModelSpec split_model(const ModelSpec& whole, int64_t degree) {
  ModelSpec model = whole;
  if (degree == 1) return model;
  model.vocab = div_ceil(whole.vocab, degree);
  for (LayerSpec& layer : model.layers) {
    MixerSpec& mixer = layer.mixer;
    if (mixer.kind == MixerKind::kAttention || mixer.kind == MixerKind::kLatentAttention) {
      mixer.num_heads = div_exact(mixer.num_heads, degree);
      if (mixer.num_kv_heads > 0)
        mixer.num_kv_heads = mixer.num_kv_heads >= degree ? div_exact(mixer.num_kv_heads, degree) : 1;
    }
    if (mixer.kind == MixerKind::kLinearAttention) {
      mixer.linear_key_heads = div_exact(mixer.linear_key_heads, degree);
      mixer.linear_value_heads = div_exact(mixer.linear_value_heads, degree);
    }
    if (mixer.kind == MixerKind::kMamba2) {
      mixer.ssm_heads = div_exact(mixer.ssm_heads, degree);
      mixer.ssm_groups = mixer.ssm_groups >= degree ? div_exact(mixer.ssm_groups, degree) : 1;
    }
    layer.mlp.ffn = div_ceil(layer.mlp.ffn, degree);
    layer.mlp.shared_ffn = div_ceil(layer.mlp.shared_ffn, degree);
  }
  return model;
}

Unit split_unit(const ModelSpec& whole, const Inventory& inventory, int unit, const TensorSplit& split) {
  FIVEFOLD_CHECK(0 <= split.rank && split.rank < split.size);
  const Unit& full = inventory.units[static_cast<size_t>(unit)];
  if (split.size == 1) return full;
  Unit own = build_unit(split_model(whole, split.size), unit);
  for (size_t p = 0; p < own.parameters.size(); ++p) {
    const ParameterEntry& entry = full.parameters[p];
    ParameterEntry& part = own.parameters[p];
    part.slices = slices_of(entry, part, split);
    part.whole_shape = entry.shape;
    part.parts = entry.parts;
    part.init_std = entry.init_std;
  }
  lay_out(own, whole.adapter && whole.adapter->double_quantization);
  return own;
}

Inventory split_inventory(const ModelSpec& whole, const TensorSplit& split) {
  Inventory inventory = build_inventory(whole);
  for (int unit = 0; unit < inventory.num_units() && split.size > 1; ++unit)
    inventory.units[static_cast<size_t>(unit)] = split_unit(whole, inventory, unit, split);
  return inventory;
}

int kv_holders(const ModelSpec& whole, int degree) {
  int64_t fewest = degree;
  for (const LayerSpec& layer : whole.layers)
    if (layer.mixer.kind == MixerKind::kAttention) fewest = std::min(fewest, layer.mixer.num_kv_heads);
  return static_cast<int>(div_exact(degree, fewest));
}

std::vector<ElementRun> element_runs(const ParameterEntry& entry, int64_t begin, int64_t end) {
  std::vector<ElementRun> runs;
  const int64_t width = entry.cols(), whole_width = entry.whole_cols();
  const auto add = [&](int64_t local, int64_t whole, int64_t count) {
    const int64_t first = std::max(local, begin), last = std::min(local + count, end);
    if (first < last) runs.push_back({first, whole + first - local, last - first});
  };
  for (const ParameterSlice& slice : entry.slices) {
    if (slice.cols == width && slice.cols == whole_width) {
      add(slice.row * width, slice.whole_row * width, slice.rows * width);
      continue;
    }
    const int64_t first = std::clamp(div_floor(begin, width), slice.row, slice.row + slice.rows);
    const int64_t last = std::clamp(div_ceil(end, width), slice.row, slice.row + slice.rows);
    for (int64_t row = first; row < last; ++row)
      add(row * width, (slice.whole_row + row - slice.row) * whole_width + slice.whole_col, slice.cols);
  }
  return runs;
}

std::vector<PartialRange> partial_gradients(const Unit& unit, const TensorSplit& split, PartialOver over) {
  std::vector<PartialRange> ranges;
  if (over == PartialOver::kTiedEnds) {
    if (unit.kind == UnitKind::kEmbedding && unit.parameters[0].trained())
      add_range(ranges, 0, unit.parameters[0].numel());
    return ranges;
  }
  if (split.size == 1) return ranges;
  for (const ParameterEntry& entry : unit.parameters) {
    if (!entry.trained()) continue;
    if (over == PartialOver::kTensorGroup) {
      const bool partial = entry.split == Split::kReplicated &&
                           (entry.replicated_grad == ReplicatedGrad::kPartial ||
                            (entry.replicated_grad == ReplicatedGrad::kPartialOfSequence && split.sequence_parallel));
      if (partial) add_range(ranges, entry.offset, entry.offset + entry.numel());
      continue;
    }
    if (entry.split != Split::kHeads) continue;
    for (const ParameterSlice& slice : entry.slices)
      if (slice.holders > 1)
        add_range(ranges, entry.offset + slice.row * entry.cols(),
                  entry.offset + (slice.row + slice.rows) * entry.cols());
  }
  return ranges;
}

std::vector<PartialRange> counted_in_norm(const Unit& unit) {
  std::vector<PartialRange> ranges;
  int64_t begin = 0;
  for (const ParameterEntry& entry : unit.parameters) {
    if (!entry.trained()) continue;
    for (const ParameterSlice& slice : entry.slices) {
      if (slice.holder == 0) continue;
      add_range(ranges, begin, entry.offset + slice.row * entry.cols());
      begin = entry.offset + (slice.row + slice.rows) * entry.cols();
    }
  }
  add_range(ranges, begin, unit.aligned_numel);
  return ranges;
}

}  // namespace fivefold
