#include "store/piece_coverage.h"

#include <algorithm>
#include <span>
#include <tuple>

namespace fivefold {
namespace {

std::string range_text(int64_t begin, int64_t end) {
  return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

std::string columns_text(const ColumnBlock& block) {
  return "columns " + range_text(block.first, block.first + block.count);
}

// Pieces by block, then by range. Of pieces that begin together all but the last are empty.
bool before(const Piece& a, const Piece& b) {
  const auto order = [](const Piece& p) { return std::tuple(p.block.first, p.block.count, p.begin, p.end); };
  return order(a) < order(b);
}

// Each block lies in the tensor, and all pieces have one or none has.
Status check_blocks(const StateTensor& tensor, const std::string& where) {
  for (const Piece& piece : tensor.pieces) {
    const std::string who = "piece " + range_text(piece.begin, piece.end) + " of " + piece.file;
    if (!tensor.block_numel(piece.block)) {
      // The sum of the two numbers may not fit, so they are printed as they are.
      const std::string block = " has a block of " + std::to_string(piece.block.count) + " columns from column " +
                                std::to_string(piece.block.first);
      if (tensor.shape.size() != 2)
        return Error{where,
                     who + block + ", but the tensor has " + std::to_string(tensor.shape.size()) + " dims, not 2", ""};
      return Error{where, who + block + ", which is not within the " + std::to_string(tensor.shape[1]) + " columns",
                   ""};
    }
    const Piece& first = tensor.pieces.front();
    if (piece.has_block() != first.has_block())
      return Error{where,
                   "piece " + first.text() + " of " + first.file + (first.has_block() ? " has a" : " has no") +
                       " column block, but piece " + piece.text() + " of " + piece.file +
                       (piece.has_block() ? " has one" : " has none"),
                   ""};
  }
  return Ok{};
}

// The ranges of one block, or of a tensor without blocks, hold its `elements` exactly once.
Status check_ranges(std::span<const Piece> pieces, const ColumnBlock& block, int64_t elements,
                    const std::string& where) {
  const bool has_block = block != ColumnBlock{};
  const auto missing = [&](int64_t begin, int64_t end) {
    return Error{
        where,
        "elements " + range_text(begin, end) + (has_block ? " of " + columns_text(block) : "") + " are in no piece",
        ""};
  };
  int64_t covered = 0;
  const Piece* previous = nullptr;
  for (const Piece& piece : pieces) {
    if (piece.begin < covered)
      return Error{where,
                   "piece " + piece.text() + " of " + piece.file + " overlaps piece " + previous->text() + " of " +
                       previous->file,
                   ""};
    if (piece.begin > covered) return missing(covered, piece.begin);
    covered = piece.end;
    previous = &piece;
  }
  if (covered > elements)
    return Error{where,
                 "piece " + previous->text() + " of " + previous->file + " reaches past " +
                     (has_block ? "the block's " : "its ") + std::to_string(elements) + " elements",
                 ""};
  if (covered < elements) return missing(covered, elements);
  return Ok{};
}

}  // namespace

Status order_and_check_pieces(StateTensor& tensor, const std::string& where) {
  FIVEFOLD_TRY(check_blocks(tensor, where));
  std::ranges::sort(tensor.pieces, before);
  const std::span<const Piece> all = tensor.pieces;
  if (all.empty() || !all.front().has_block()) return check_ranges(all, {}, tensor.numel(), where);
  const auto missing = [&](int64_t begin, int64_t end) {
    return Error{where, "columns " + range_text(begin, end) + " are in no block", ""};
  };
  int64_t covered = 0;  // columns
  for (auto piece = all.begin(); piece != all.end();) {
    const ColumnBlock block = piece->block;
    if (block.first < covered) {
      const Piece& previous = *std::prev(piece);
      return Error{where,
                   "piece " + piece->text() + " of " + piece->file + " overlaps the block of " +
                       columns_text(previous.block) + " in " + previous.file,
                   ""};
    }
    if (block.first > covered) return missing(covered, block.first);
    const auto end = std::find_if(piece, all.end(), [&](const Piece& other) { return other.block != block; });
    FIVEFOLD_TRY(check_ranges({piece, end}, block, *tensor.block_numel(block), where));
    covered = block.first + block.count;
    piece = end;
  }
  if (covered < tensor.shape[1]) return missing(covered, tensor.shape[1]);
  return Ok{};
}

}  // namespace fivefold
