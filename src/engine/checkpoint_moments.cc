#include "engine/checkpoint_moments.h"

#include <algorithm>

#include "base/integer.h"
#include "kernels/dynamic_map.h"

namespace fivefold {
namespace {

// Multiple of the blocks: what is read at a time, so that nothing as large as a parameter lies beside it.
constexpr int64_t kPortion = kStateBlock * 256;

std::string codes_kind(const std::string& kind) { return kind + ".codes"; }
std::string scales_kind(const std::string& kind) { return kind + ".scales"; }

// The parameter as its holder names it: its blocks are those of the whole one, or its own.
std::string block_name(const ParameterEntry& entry, const TensorSplit& split) {
  if (entry.shape == entry.whole_shape) return entry.name;
  return entry.name + "@tp" + std::to_string(split.size) + "." + std::to_string(split.rank);
}

std::span<const std::byte> bytes_of(const void* data, int64_t offset, int64_t size) {
  return {static_cast<const std::byte*>(data) + offset, static_cast<size_t>(size)};
}

kernels::DynamicMapKind map_of(const std::string& kind) {
  return kind == "moment2" ? kernels::DynamicMapKind::kUnsigned : kernels::DynamicMapKind::kSigned;
}

// Reads a moment by elements of the whole parameter, out of any of the forms.
class MomentSource {
 public:
  MomentSource(const MomentRestore& from, const std::string& kind, int unit, int parameter, const std::string& name)
      : reader_(from.reader), kind_(kind), name_(name) {
    for (int size = 2; !has(kind, name) && !has(codes_kind(kind), name) && size <= kMostRanks; ++size) {
      if (!has(codes_kind(kind), name + "@tp" + std::to_string(size) + ".0")) continue;
      for (int rank = 0; rank < size; ++rank) {
        const TensorSplit split{.size = size, .rank = rank};
        const Unit held = split_unit(from.whole_model, from.whole_inventory, unit, split);
        const ParameterEntry& entry = held.parameters[static_cast<size_t>(parameter)];
        parts_.push_back({block_name(entry, split), element_runs(entry, 0, entry.numel())});
      }
      return;
    }
  }

  Status read(int64_t begin, int64_t end, std::span<float> out) {
    if (has(kind_, name_)) return reader_.read_floats({kind_, name_}, begin, end, out);
    if (parts_.empty()) return read_codes(name_, begin, end, out);
    for (const Part& part : parts_) {
      for (const ElementRun& run : part.runs) {
        const int64_t first = std::max(begin, run.whole), last = std::min(end, run.whole + run.count);
        if (first >= last) continue;
        FIVEFOLD_TRY(read_codes(part.name, run.local + first - run.whole, run.local + last - run.whole,
                                out.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(last - first))));
      }
    }
    return Ok{};
  }

 private:
  static constexpr int kMostRanks = 1024;
  struct Part {
    std::string name;
    std::vector<ElementRun> runs;
  };

  bool has(const std::string& kind, const std::string& name) const { return reader_.tensors().contains({kind, name}); }

  Status read_codes(const std::string& name, int64_t begin, int64_t end, std::span<float> out) {
    const int64_t first = div_floor(begin, kStateBlock), last = div_ceil(end, kStateBlock);
    codes_.resize(out.size());
    scales_.resize(static_cast<size_t>(last - first));
    FIVEFOLD_TRY(
        reader_.read({codes_kind(kind_), name}, DType::kUint8, begin, end, std::as_writable_bytes(std::span(codes_))));
    FIVEFOLD_TRY(reader_.read({scales_kind(kind_), name}, DType::kFloat32, first, last,
                              std::as_writable_bytes(std::span(scales_))));
    for (int64_t at = begin; at < end;) {
      const int64_t block = div_floor(at, kStateBlock), next = std::min(end, (block + 1) * kStateBlock);
      kernels::dynamic_dequantise(map_of(kind_), codes_.data() + (at - begin), scales_.data() + (block - first),
                                  next - at, kStateBlock, out.data() + (at - begin), 1);
      at = next;
    }
    return Ok{};
  }

  CheckpointReader& reader_;
  std::string kind_, name_;
  std::vector<Part> parts_;  // of a checkpoint whose tensor group had blocks of its own
  std::vector<uint8_t> codes_;
  std::vector<float> scales_;
};

}  // namespace

// Range by range of the slices: rows in full are a range of the whole parameter, columns a range of a column block. Of
// the holders of a slice the first writes.
void add_pieces(const std::string& kind, DType dtype, const void* data, const ParameterEntry& entry,
                const ShardRange& range, std::vector<StatePiece>& pieces) {
  const int64_t width = entry.cols(), size = dtype_bytes(dtype);
  for (const ParameterSlice& slice : entry.slices) {
    if (slice.holder > 0) continue;
    const bool whole_rows = slice.cols == entry.whole_cols();
    // Columns of padding lie between the rows: then a row is a piece. Else the slice is contiguous.
    const bool contiguous = slice.cols == width;
    const int64_t step = contiguous ? slice.rows : 1;
    for (int64_t row = 0; row < slice.rows; row += step) {
      const int64_t first = (slice.row + row) * width, count = step * slice.cols;
      const int64_t begin = std::max(first, range.begin), end = std::min(first + count, range.end);
      if (begin >= end) continue;
      const int64_t offset = (whole_rows ? slice.whole_row + row : row) * slice.cols - first;
      pieces.push_back({.key = {kind, entry.name},
                        .dtype = dtype,
                        .shape = entry.whole_shape,
                        .begin = begin + offset,
                        .end = end + offset,
                        .bytes = bytes_of(data, (begin - range.begin) * size, (end - begin) * size),
                        .block = whole_rows ? ColumnBlock{} : ColumnBlock{slice.whole_col, slice.cols}});
    }
  }
}

void add_moment_pieces(const std::string& kind, const MomentBuffer& moment, int parameter, const ParameterEntry& entry,
                       const ShardRange& range, const TensorSplit& split, std::vector<StatePiece>& pieces) {
  if (range.begin == range.end) return;
  switch (moment.kind(parameter)) {
    case OptimizerStateKind::kFp32:
      return add_pieces(kind, DType::kFloat32, moment.fp32(parameter), entry, range, pieces);
    case OptimizerStateKind::kBf16:
      return add_pieces(kind, DType::kBFloat16, moment.bf16(parameter), entry, range, pieces);
    case OptimizerStateKind::k8Bit:
      break;
  }
  // A replicated parameter: its first holder writes.
  if (entry.shape == entry.whole_shape && entry.slices.front().holder > 0) return;
  const std::string name = block_name(entry, split);
  const int64_t first = div_exact(range.begin, kStateBlock), last = div_ceil(range.end, kStateBlock);
  pieces.push_back({.key = {codes_kind(kind), name},
                    .dtype = DType::kUint8,
                    .shape = entry.shape,
                    .begin = range.begin,
                    .end = range.end,
                    .bytes = bytes_of(moment.codes(parameter), 0, range.end - range.begin)});
  pieces.push_back({.key = {scales_kind(kind), name},
                    .dtype = DType::kFloat32,
                    .shape = {div_ceil(entry.numel(), kStateBlock)},
                    .begin = first,
                    .end = last,
                    .bytes = bytes_of(moment.scales(parameter), 0, 4 * (last - first))});
}

Status restore_moment(const MomentRestore& from, const std::string& kind, int unit, int parameter,
                      const ParameterEntry& entry, const ShardRange& range, MomentBuffer& moment) {
  const int64_t count = range.end - range.begin;
  if (count == 0) return Ok{};
  const StateKey codes{codes_kind(kind), block_name(entry, from.split)};
  if (moment.kind(parameter) == OptimizerStateKind::k8Bit && from.reader.tensors().contains(codes)) {
    const int64_t first = div_exact(range.begin, kStateBlock), last = div_ceil(range.end, kStateBlock);
    FIVEFOLD_TRY(
        from.reader.read(codes, DType::kUint8, range.begin, range.end,
                         std::as_writable_bytes(std::span(moment.codes(parameter), static_cast<size_t>(count)))));
    return from.reader.read(
        {scales_kind(kind), codes.tensor}, DType::kFloat32, first, last,
        std::as_writable_bytes(std::span(moment.scales(parameter), static_cast<size_t>(last - first))));
  }
  MomentSource source(from, kind, unit, parameter, entry.name);
  std::vector<float> values;
  for (int64_t begin = range.begin; begin < range.end; begin += kPortion) {
    const int64_t end = std::min(begin + kPortion, range.end);
    values.assign(static_cast<size_t>(end - begin), 0.0f);  // what no run covers is padding
    for (const ElementRun& run : element_runs(entry, begin, end))
      FIVEFOLD_TRY(source.read(
          run.whole, run.whole + run.count,
          std::span(values).subspan(static_cast<size_t>(run.local - begin), static_cast<size_t>(run.count))));
    moment.write(parameter, begin - range.begin, values);
  }
  return Ok{};
}

Status check_moment(const CheckpointReader& reader, const std::string& kind, const ParameterEntry& entry) {
  const std::string where = reader.folder().string() + ": " + kind + "/" + entry.name;
  for (const std::string& form : {kind, codes_kind(kind)}) {
    const auto found = reader.tensors().find({form, entry.name});
    if (found == reader.tensors().end()) continue;
    if (found->second.shape == entry.shape) return Ok{};
    return Error{where, "has another shape than the model's", "use the model that the checkpoint was written with"};
  }
  const auto cut = reader.tensors().lower_bound({codes_kind(kind), entry.name + "@tp"});
  if (cut != reader.tensors().end() && cut->first.kind == codes_kind(kind) &&
      cut->first.tensor.starts_with(entry.name + "@tp"))
    return Ok{};
  return Error{where, "is not in the checkpoint", "the run that wrote it had another model or optimizer"};
}

}  // namespace fivefold
