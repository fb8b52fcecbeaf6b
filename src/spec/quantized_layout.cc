#include "spec/quantized_layout.h"

#include <algorithm>

#include "base/integer.h"
#include "spec/tensor_split.h"

namespace fivefold {
namespace {

// Room for one packed piece of an entry (q, k or v; gate or up).
struct PieceRoom {
  int64_t codes = 0;   // bytes
  int64_t scales = 0;  // blocks
  int64_t second = 0;  // second-level blocks
};

PieceRoom piece_room(const ParameterEntry& entry, int64_t rows) {
  const int64_t cols = entry.cols(), whole_cols = entry.whole_cols();
  const auto blocks_of = [](int64_t elements, bool on_border) {
    return on_border ? div_ceil(elements, kFourBitBlock) : div_ceil(elements + kFourBitBlock - 1, kFourBitBlock);
  };
  const bool whole_rows = cols == whole_cols;
  PieceRoom room;
  if (whole_rows) {
    room.codes = div_ceil(rows * cols, int64_t{2});
    room.scales = blocks_of(rows * cols, whole_cols % kFourBitBlock == 0 || entry.shape == entry.whole_shape);
  } else {
    room.codes = rows * div_ceil(cols, int64_t{2});
    room.scales = rows * blocks_of(cols, whole_cols % kFourBitBlock == 0 && cols % kFourBitBlock == 0);
  }
  // Columns of all rows touch the second-level blocks of the whole piece, whose rows are then not cut.
  const int64_t blocks = whole_rows ? room.scales : div_ceil(rows * whole_cols, kFourBitBlock);
  const bool first_at_border = entry.shape == entry.whole_shape || !whole_rows;
  room.second = div_ceil(blocks + (first_at_border ? 0 : kFourBitScaleBlock - 1), kFourBitScaleBlock);
  return room;
}

struct Room {
  PieceRoom sum;
  std::vector<PieceRoom> before;  // by piece: of the pieces before it
};

Room room_of(const ParameterEntry& entry) {
  Room room;
  // A tensor on disk that packs several pieces is one run of blocks.
  const std::vector<int64_t> pieces =
      entry.parts.size() == entry.pieces.size() ? entry.pieces : std::vector<int64_t>{entry.rows()};
  for (const int64_t rows : pieces) {
    room.before.push_back(room.sum);
    const PieceRoom piece = piece_room(entry, rows);
    room.sum.codes += piece.codes;
    room.sum.scales += piece.scales;
    room.sum.second += piece.second;
  }
  return room;
}

// Where the parts of the entry begin, and its size.
FourBitLayout frame(const ParameterEntry& entry, const Room& room, bool double_quantization) {
  FourBitLayout layout;
  const int64_t scale = double_quantization ? 1 : 4;
  layout.scales_begin = round_up(room.sum.codes, kFourBitPartAlignment);
  layout.second_begin = round_up(layout.scales_begin + room.sum.scales * scale, kFourBitPartAlignment);
  layout.means_begin = layout.second_begin;
  layout.bytes = layout.second_begin;
  if (double_quantization) {
    layout.means_begin = round_up(layout.second_begin + room.sum.second * 4, kFourBitPartAlignment);
    layout.bytes = round_up(layout.means_begin + static_cast<int64_t>(entry.parts.size()) * 4, kFourBitPartAlignment);
  }
  return layout;
}

}  // namespace

int64_t four_bit_bytes(const ParameterEntry& entry, bool double_quantization) {
  return frame(entry, room_of(entry), double_quantization).bytes;
}

FourBitLayout four_bit_layout(const ParameterEntry& entry, bool double_quantization) {
  const Room room = room_of(entry);
  FourBitLayout layout = frame(entry, room, double_quantization);
  layout.second_offset.assign(entry.parts.size(), 0);
  layout.second_first.assign(entry.parts.size(), -1);
  const int64_t width = entry.whole_cols();
  int64_t codes = 0, scales = 0;
  int piece = -1;
  for (const ElementRun& whole_run : element_runs(entry, 0, entry.numel())) {
    for (size_t p = 0; p < entry.parts.size(); ++p) {
      const HubPart& part = entry.parts[p];
      const int64_t begin = part.row_begin * width, end = begin + part.rows * width;
      const int64_t first = std::max(whole_run.whole, begin), last = std::min(whole_run.whole + whole_run.count, end);
      if (first >= last) continue;
      if (static_cast<int>(p) != piece) {
        piece = static_cast<int>(p);
        codes = room.before[p].codes;
        scales = room.before[p].scales;
        layout.second_offset[p] = room.before[p].second;
      }
      FourBitRun run{.piece = piece,
                     .local = whole_run.local + first - whole_run.whole,
                     .first = first - begin,
                     .count = last - first,
                     .codes = codes,
                     .scales = scales};
      if (layout.second_first[p] < 0) layout.second_first[p] = run.first_block() / kFourBitScaleBlock;
      codes += div_ceil(run.count, int64_t{2});
      scales += run.num_blocks();
      layout.runs.push_back(run);
    }
  }
  return layout;
}

}  // namespace fivefold
