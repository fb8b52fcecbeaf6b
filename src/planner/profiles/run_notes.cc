#include "planner/profiles/run_notes.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "base/units.h"
#include "planner/profiles/device_need.h"
#include "planner/profiles/host_need.h"
#include "planner/profiles/model_sizes.h"

namespace fivefold {
namespace {

class RunNotes {
 public:
  RunNotes(const FrameworkRun& run, const ProfileMemory& memory, const HardwareSpec& hardware)
      : run_(run), memory_(memory), hardware_(hardware) {}

  std::vector<Error> find() {
    check_start();
    check_host();
    check_replicas();
    check_whole_weights();
    check_precision();
    check_buckets();
    check_reductions();
    return std::move(notes_);
  }

 private:
  void note(std::string where, std::string problem, std::string hint) {
    notes_.push_back({std::move(where), std::move(problem), std::move(hint)});
  }
  bool is_deepspeed() const {
    return run_.framework == Framework::kDeepspeed || (run_.framework == Framework::kHf && run_.hf.deepspeed);
  }
  int64_t replicas() const { return run_.dp * run_.cp; }
  double parameters() const { return static_cast<double>(model_sizes(run_).total()); }

  void check_start() {
    const int64_t start = start_bytes(memory_);
    if (run_.capacity_bytes == 0 || start <= run_.capacity_bytes) return;
    note("init",
         fmt::format("while the model is made a GPU needs {} of {}", format_bytes(start),
                     format_bytes(run_.capacity_bytes)),
         "make it in shards (meta device, zero.Init), or load it on the host and hand it out unit by unit");
  }

  void check_host() {
    if (!hardware_.host_memory_bytes.known()) return;
    const int64_t world = run_.dp * run_.cp * run_.tp * run_.pp;
    const int64_t ranks = std::min(world, hardware_.devices_per_node);
    const auto host = static_cast<int64_t>(hardware_.host_memory_bytes.value);
    const HostVerdict verdict = host_verdict(memory_, ranks, host);
    if (verdict == HostVerdict::kFits) return;
    const int64_t needed = host_bytes_of_node(memory_, ranks);
    const bool starts = needed > ranks * memory_.host.step.bytes();
    note("host memory",
         fmt::format("{} ranks of a node need {} of its {}{}", ranks, format_bytes(needed), format_bytes(host),
                     verdict == HostVerdict::kAtRisk ? ", half as much again where buffers are pinned" : ""),
         starts ? "let one rank of a node load the model, or each its shard"
                : "keep less on the host, or use more nodes");
  }

  void check_replicas() {
    if (run_.zero > 0 && replicas() == 1)
      note("parallel.zero", "one replica: there is nothing to divide, whatever the number of GPUs",
           "use zero = 0, or fewer ranks for tp and pp");
  }

  // Weights that data parallelism does not divide.
  void check_whole_weights() {
    if (run_.zero >= 3 || run_.capacity_bytes == 0) return;
    for (const ProfileLine& line : memory_.peak().lines)
      if (line.name == "weights" && line.bytes > run_.capacity_bytes)
        note("parallel.zero",
             fmt::format("the weights alone are {} of {}, at level {} on every GPU however many there are",
                         format_bytes(line.bytes), format_bytes(run_.capacity_bytes), run_.zero),
             "use zero = 3, tp or pp");
  }

  void check_precision() {
    const bool fp32_copy = is_deepspeed() || run_.framework == Framework::kMegatron ||
                           run_.framework == Framework::kNanotron || run_.weight_dtype == DType::kFloat32;
    if (run_.trains_adapter || fp32_copy) return;
    note("precision.params",
         fmt::format("{} weights without an fp32 copy: an update below 1/512 of a weight is lost in rounding",
                     to_string(run_.weight_dtype.value)),
         "train fp32 weights under autocast: 16 B a parameter instead of 8");
  }

  // DeepSpeed's buffers have their full size, however small the model.
  void check_buckets() {
    if (run_.framework != Framework::kDeepspeed || run_.zero < 2 || replicas() == 1) return;
    const double p = parameters() / static_cast<double>(run_.pp), kept = 1 - 1.0 / static_cast<double>(replicas());
    const double saved = 2 * p * kept * (run_.zero == 3 ? 2 : 1);
    double taken = 0;
    for (const ProfileLine& line : memory_.phases.front().lines)
      if (line.name == "reduce bucket" || line.name == "scattered gradients" || line.name == "live parameters")
        taken += static_cast<double>(line.bytes);
    if (taken < saved) return;
    note("parallel.zero",
         fmt::format("level {} saves {} against level 1, its buffers take {}", run_.zero,
                     format_bytes(static_cast<int64_t>(saved)), format_bytes(static_cast<int64_t>(taken))),
         "use zero = 1, or smaller buckets");
  }

  void check_reductions() {
    if (run_.microbatches == 1 || run_.zero < 2 || replicas() == 1 || run_.trains_adapter) return;
    const double p = parameters() / static_cast<double>(run_.pp), width = dtype_bytes(run_.gradient_dtype);
    const auto more = static_cast<int64_t>(width * p * (1 - 1.0 / static_cast<double>(replicas())));
    if (run_.reduces_once)
      note("parallel.reduce",
           fmt::format("whole gradients take {} more, {} reductions a step are spared", format_bytes(more),
                       run_.microbatches - 1),
           "");
    else if (run_.framework == Framework::kFsdp2)
      note("parallel.reduce",
           fmt::format("every one of {} microbatches is reduced; once a step takes {} more", run_.microbatches,
                       format_bytes(more)),
           "");
  }

  const FrameworkRun& run_;
  const ProfileMemory& memory_;
  const HardwareSpec& hardware_;
  std::vector<Error> notes_;
};

}  // namespace

std::vector<Error> run_notes(const FrameworkRun& run, const ProfileMemory& memory, const HardwareSpec& hardware) {
  return RunNotes(run, memory, hardware).find();
}

}  // namespace fivefold
