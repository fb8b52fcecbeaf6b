// The checklist of a run that is out of memory: which allocation failed, what the peak is made of, whether memory was
// there and not usable, who else has it, and what makes the run need less.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/text.h"
#include "base/units.h"
#include "planner/profiles/device_need.h"
#include "reconcile/allocation_names.h"
#include "reconcile/doctor_parts.h"
#include "reconcile/log_rows.h"
#include "reconcile/sections.h"

namespace fivefold {
namespace {

// Of a card: reserved bytes that no tensor has. Above it a plan is not to be blamed first.
constexpr double kFragmented = 0.10;
// Of a card: a smaller request that fails is the last drop and not the cause.
constexpr double kLargeRequest = 0.02;
// Selective recompute is not worth its name below this share (P21 of the planner's cases: Megatron-LM#1225, 2 %).
constexpr double kSavesNothing = 0.05;

const OutOfMemory* failure_of(const DoctorCase& the_case) {
  return the_case.log && !the_case.log->out_of_memory.empty() ? &the_case.log->out_of_memory.front() : nullptr;
}

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

class MemoryChecklist {
 public:
  explicit MemoryChecklist(const DoctorCase& the_case) : case_(the_case), failure_(failure_of(the_case)) {
    request_ = case_.request > 0 ? case_.request : failure_ != nullptr ? failure_->requested : 0;
    precision_ = case_.request > 0 ? case_.request_precision : failure_ != nullptr ? failure_->precision : 0;
    unallocated_ = case_.unallocated > 0 ? case_.unallocated : failure_ != nullptr ? failure_->unallocated : 0;
    if (case_.log && unallocated_ == 0) unallocated_ = case_.log->inactive_bytes;
    if (failure_ != nullptr) capacity_ = failure_->capacity;
    if (capacity_ == 0 && case_.log) capacity_ = case_.log->capacity;
    if (case_.prediction) {
      if (capacity_ == 0) capacity_ = case_.prediction->run.capacity_bytes;
      note_capacity();
      diagnosis_.need = case_.prediction->need;
      diagnosis_.capacity = case_.prediction->run.capacity_bytes;
    }
  }

  Diagnosis find() {
    diagnosis_.symptom = Symptom::kOutOfMemory;
    check_request();
    check_fragmentation();
    check_others();
    check_live();
    if (case_.prediction) {
      check_peak();
      check_plan();
      check_selective();
      diagnosis_.remedies = memory_remedies(*case_.prediction);
      if (std::ranges::none_of(diagnosis_.remedies, &FrameworkRemedy::fits))
        diagnosis_.together = remedies_together(*case_.prediction, diagnosis_.remedies);
      if (const std::string assumed = assumed_switches(case_.prediction->run); !assumed.empty())
        diagnosis_.notes.push_back("nobody has set, so assumed: " + assumed);
    } else {
      diagnosis_.notes.emplace_back(
          "with the run's configuration (fivefold doctor CONFIG) the peak is itemised and remedies are priced");
    }
    std::ranges::stable_partition(diagnosis_.steps, &DoctorStep::cause);
    summarize_causes();
    return std::move(diagnosis_);
  }

 private:
  // Cards of one name come with different memories, and a part of one may be another job's.
  void note_capacity() {
    const int64_t stated = case_.prediction->run.capacity_bytes;
    constexpr double kOtherCard = 0.05;
    if (std::abs(share(capacity_ - stated, stated)) > kOtherCard)
      diagnosis_.notes.push_back("the log's card has " + format_bytes(capacity_) + ", the configuration's " +
                                 format_bytes(stated) + ": --set limits.memory=" + std::to_string(capacity_));
  }

  DoctorStep& add(const std::string& title, const std::string& finding, const std::string& advice = "",
                  bool cause = false) {
    return diagnosis_.steps.emplace_back(DoctorStep{title, finding, advice, cause});
  }

  void check_request() {
    if (request_ <= 0) return;
    std::vector<NamedSize> names;
    const int64_t vocabulary = case_.vocabulary;
    if (case_.prediction) names = names_of_size(case_.prediction->run, request_, precision_);
    if (names.empty() && vocabulary > 0) names = logits_of_size(request_, vocabulary, precision_);
    std::string finding = format_bytes(request_) + " could not be had";
    if (failure_ != nullptr && !failure_->where.empty()) finding += " in " + failure_->where;
    if (names.empty()) {
      add("the failed allocation",
          finding + (case_.prediction || vocabulary > 0 ? ": no tensor of the step is of that size"
                                                        : ": the configuration, or --vocabulary, tells what it is"),
          "a memory snapshot shows what asked for it (torch.cuda.memory._record_memory_history)");
      return;
    }
    finding += ": " + names.front().name + ", " + names.front().formula + " = " + format_bytes(names.front().bytes);
    for (size_t i = 1; i < names.size() && i < 3; ++i) finding += "; or " + names[i].name + ", " + names[i].formula;
    if (names.front().logits && vocabulary > 0)
      finding += "; " + format_count(request_ / vocabulary) + " B for each of " + format_count(vocabulary) + " words";
    add("the failed allocation", finding,
        names.front().logits
            ? "logits are there several times at the loss (2-byte logits, an fp32 copy, softmax, gradient: 10 to 15 B "
              "an "
              "element when nothing is fused): fuse or chunk the cross-entropy, or split the sequence (cp)"
            : "",
        names.front().logits || share(request_, capacity_) >= kLargeRequest);
  }

  void check_fragmentation() {
    if (unallocated_ <= 0) return;
    const bool would_fit = request_ > 0 && unallocated_ >= request_;
    const bool much = capacity_ > 0 && share(unallocated_, capacity_) >= kFragmented;
    std::string finding = format_bytes(unallocated_) + " reserved by PyTorch and in no tensor";
    if (capacity_ > 0) finding += ", " + percent(share(unallocated_, capacity_)) + " of the card";
    if (request_ > 0)
      finding += would_fit ? "; " + format_bytes(request_) + " would have fit in it, were it in one piece"
                           : "; less than the " + format_bytes(request_) + " that were asked for";
    if (case_.log && case_.log->inactive_blocks > 0)
      finding += "; in " + format_count(case_.log->inactive_blocks) + " pieces";
    const bool cause = (would_fit && share(unallocated_, capacity_) >= kFragmented / 2) || much;
    add("fragmentation", finding,
        cause
            ? "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; sequences of one length (packing, padding); plan for "
              "at most 90 % of the card"
            : "not the cause: little of the card",
        cause);
  }

  void check_others() {
    if (failure_ == nullptr || failure_->capacity == 0 || failure_->process == 0) return;
    const int64_t others = failure_->capacity - failure_->free - failure_->process;
    const int64_t outside = failure_->process - failure_->allocated - failure_->unallocated;
    constexpr double kNoticeable = 0.02;
    if (share(others, failure_->capacity) > kNoticeable)
      add("other processes on the card", format_bytes(others) + " belong to none of this process",
          "nvidia-smi shows whose; a rank on the wrong card, or a process left over", true);
    if (outside > 2 * kOutsideAllocator)
      add("outside PyTorch",
          format_bytes(outside) + " of this process are not the allocator's: context, NCCL, cuBLAS; " +
              format_bytes(kOutsideAllocator) + " are usual",
          "many communicators (one for each group) and NCCL_BUFFSIZE take it");
  }

  void check_live() {
    if (!case_.log || case_.log->live.empty()) return;
    std::vector<std::string> largest;
    for (const LiveAllocation& block : case_.log->live) {
      if (largest.size() == 3) break;
      std::string text = (block.count > 1 ? format_count(block.count) + " x " : "") + format_bytes(block.bytes);
      if (!block.where.empty()) text += " (" + block.where + ")";
      if (case_.prediction)
        if (const auto names = names_of_size(case_.prediction->run, block.bytes, 512); !names.empty())
          text += ", " + names.front().name;
      largest.push_back(std::move(text));
    }
    add("largest blocks of the snapshot", join(largest, "; "));
  }

  void check_peak() {
    std::vector<int64_t> bytes;
    const LineKind kind = largest_kind(case_.prediction->memory, bytes);
    const ProfilePhase& peak = case_.prediction->memory.peak();
    const auto line = std::ranges::max_element(peak.lines, {}, &ProfileLine::bytes);
    std::vector<std::string> parts;
    for (int i = 0; i < kNumLineKinds; ++i)
      if (bytes[static_cast<size_t>(i)] > 0)
        parts.push_back(std::string(to_string(static_cast<LineKind>(i))) + " " +
                        format_bytes(bytes[static_cast<size_t>(i)]));
    add("what the peak is made of",
        "predicted " + format_bytes(peak.bytes()) + " at the moment \"" + peak.name + "\": " + join(parts, ", ") +
            "; the largest line is " + line->name + ", " + line->formula + " = " + format_bytes(line->bytes),
        advice_against(kind), !case_.prediction->fits());
  }

  static std::string advice_against(LineKind kind) {
    switch (kind) {
      case LineKind::kStates:
        return "states: shard them, or train fewer parameters; batch and recompute do not touch them";
      case LineKind::kActivations:
        return "activations: smaller micro-batch, sequence parallelism, recompute; more data parallelism does not "
               "touch "
               "them";
      case LineKind::kLogits:
        return "logits: a fused or chunked cross-entropy, tp or cp; more GPUs of data parallelism do not touch them";
      case LineKind::kOneLayer:
        return "one layer in full: smaller units, tp";
      case LineKind::kOther:
        return "buffers: smaller buckets";
    }
    return "";
  }

  void check_plan() {
    const FrameworkPrediction& prediction = *case_.prediction;
    const std::string sizes =
        format_bytes(prediction.need) + " needed of " + format_bytes(prediction.run.capacity_bytes);
    if (!prediction.fits()) {
      add("does the plan fit", "no: " + sizes + ", allocator and context included", "the remedies below", true);
      return;
    }
    std::string finding =
        "yes: " + sizes + ", allocator and context included: the run is not as the configuration says";
    const int64_t held = failure_ != nullptr ? failure_->allocated + failure_->requested : 0;
    if (held > 0)
      if (const auto other = explain_memory(prediction, LoggedMemoryKind::kAllocated, ReportedRank::kLargest, held))
        finding += "; " + format_bytes(held) + " (in tensors, and the request) is what it has with " + other->what;
      else {
        std::vector<std::string> others;
        for (const MemoryExplanation& setting : settings_that_do_not_fit(prediction))
          if (others.size() < 4) others.push_back(setting.what + " (" + format_bytes(setting.bytes) + ")");
        if (!others.empty()) finding += "; it would not fit with " + join(others, ", or ");
      }
    const bool tight = share(prediction.need, prediction.run.capacity_bytes) > 0.9;
    add("does the plan fit", finding,
        tight ? "with more than 90 % of the card planned, sequences of several lengths or a start-up peak are enough"
              : "compare the log's arguments with the configuration (fivefold reconcile CONFIG --log FILE)");
  }

  void check_selective() {
    const FrameworkPrediction& prediction = *case_.prediction;
    if (prediction.run.framework != Framework::kMegatron || prediction.run.checkpointing != Checkpointing::kNone)
      return;
    RunConfig config = prediction.config;
    config.recompute.kind = RecomputeKind::kSelective;
    const auto after = changed(prediction, config);
    if (!after || share(prediction.need - after->need, prediction.need) >= kSavesNothing) return;
    add("selective recompute", "saves " + format_bytes(prediction.need - after->need) + " of " +
                                   format_bytes(prediction.need) +
                                   ": a flash kernel keeps no scores that could be computed again");
  }

  void summarize_causes() {
    std::vector<std::string> causes;
    for (const DoctorStep& step : diagnosis_.steps)
      if (step.cause) causes.push_back(step.title);
    const bool fits = case_.prediction && case_.prediction->fits();
    diagnosis_.summary = !causes.empty() ? "out of memory: " + join(causes, ", then ")
                         : fits ? "out of memory, though the plan fits: the run is not as the configuration says"
                                : "out of memory: no single cause in the numbers";
  }

  const DoctorCase& case_;
  const OutOfMemory* failure_;
  int64_t request_ = 0, precision_ = 0, unallocated_ = 0, capacity_ = 0;
  Diagnosis diagnosis_;
};

}  // namespace

Diagnosis diagnose_memory(const DoctorCase& the_case) { return MemoryChecklist(the_case).find(); }

}  // namespace fivefold
