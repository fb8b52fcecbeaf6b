// Interpreter: runs a Program over a StageExecutor, with the collectives of one rank. Gathers and reductions are issued
// asynchronously where the Program says and waited for where it says. Records when each instruction ran.
// One thread per object; collectives run on the communicator's own thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "runtime/stage_executor.h"
#include "schedule/program.h"

namespace fivefold {

// When one instruction ran, in seconds since the interpreter was made.
struct InstructionTime {
  double begin_s = 0, end_s = 0;
  double cpu_s = 0;  // of the calling thread
};

struct StepOutcome {
  int64_t valid_tokens = 0;  // of the global batch
  double loss = 0;           // sum over valid tokens / valid tokens; 0 without any
  double grad_norm = 0;      // before clipping
  double loss_scale = 0;     // fp16: of the step's gradients, already taken out of grad_norm; 0: none
  double seconds = 0;
  bool stop_requested = false;  // by any rank, before the step
  bool updated = true;          // false: a batch without valid tokens, or `accept` refused: no optimizer step was made
};

class Interpreter {
 public:
  struct Groups {
    Group world;
    Group data;  // dp x cp: all ranks that hold the same weights
    Group shard;
    Group replicate;
    std::optional<Group> tensor{};      // none without tensor parallelism
    std::optional<Group> kv_holders{};  // ranks of the tensor group that share a KV head; none: nobody shares
    std::optional<Group> pipeline{};    // in order of the stages; none without a pipeline
    std::optional<Group> tied_ends{};   // ranks that hold the two copies of a tied embedding; none: this has no copy
    bool counts_samples = true;         // of the ranks that see the same samples, the one that counts them
  };

  Interpreter(Communicator& communicator, const Groups& groups, const ShardingPolicy& sharding,
              StageExecutor& executor);
  // Waits for the calls in flight: their buffers are the executor's, which ends next.
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Runs one optimizer step. `accept(loss, grad_norm)` is asked, on every rank with equal arguments, before the weights
  // change; when it says no, they stay as they are.
  // `request_stop`: this rank wants the run to end; every rank learns of it in this step's outcome.
  // Throws what the executor or the communicator throws; the communicators are aborted then.
  StepOutcome run_step(const Program& program,
                       const std::function<bool(double loss, double grad_norm)>& accept = nullptr,
                       bool request_stop = false);

  // Runs an evaluation program; the executor has accumulated its loss afterwards.
  void run_evaluation(const Program& program);

  // Completes the gathers of ZeRO-1/2 weights that the last step issued: call before weights are read from outside.
  void finish_parameter_gathers();

  // Where run_step() was left by an exception: the instruction's place in the program. Nothing: it was not.
  std::optional<size_t> left_at() const { return left_at_; }

  // Times of the last program's instructions, in its order.
  const std::vector<InstructionTime>& times() const { return times_; }
  // The moment from which times() count, on the steady clock.
  double origin_s() const { return origin_s_; }

 private:
  // `next`: the instruction after it; null: none.
  void run(const Instruction& instruction, const Instruction* next);
  // `complete`: nothing is joined to the instruction.
  void execute(const Instruction& instruction, bool complete);
  void transfer(const Instruction& instruction, bool complete);
  const std::optional<Group>& group_of(PartialOver over) const;
  void gather(const Instruction& instruction, bool complete, std::vector<Work>& works);
  void reduce(const Instruction& instruction, bool complete);
  void wait_all(std::vector<Work>& works);
  void count_tokens();
  void wait_count();
  void sum_partial_grads(PartialOver over);
  void loss_and_norm();

  Communicator& communicator_;
  Groups groups_;
  ShardingPolicy sharding_;
  StageExecutor& executor_;
  std::vector<Work> parameter_gathers_;        // by unit
  std::vector<Work> unshards_;                 // by unit
  std::vector<std::vector<Work>> reductions_;  // by unit
  std::vector<InstructionTime> times_;
  std::optional<size_t> left_at_;
  struct Bucket {
    std::vector<int> units;
    std::vector<InOut> buffers;
  };
  Bucket bucket_;                    // what joined instructions have collected so far
  std::array<int64_t, 2> counts_{};  // valid tokens, and ranks that want to stop
  std::vector<PeerTransfer> batch_;  // transfers that are issued together
  bool batch_receives_ = false;
  Work sends_;  // the batch that sent last
  Work count_;  // the call that sums them
  StepOutcome outcome_;
  bool request_stop_ = false;
  double origin_s_;
};

}  // namespace fivefold
