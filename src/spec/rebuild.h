// Rebuilds: what selective recompute computes again in a layer's backward, and when. Pure functions, thread-safe.
//
// Note [Rebuilds]
//   A dropped slot is freed in forward after its last reader. Before the first operation of backward that reads it, the
//   operations that wrote it run again, in forward order, from what is saved or was rebuilt for them; it is freed where
//   a saved slot would be. The norm in front of a column linear is made again once, from its saved statistics, and
//   stays for the linear's weight gradient. A linear that gathers its input (sequence parallelism) gathers it for both,
//   the second time behind the product of its input's gradient.
//   The log-sum-exp of attention.out comes with the heads' output, the statistics of q and k norms with attention.qkv.
//   Under Ulysses what the heads' exchange brought stands for qkv: with attention.qkv dropped and attention.out kept,
//   only the exchange runs again; with attention.out dropped and attention.qkv kept, only what follows it.
#pragma once

#include "spec/operations.h"

namespace fivefold {

// Makes what `dropped` names kDropped slots, with the rebuilds that they need.
void drop_tensors(const DroppedTensors& dropped, UnitOperations& operations);

}  // namespace fivefold
