// Schedule: for each rank of a pipeline the ordered list of actions on (chunk, microbatch). Data, not code: generated
// (generate.h) or read from a file (schedule_file.h), checked here, lowered to a Program, replayed (replay.h) and
// executed by the runtime. Pure functions, thread-safe. Pictures, bubbles and memory: docs/schedules.md.
//
// The model is cut into p v parts in order, the virtual stages. A rank holds v of them, its chunks; the placement says
// which. Activations go from a virtual stage to the next, gradients back: by a transfer when the two are on different
// ranks, by themselves when they are on one.
//
// A list means: computations run one after the other. Transfers are issued in order; those that are joined are issued
// together and complete together. A send waits for its receive, and messages from one rank to another arrive in the
// order in which they were sent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "spec/pipeline_stages.h"

namespace fivefold {

enum class ScheduleOp : uint8_t {
  kForward,         // F
  kBackward,        // BW: input and weight gradient
  kBackwardInput,   // B
  kBackwardWeight,  // W
  kOverlapped,      // FB: forward of one microbatch overlapped with backward (BW) of another
  kSendForward,     // the output of the chunk, to the rank of the next virtual stage
  kRecvForward,     // the input of the chunk
  kSendBackward,    // the gradient of the chunk's input, to the rank of the virtual stage before
  kRecvBackward,    // the gradient of the chunk's output
};
constexpr bool is_transfer(ScheduleOp op) { return op >= ScheduleOp::kSendForward; }
constexpr bool is_send(ScheduleOp op) { return op == ScheduleOp::kSendForward || op == ScheduleOp::kSendBackward; }

struct ScheduleAction {
  ScheduleOp op = ScheduleOp::kForward;
  int chunk = 0;                                      // model part on this rank; of FB: its forward's
  int microbatch = 0;                                 // of FB: its forward's
  int backward_chunk = -1, backward_microbatch = -1;  // of FB: its backward's
  int peer = -1;                                      // of a transfer: the other rank
  bool joined = false;  // of a transfer: issued together with the action before it, which is a transfer too

  bool operator==(const ScheduleAction&) const = default;
};

struct Schedule {
  int num_stages = 1;                              // p, pipeline ranks
  int chunks_per_rank = 1;                         // v
  int num_microbatches = 1;                        // m
  std::vector<std::vector<ScheduleAction>> ranks;  // per pipeline rank
  Placement placement = Placement::kLoop;

  int num_virtual_stages() const { return num_stages * chunks_per_rank; }
  bool operator==(const Schedule&) const = default;
};

int virtual_stage(const Schedule& schedule, int rank, int chunk);
struct ChunkPlace {
  int rank = 0, chunk = 0;
};
ChunkPlace place_of(const Schedule& schedule, int virtual_stage);
// The rank that the transfer `op` of this chunk goes to or comes from; -1 when there is none, because the model ends
// there or both ends are on `rank`.
int peer_of(const Schedule& schedule, int rank, ScheduleOp op, int chunk);

// The schedule without a pipeline: forward and backward of each microbatch in turn.
Schedule sequential_schedule(int num_microbatches);

// Most chunks of one microbatch that a rank holds at one time, in units of one chunk's activations.
struct LiveChunks {
  int activations = 0;    // between F and the end of B or BW
  int weight_inputs = 0;  // between B and W: what the weight gradient still needs
  int together = 0;       // most of both at one time
};

// Checks, in this order: every F, B and W (or BW) of every chunk and microbatch is there once, on its rank and after
// what it needs; every value that another rank needs is sent once and received once, by the right ranks and in one
// order; no rank waits for ever when each transfer waits for its other end. Returns the peaks per rank.
// Errors name rank, position and action.
Result<std::vector<LiveChunks>> check_schedule(const Schedule& schedule);
// The same for a schedule whose transfers are still to be added: only completeness and order on each rank.
Result<std::vector<LiveChunks>> check_computations(const Schedule& schedule);

// "F(chunk 0, microbatch 3)", "SendF(chunk 0, microbatch 3, to rank 1)".
std::string to_string(const ScheduleAction& action);

}  // namespace fivefold
