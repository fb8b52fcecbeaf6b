// Checkpointing: a session's state into and out of the store's checkpoints. State is keyed by (kind, parameter name)
// and global ranges, so any layout reads what any layout wrote. Kinds: "master" (fp32 weights, or the bf16 ones of a
// run without master copy), and the moments (engine/checkpoint_moments.h). Working weights that are the rounded master
// weights are not written. Frozen weights are not written either: a run with an adapter
// reads or draws its base again from where it came from.
#pragma once

#include <filesystem>

#include "engine/session.h"
#include "store/checkpoint_reader.h"
#include "store/checkpoint_writer.h"

namespace fivefold {

// Collective over all ranks of the data group. Returns the bytes that this rank wrote. Throws StoreError.
int64_t save_checkpoint(RankSession& session, const CheckpointWriter& writer, const RunState& run);

enum class Restore : uint8_t {
  kWeights,     // what is trained
  kEverything,  // and its optimizer states
  kBase,        // the model's own weights, adapters left out
};

// Fills this rank's shards (and full working weights). Throws std::runtime_error with the reader's error text: a
// damaged piece, a parameter that is missing or of another shape.
void restore_checkpoint(RankSession& session, CheckpointReader& reader, Restore what);

// The base of an adapter, from a checkpoint of the whole model: frozen weights, quantised where they are in 4 bits.
void restore_base(RankSession& session, CheckpointReader& reader);

// Before any rank starts: does the checkpoint hold every state tensor of the model, in its shape?
Status check_checkpoint(const CheckpointReader& reader, const Inventory& inventory, OptimizerStates states,
                        Restore what);

}  // namespace fivefold
