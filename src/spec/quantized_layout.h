// FourBitLayout: where codes and scales of a 4-bit (NF4) matrix lie in a unit's buffer of bytes. The planner sums its
// bytes, the engine quantises into it and reads from it. Pure functions, thread-safe.
//
// Note [NF4 storage]
//   QLoRA's NF4 (Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023): each tensor on disk is
//   flattened row by row and cut into blocks of 64; a block has a scale, the largest absolute value. With double
//   quantisation the scales less their mean are cut into blocks of 256 and stored in 8 bits, with an fp32 scale for
//   each block and the mean. Blocks are counted from the start of the tensor on disk, whatever part of it a rank holds:
//   every layout has the same codes, and so the same weights. A rank has the codes of its elements, run by run, and the
//   scales of all blocks that a run touches.
//   Bytes of an entry, in this order, each part on a 64-byte boundary: codes, two to a byte, the first in the high
//   nibble, a run starting a byte; scales of the runs' blocks (uint8, or fp32 without double quantisation); and with it
//   the second-level scales of each piece (fp32) and the means (fp32).
//   The sizes follow from the shape alone, so that all ranks of a tensor group have buffers of one size: a run whose
//   start need not lie on a border of blocks has room for one block more.
//   Without padding that is 1/2 + 1/64 + 4 / (64 x 256) = 0.5159 bytes an element, or 1/2 + 4/64 = 0.5625.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/inventory.h"

namespace fivefold {

inline constexpr int64_t kFourBitBlock = 64;          // elements a scale
inline constexpr int64_t kFourBitScaleBlock = 256;    // scales a second-level scale
inline constexpr int64_t kFourBitPartAlignment = 64;  // bytes

// A contiguous run of a tensor on disk that the rank holds.
struct FourBitRun {
  int piece = 0;       // the tensor: index into ParameterEntry::parts
  int64_t local = 0;   // first element, of the rank's parameter flattened
  int64_t first = 0;   // first element, of the tensor on disk flattened
  int64_t count = 0;   // elements
  int64_t codes = 0;   // byte of the entry where its codes start
  int64_t scales = 0;  // index of its first block's scale
  int64_t first_block() const { return first / kFourBitBlock; }
  int64_t num_blocks() const { return (first + count - 1) / kFourBitBlock - first_block() + 1; }
};

struct FourBitLayout {
  std::vector<FourBitRun> runs;
  int64_t scales_begin = 0, second_begin = 0, means_begin = 0;  // bytes from the start of the entry
  std::vector<int64_t> second_offset;  // by tensor on disk: where its second-level scales start, as index of fp32 ...
  std::vector<int64_t> second_first;   // ... and which of them is the first there
  int64_t bytes = 0;                   // of the entry
};

// Bytes of an entry, from its shape alone.
int64_t four_bit_bytes(const ParameterEntry& entry, bool double_quantization);
FourBitLayout four_bit_layout(const ParameterEntry& entry, bool double_quantization);

}  // namespace fivefold
