#include "planner/step_replay.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>

namespace fivefold {
namespace {

// One rank's two timelines. Collectives run one after the other in the order in which they are issued.
class StepClock {
 public:
  using Observer = std::function<void(const Instruction&, double begin, double end, bool communication)>;

  explicit StepClock(const StepTimes& times)
      : times_(&times), gathers_(times.units.size()), reductions_(times.units.size()) {}

  // Messages between the ranks of a pipeline: when each arrives, in order, by sender and receiver.
  using Mail = std::map<std::pair<int, int>, std::deque<double>>;

  void begin(const Program& program, int pipeline_rank, Mail& mail) {
    program_ = &program;
    rank_ = pipeline_rank;
    mail_ = &mail;
    position_ = 0;
  }
  bool done() const { return position_ == program_->instructions.size(); }
  bool at(Opcode op) const { return !done() && program_->instructions[position_].op == op; }
  // Runs on until a message is missing or until the gradient norm, where all ranks meet. Returns whether it got
  // anywhere.
  bool advance(const Observer& observer) {
    bool moved = false;
    while (!done() && !at(Opcode::kGradNorm) && step(observer)) moved = true;
    return moved;
  }
  // The gradient norm, at a moment that no rank is later than; then the rest of the step.
  void meet(double moment, const Observer& observer) {
    const double begin = now_;
    add(TimePart::kBubble, std::max(0.0, moment - now_));
    // The wait is part of the instruction, as it is when it is measured.
    const Instruction& norm = program_->instructions[position_++];
    execute(norm, observer);
    if (observer) observer(norm, begin, now_, false);
    while (!done()) step(observer);
    add(TimePart::kOverhead, times_->step_overhead_s);
  }
  double now() const { return now_; }

  // Keeps account of calls and waits from now on.
  void watch_communication() { tally_.emplace(); }
  std::vector<CommunicationTime> communication() const { return tally_->times(now_); }

  // Counts from here; what is under way stays so.
  void restart() {
    begin_ = now_;
    cost_ = {};
    if (tally_) tally_->restart(now_);
  }
  StepCost cost() const {
    StepCost cost = cost_;
    cost.seconds = now_ - begin_;
    return cost;
  }

 private:
  void add(TimePart part, double seconds) {
    cost_.parts[static_cast<size_t>(part)] += seconds;
    const bool waits = part == TimePart::kExposedCommunication || part == TimePart::kBubble;
    if (tally_ && waits) tally_->wait(now_, now_ + seconds);
    now_ += seconds;
  }
  void compute(TimePart part, double seconds) {
    const double together = std::clamp(communication_free_ - now_, 0.0, seconds);
    add(part, seconds);
    add(TimePart::kOverlapSlowdown, together * moving_share_ * times_->overlap_share);
  }
  // Puts a collective behind those that are under way and returns when it starts. While it waits for a simulated link
  // it takes nothing from what computes; that of all that is under way is spread evenly.
  double start(const LinkSeconds& link, GroupKind group, Purpose purpose) {
    const double start = std::max(now_, communication_free_), left = start - now_;
    communication_free_ = start + link.seconds;
    cost_.communication_seconds += link.seconds;
    if (link.seconds > 0) moving_share_ = (moving_share_ * left + link.moving) / (left + link.seconds);
    if (tally_) tally_->flight(group, purpose, start, communication_free_);
    return start;
  }
  // The units of a bucket are one call, issued by the last of its instructions.
  bool collects(const Instruction& instruction) {
    bucket_.push_back(instruction.unit);
    const std::vector<Instruction>& all = program_->instructions;
    return position_ + 1 < all.size() && all[position_ + 1].joined;
  }
  double collected() const {
    int64_t elements = 0;
    for (const int unit : bucket_) elements += (*times_)[unit].elements;
    return static_cast<double>(elements);
  }
  void gather(const Instruction& instruction, const Observer& observer) {
    if (collects(instruction)) return;
    int64_t bytes = 0;
    for (const int unit : bucket_) bytes += (*times_)[unit].gathered_bytes;
    const double begin =
        start(times_->buffer_calls.gather(static_cast<double>(bytes)), GroupKind::kShard, Purpose::kParameters);
    arrive(gathers_, instruction, begin, observer);
  }
  // Over the shard group; when nothing follows this step, over the replicas too.
  void reduce(const Instruction& instruction, const Observer& observer) {
    if (collects(instruction)) return;
    const double begin =
        start(times_->buffer_calls.reduce_scatter(collected()), GroupKind::kShard, Purpose::kGradients);
    if (instruction.last)
      start(times_->buffer_calls.all_reduce(collected()), GroupKind::kReplicate, Purpose::kGradients);
    arrive(reductions_, instruction, begin, observer);
  }
  void arrive(std::vector<double>& arrivals, const Instruction& instruction, double begin, const Observer& observer) {
    for (const int unit : bucket_) arrivals[static_cast<size_t>(unit)] = communication_free_;
    bucket_.clear();
    if (observer && communication_free_ > begin) observer(instruction, begin, communication_free_, true);
  }
  void wait(const std::vector<double>& arrivals, int unit) {
    add(TimePart::kExposedCommunication, std::max(0.0, arrivals[static_cast<size_t>(unit)] - now_));
  }
  // A computation with collectives of the tensor group inside. They queue behind what is under way; those that a
  // product hides cost what they take beyond it, which is at most the computation.
  void compute(TimePart part, double seconds, const TensorSeconds& tensor) {
    compute(part, seconds);
    const double exposed = tensor.exposed.seconds, hidden = tensor.hidden.seconds;
    if (exposed + hidden == 0) return;
    cost_.communication_seconds += exposed + hidden;
    const double queued = std::max(0.0, communication_free_ - now_);
    add(TimePart::kOverlapSlowdown, tensor.hidden.moving * times_->overlap_share);
    add(TimePart::kExposedCommunication, queued + exposed);
    communication_free_ = std::max(communication_free_, now_);
    if (!tally_) return;
    for (const CallSeconds& call : tensor.calls) tally_->within(call.group, call.purpose, call.seconds, call.exposed);
  }
  void blocking(double seconds, GroupKind group, Purpose purpose) {
    if (tally_) tally_->within(group, purpose, seconds, seconds);
    blocking(seconds);
  }
  void blocking(double seconds) {
    cost_.communication_seconds += seconds;
    add(TimePart::kExposedCommunication, std::max(now_, communication_free_) + seconds - now_);
    communication_free_ = now_;
  }

  bool step(const Observer& observer) {
    const Instruction& instruction = program_->instructions[position_];
    const bool receives = instruction.op == Opcode::kRecvActivations || instruction.op == Opcode::kRecvGradients;
    if (receives && (*mail_)[{instruction.peer, rank_}].empty()) return false;
    const double begin = now_;
    execute(instruction, observer);
    if (observer && now_ > begin) observer(instruction, begin, now_, false);
    ++position_;
    return true;
  }

  static Purpose purpose_of(const Instruction& transfer) {
    const bool gradients = transfer.op == Opcode::kSendGradients || transfer.op == Opcode::kRecvGradients;
    return gradients ? Purpose::kActivationGradients : Purpose::kActivations;
  }
  // What is sent leaves when what is under way before it is over.
  void send(const Instruction& instruction, const Observer& observer) {
    const LinkSeconds& transfer = times_->transfers(rank_, instruction.peer);
    const double begin = start(transfer, GroupKind::kPp, purpose_of(instruction));
    (*mail_)[{rank_, instruction.peer}].push_back(communication_free_);
    if (observer && transfer.seconds > 0) observer(instruction, begin, communication_free_, true);
  }
  // Of the time until it arrives, that of the transfer itself is communication, the rest the other stage's.
  void receive(const Instruction& instruction) {
    std::deque<double>& messages = (*mail_)[{instruction.peer, rank_}];
    const double transfer = times_->transfers(instruction.peer, rank_).seconds;
    const double late = std::max(0.0, messages.front() - now_), moving = std::min(late, transfer);
    messages.pop_front();
    if (tally_) tally_->within(GroupKind::kPp, purpose_of(instruction), late, late);
    add(TimePart::kBubble, late - moving);
    add(TimePart::kExposedCommunication, moving);
  }

  void execute(const Instruction& instruction, const Observer& observer) {
    const StepTimes& times = *times_;
    const int unit = instruction.unit;
    switch (instruction.op) {
      case Opcode::kCountTokens:
        start(times.scalar_all_reduce, GroupKind::kWorld, Purpose::kTokenCount);
        count_ = communication_free_;
        return;
      case Opcode::kWaitCount:
        return add(TimePart::kExposedCommunication, std::max(0.0, count_ - now_));
      case Opcode::kUnshard:
      case Opcode::kGatherParameters:
        return gather(instruction, observer);
      case Opcode::kWaitUnshard:
      case Opcode::kWaitParameters:
        return wait(gathers_, unit);
      case Opcode::kForward:
        return compute(TimePart::kForward, times[unit].forward, times[unit].tensor_forward);
      case Opcode::kRecompute:
        return instruction.output_unused
                   ? compute(TimePart::kRecompute, times[unit].recompute_unused, times[unit].tensor_recompute_unused)
                   : compute(TimePart::kRecompute, times[unit].recompute, times[unit].tensor_recompute);
      case Opcode::kLoss:
        return compute(TimePart::kHead, times[unit].head, times[unit].tensor_head);
      case Opcode::kBackward:
        return compute(TimePart::kBackward, times[unit].backward, times[unit].tensor_backward);
      case Opcode::kBackwardInput:
        return compute(TimePart::kBackward, times[unit].backward_input, times[unit].tensor_backward_input);
      case Opcode::kBackwardWeight:
        return compute(TimePart::kBackward, times[unit].backward_weight, times[unit].tensor_backward_weight);
      case Opcode::kSendActivations:
      case Opcode::kSendGradients:
        return send(instruction, observer);
      case Opcode::kRecvActivations:
      case Opcode::kRecvGradients:
        return receive(instruction);
      case Opcode::kAccumulateGrads:
        return compute(TimePart::kGradients, times[unit].accumulate);
      case Opcode::kReduceGrads:
        return reduce(instruction, observer);
      case Opcode::kWaitReduce:
        return wait(reductions_, unit);
      case Opcode::kSumPartialGrads:
        for (const CallSeconds& call : times.partial_sums) blocking(call.seconds, call.group, call.purpose);
        return;
      case Opcode::kGradNorm:
        for (const Instruction& other : program_->instructions)
          if (other.op == Opcode::kOptimizerStep) compute(TimePart::kGradients, times[other.unit].sum_of_squares);
        return blocking(times.scalar_all_reduce.seconds, GroupKind::kWorld, Purpose::kGradNorm);
      case Opcode::kOptimizerStep:
        return compute(TimePart::kOptimizer, times[unit].optimizer);
      case Opcode::kReshard:
      case Opcode::kAllocateGrads:
      case Opcode::kWaitSend:
        return;
    }
  }

  const StepTimes* times_;
  const Program* program_ = nullptr;
  Mail* mail_ = nullptr;
  int rank_ = 0;
  size_t position_ = 0;
  double now_ = 0, begin_ = 0, communication_free_ = 0;
  double moving_share_ = 0;                   // of what is under way: bytes that the machine itself moves
  double count_ = 0;                          // when the count of tokens ends
  std::vector<int> bucket_;                   // units of the joined instructions so far
  std::vector<double> gathers_, reductions_;  // when the latest one of a unit ends
  StepCost cost_;
  std::optional<CommunicationTally> tally_;
};

using Observers = std::vector<StepClock::Observer>;  // one per rank

// One step of all pipeline ranks.
void run_step(std::vector<StepClock>& clocks, const std::vector<Program>& programs, const Observers& observers) {
  StepClock::Mail mail;
  for (size_t rank = 0; rank < clocks.size(); ++rank) clocks[rank].begin(programs[rank], static_cast<int>(rank), mail);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < clocks.size(); ++rank) moved |= clocks[rank].advance(observers[rank]);
  }
  double latest = 0;
  for (const StepClock& clock : clocks) {
    FIVEFOLD_CHECK(clock.at(Opcode::kGradNorm), "a checked schedule waits for ever");
    latest = std::max(latest, clock.now());
  }
  for (size_t rank = 0; rank < clocks.size(); ++rank) clocks[rank].meet(latest, observers[rank]);
}

StepReplay observed_step(std::vector<StepClock> clocks, const std::vector<Program>& programs) {
  StepReplay replay;
  replay.timelines.resize(programs.size());
  Observers observers;
  for (std::vector<TimelineEntry>& timeline : replay.timelines)
    observers.push_back([&timeline](const Instruction& instruction, double begin, double end, bool communication) {
      timeline.push_back({instruction, begin, end, communication});
    });
  run_step(clocks, programs, observers);
  for (const StepClock& clock : clocks) {
    replay.ranks.push_back(clock.cost());
    replay.makespan_s = std::max(replay.makespan_s, clock.now());
  }
  return replay;
}

}  // namespace

std::string_view to_string(TimePart part) {
  static constexpr std::string_view kNames[] = {
      "forward",          "recompute", "backward", "head", "gradients", "optimizer", "exposed_communication",
      "overlap_slowdown", "bubble",    "overhead"};
  return kNames[static_cast<size_t>(part)];
}

double StepCost::busy_s() const {
  return seconds - (*this)[TimePart::kBubble] - (*this)[TimePart::kExposedCommunication];
}

double StepReplay::bubble(int rank) const {
  const StepCost& cost = ranks[static_cast<size_t>(rank)];
  // Rounding must not make less than nothing of a rank that never waits.
  return std::max(0.0, makespan_s - cost.busy_s() - cost[TimePart::kExposedCommunication]) / makespan_s;
}

double StepReplay::exposed_communication(int rank) const {
  return ranks[static_cast<size_t>(rank)][TimePart::kExposedCommunication] / makespan_s;
}

double StepReplay::bubble() const {
  double sum = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) sum += bubble(static_cast<int>(rank));
  return sum / static_cast<double>(ranks.size());
}

StepReplay replay_step(const std::vector<Program>& programs, const std::vector<StepTimes>& times) {
  FIVEFOLD_CHECK(times.size() == programs.size());
  return observed_step({times.begin(), times.end()}, programs);
}

StepReplay replay_step(const std::vector<Program>& programs, const StepTimes& times) {
  return observed_step(std::vector<StepClock>(programs.size(), StepClock(times)), programs);
}

namespace {

std::vector<StepClock> after_steady_step(const std::vector<Program>& programs, const StepTimes& times, bool watched) {
  std::vector<StepClock> clocks(programs.size(), StepClock(times));
  if (watched)
    for (StepClock& clock : clocks) clock.watch_communication();
  const Observers nobody(programs.size());
  run_step(clocks, programs, nobody);
  for (StepClock& clock : clocks) clock.restart();
  run_step(clocks, programs, nobody);
  return clocks;
}

}  // namespace

std::vector<StepCost> replay_steady_step(const std::vector<Program>& programs, const StepTimes& times) {
  std::vector<StepCost> costs;
  for (const StepClock& clock : after_steady_step(programs, times, false)) costs.push_back(clock.cost());
  return costs;
}

std::vector<std::vector<CommunicationTime>> replay_steady_communication(const std::vector<Program>& programs,
                                                                        const StepTimes& times) {
  std::vector<std::vector<CommunicationTime>> communication;
  for (const StepClock& clock : after_steady_step(programs, times, true))
    communication.push_back(clock.communication());
  return communication;
}

}  // namespace fivefold
