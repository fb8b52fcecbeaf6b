// Program: the instruction list of one optimizer step on one rank. A Schedule is lowered to it once; the planner
// replays it (memory, traffic, time), the runtime executes it, the record is of it. Buffers are allocated and freed at
// instructions, never on completion, so peak memory does not depend on timing. Derivation: docs/engine.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/schedule.h"
#include "spec/inventory.h"
#include "spec/operations.h"
#include "spec/sharding.h"

namespace fivefold {

enum class Opcode : uint8_t {
  kCountTokens,       // start the all-reduce of the number of valid tokens of the step
  kWaitCount,         // the number is known: before the first loss, which is the first to need it
  kWaitParameters,    // ZeRO-1/2: the gather of this unit's updated weights (issued by the step before) has arrived
  kUnshard,           // ZeRO-3: allocate the full unit and start gathering it
  kWaitUnshard,       // the gathered unit can be read
  kReshard,           // free the gathered unit
  kSendActivations,   // pipeline: the output of `unit` to the rank of the next stage
  kRecvActivations,   // allocate the output of `unit`, the last one of the stage before, and receive it
  kSendGradients,     // the gradient of the output of `unit`, the last one of the stage before, to its rank
  kRecvGradients,     // allocate the gradient of the output of `unit`, the last one of this stage, and receive it
  kWaitSend,          // what was sent has arrived: free it
  kForward,           // unit, microbatch, keep
  kRecompute,         // forward again, keeping what backward needs
  kLoss,              // head: forward and backward
  kAllocateGrads,     // allocate the unit's transient gradient buffer (unsharded_grads)
  kBackward,          // unit, microbatch: input and weight gradient
  kBackwardInput,     // the first part of a backward: input gradients
  kBackwardWeight,    // the second: weight gradients
  kAccumulateGrads,   // ZeRO-0/1 with wider gradients: add the transient gradient, free it
  kReduceGrads,       // start reducing the unit's gradient (over the shard group, then, last, over the replicas)
  kWaitReduce,        // the reduction is complete; frees the transient gradient (ZeRO-2/3)
  kSumPartialGrads,   // add up what other ranks than data-parallel ones have of the gradient of shared parameters
  kGradNorm,          // clipping norm and loss: local sums, all-reduce
  kOptimizerStep,     // update this rank's shard of the unit
  kGatherParameters,  // ZeRO-1/2: start gathering the updated unit
};
std::string_view to_string(Opcode);

struct Instruction {
  Opcode op = Opcode::kForward;
  int unit = -1;
  int microbatch = -1;
  Keep keep = Keep::kAll;      // kForward
  bool output_unused = false;  // kRecompute: the last layer of its segment
  bool accumulate = false;  // kLoss, kBackward, kAccumulateGrads, kReduceGrads: add to what earlier microbatches left
  bool last = false;        // kReduceGrads: nothing follows this step, so replicas are reduced too
  bool accumulate_tied = false, last_tied = false;  // kLoss: the same of a tied embedding's gradient
  bool joins_loss = false;  // kLoss, kBackward of a tied embedding: the latter adds to what the former wrote
  int peer = -1;            // of a transfer: the pipeline rank at its other end
  bool joined = false;      // of a transfer, kUnshard, kReduceGrads, kGatherParameters: one call with the one before it
  bool gradient = false;    // kWaitSend: a gradient was sent, not activations
};
constexpr bool is_transfer(Opcode op) { return op >= Opcode::kSendActivations && op <= Opcode::kRecvGradients; }
constexpr bool is_send(Opcode op) { return op == Opcode::kSendActivations || op == Opcode::kSendGradients; }

struct Program {
  int num_microbatches = 1;
  std::vector<Instruction> instructions;
};

// The pipeline ranks before and after a chunk; -1: the model ends there, or both are on this rank.
struct ChunkPeers {
  int before = -1, after = -1;
};

// Note [Where a receive stands]
//   A receive is waited for where it stands. Where the schedule has it, computations that could go on without it wait
//   too: with weight gradients to fill the time, much of what they are for is lost. When sends are buffered (they leave
//   when they are issued, whoever waits for them) a receive may stand just before the computation that reads it, after
//   the earlier ones from the same rank, whose messages come in order. When a send waits for its receive, the places of
//   the schedule are what the proof against deadlock is about, and stay.
struct LoweringOptions {
  ShardingPolicy sharding;
  int pipeline_rank = 0;
  std::vector<StageUnits> chunks{};  // of this rank; empty: all units
  std::vector<ChunkPeers> peers{};   // of the chunks
  bool receives_at_use = false;      // Note [Where a receive stands]
  int recompute_every = 0;           // layers per recomputed segment; 0: no recompute
  int bucket_layers = 1;             // layers of a chunk that one collective gathers or reduces
  int prefetch = 1;                  // ZeRO-3: compute instructions between the start of a gather and its first use
  bool sums_partial_grads = false;   // tensor parallelism, or an embedding on two ranks
};

// Lowers the actions of one pipeline rank. REQUIRES: a checked schedule with as many chunks a rank as `options`.
Program lower(const Schedule& schedule, const Inventory& inventory, const LoweringOptions& options);

// Forward passes over the units without gradients, for validation loss: microbatch 0 only.
Program lower_evaluation(const Inventory& inventory, const LoweringOptions& options);

std::string to_string(const Instruction& instruction, const Inventory& inventory);

}  // namespace fivefold
