// Optimizer moments into and out of a checkpoint. How a moment is written follows from how it is stored:
//   fp32, bf16   "moment1"         elements of the whole parameter, in that type
//   8 bits       "moment1.codes"   uint8, elements of the parameter
//                "moment1.scales"  fp32 [blocks]: one for 256 codes
// Codes and scales are those of the whole parameter, or, where tensor parallelism cuts it, of what each rank of the
// tensor group holds: then "name@tp4.1" stands for the second of four. Reading converts whatever is there to how this
// run stores the moment; from codes to codes of the same blocks it copies.
#pragma once

#include "engine/moment_buffer.h"
#include "spec/tensor_split.h"
#include "store/checkpoint_reader.h"
#include "store/checkpoint_writer.h"

namespace fivefold {

// Pieces of one state that a rank's shard holds of a parameter: `data` is its first element there.
void add_pieces(const std::string& kind, DType dtype, const void* data, const ParameterEntry& entry,
                const ShardRange& range, std::vector<StatePiece>& pieces);

// `kind`: "moment1" or "moment2".
void add_moment_pieces(const std::string& kind, const MomentBuffer& moment, int parameter, const ParameterEntry& entry,
                       const ShardRange& range, const TensorSplit& split, std::vector<StatePiece>& pieces);

// What restoring needs to know of the run.
struct MomentRestore {
  CheckpointReader& reader;
  const ModelSpec& whole_model;
  const Inventory& whole_inventory;
  TensorSplit split;
};
// Fills what the shard holds of parameter `parameter` of unit `unit`. Errors: the reader's.
Status restore_moment(const MomentRestore& from, const std::string& kind, int unit, int parameter,
                      const ParameterEntry& entry, const ShardRange& range, MomentBuffer& moment);

// Whether the checkpoint holds the moment, in any of the forms. `entry`: of the whole inventory.
Status check_moment(const CheckpointReader& reader, const std::string& kind, const ParameterEntry& entry);

}  // namespace fivefold
