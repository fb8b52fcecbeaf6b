// Schedule: for each rank of a pipeline the ordered list of actions on (chunk, microbatch). Data, not code: generated,
// checked, lowered to a Program, replayed by the planner and executed by the runtime. Definitions: docs/engine.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace fivefold {

enum class ScheduleOp : uint8_t {
  kForward,         // F
  kBackward,        // BW: input and weight gradient
  kBackwardInput,   // B
  kBackwardWeight,  // W
  kOverlapped,      // FB: forward of one microbatch overlapped with backward of another
  kSendForward,
  kRecvForward,
  kSendBackward,
  kRecvBackward,
};

struct ScheduleAction {
  ScheduleOp op = ScheduleOp::kForward;
  int chunk = 0;  // model part on this rank
  int microbatch = 0;
};

struct Schedule {
  int num_stages = 1;                              // p
  int chunks_per_rank = 1;                         // v
  int num_microbatches = 1;                        // m
  std::vector<std::vector<ScheduleAction>> ranks;  // per pipeline rank
};

// The schedule without a pipeline: forward and backward of each microbatch in turn.
Schedule sequential_schedule(int num_microbatches);

// Every chunk of every microbatch goes forward once and backward once, in that order, on its rank.
// Errors name the rank, the position and the action.
Status check_schedule(const Schedule& schedule);

std::string to_string(const ScheduleAction& action);

}  // namespace fivefold
