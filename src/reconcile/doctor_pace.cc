// The checklist of a run with low utilisation: how far it is from its prediction, where the predicted step goes, what
// each part would be without its reason, and what is quicker.
#include <algorithm>
#include <string>

#include "base/text.h"
#include "reconcile/doctor_parts.h"
#include "reconcile/log_rows.h"
#include "reconcile/sections.h"

namespace fivefold {
namespace {

constexpr double kNoticeable = 0.05;  // of a step
constexpr double kUnlimited = 1e6;    // times as quick

std::string tokens(double per_s) { return format_count(static_cast<int64_t>(per_s + 0.5)) + " tokens/s a GPU"; }

std::string gigabytes(double bytes_per_s) {
  const auto tenths = static_cast<int64_t>(bytes_per_s / 1e8 + 0.5);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " GB/s";
}

class PaceChecklist {
 public:
  explicit PaceChecklist(const DoctorCase& the_case) : case_(the_case), prediction_(*the_case.prediction) {
    if (case_.log) summary_ = summarize(*case_.log);
    measured_ = case_.tokens_per_s;
    if (!measured_ && case_.log) measured_ = measured_tokens_per_s(prediction_, summary_);
  }

  Diagnosis find() {
    diagnosis_.symptom = Symptom::kSlow;
    diagnosis_.need = prediction_.need, diagnosis_.capacity = prediction_.run.capacity_bytes;
    if (!prediction_.time) {
      diagnosis_.summary = "no time is predicted for this run: " + prediction_.no_time;
      check_log();
      return std::move(diagnosis_);
    }
    check_measured();
    check_log();
    check_parts();
    check_links();
    check_host();
    check_microbatch();
    check_selective();
    diagnosis_.remedies = pace_remedies(prediction_);
    std::ranges::stable_partition(diagnosis_.steps, &DoctorStep::cause);
    summarize_findings();
    for (const std::string& note : summary_.notes) diagnosis_.notes.push_back(note);
    return std::move(diagnosis_);
  }

 private:
  void add(const std::string& title, const std::string& finding, const std::string& advice = "", bool cause = false) {
    diagnosis_.steps.push_back({title, finding, advice, cause});
  }
  double predicted() const { return prediction_.time->tokens_per_s; }

  void check_measured() {
    if (!measured_) return;
    const double share = *measured_ / predicted();
    const std::string finding = tokens(*measured_) + " of " + tokens(predicted()) + " predicted: " + percent(share);
    if (share >= kFaultyShare) return add("measured against predicted", finding);
    const auto link = explain_by_network(prediction_, *measured_);
    if (!link)
      return add("measured against predicted", finding,
                 "a fault rather than a setting: clocks (nvidia-smi -q -d PERFORMANCE), other jobs, input data, links",
                 true);
    add("inter-node bandwidth",
        finding + "; the pace of links between nodes of " + gigabytes(link->bytes_per_s) + " a GPU where " +
            gigabytes(link->stated_bytes_per_s) + " are stated",
        "run a bandwidth test over two nodes: all_reduce_perf -b 1G -e 8G of nccl-tests; NCCL_DEBUG=INFO says which "
        "network "
        "it found (NET/IB, not NET/Socket), NCCL_IB_HCA and NCCL_SOCKET_IFNAME choose it",
        true);
  }

  void check_log() {
    if (!case_.log) return;
    if (case_.log->allocator_retries > 0)
      add("allocator retries",
          format_count(case_.log->allocator_retries) +
              " time(s) the allocator gave back all its cache, and waited for the device",
          "less memory: fivefold doctor --symptom oom", true);
    for (const CardUse& card : case_.log->cards)
      if (card.mean_utilization > 0 && card.mean_utilization < kBusyCard) {
        add("idle cards",
            "kernels run " + percent(card.mean_utilization) + " of the time on card " + std::to_string(card.rank),
            "the host, input data or links: see below; a profile of one step tells them apart", true);
        break;
      }
    if (summary_.spread > kUneven)
      add("uneven steps",
          "the slowest tenth of the steps takes " + percent(summary_.spread) + " longer than the median",
          "input data, a slow rank, garbage collection, checkpoints", summary_.spread > 2 * kUneven);
  }

  double share_of(FrameworkPart part) const { return (*prediction_.time)[part] / prediction_.time->seconds; }

  void check_parts() {
    std::string shares;
    for (int i = 0; i < kNumFrameworkParts; ++i) {
      const auto part = static_cast<FrameworkPart>(i);
      if (share_of(part) < 0.001) continue;
      shares += (shares.empty() ? "" : ", ") + std::string(to_string(part)) + " " + percent(share_of(part));
    }
    add("where the step goes", format_seconds(prediction_.step_seconds()) + " predicted, MFU " +
                                   percent(prediction_.time->mfu) + ": " + shares);
    const double bubble = share_of(FrameworkPart::kBubble), recompute = share_of(FrameworkPart::kRecompute);
    const FrameworkRun& run = prediction_.run;
    if (bubble > kNoticeable)
      add("pipeline bubble",
          percent(bubble) + " of the step: " + std::to_string(run.pp) + " stages, " + std::to_string(run.microbatches) +
              " microbatches" + (run.vpp > 1 ? ", " + std::to_string(run.vpp) + " chunks a rank" : "") +
              ": (p - 1) / (v m + p - 1) at least",
          "more microbatches, chunks (vpp), fewer stages", bubble > 2 * kNoticeable);
    if (recompute > kNoticeable)
      add("recompute", percent(recompute) + " of the step computes activations a second time",
          "less of it where memory allows: see the remedies", recompute > 2 * kNoticeable);
  }

  // The pace with links of a level that take no time.
  void check_links() {
    const auto without = [&](bool between_nodes) {
      HardwareSpec hardware = prediction_.hardware;
      LinkSpec& link = between_nodes ? hardware.network : hardware.node_link;
      link.bytes_per_s.value *= kUnlimited;
      link.latency_s.value /= kUnlimited;
      const Result<FrameworkTime> time = framework_time(prediction_.run, hardware);
      return time.ok() ? time->tokens_per_s / predicted() - 1 : 0.0;
    };
    const bool nodes = prediction_.world() > prediction_.hardware.devices_per_node;
    const double inside = without(false), between = nodes ? without(true) : 0;
    if (std::max(inside, between) < kNoticeable) return;
    std::string finding = "without links inside a node to wait for " + signed_percent(inside) + " tokens/s";
    if (nodes) finding += ", without those between nodes " + signed_percent(between);
    add("waiting for links", finding,
        between > inside
            ? "shards inside a node and replicas between (shard_size), tp inside a node, larger micro-batches"
            : "less tp, larger micro-batches",
        std::max(inside, between) > 2 * kNoticeable);
  }

  // The pace of a device without end: what is left is the host's launches and the links.
  void check_host() {
    HardwareSpec hardware = prediction_.hardware;
    for (LinkSpec* link : {&hardware.network, &hardware.node_link}) {
      link->bytes_per_s.value *= kUnlimited;
      link->latency_s.value /= kUnlimited;
    }
    const Result<FrameworkTime> on_device = framework_time(prediction_.run, hardware);
    MatrixRates& peak = hardware.device.peak_flops_per_s;
    for (Figure* rate :
         {&peak.fp32, &peak.tf32, &peak.fp16, &peak.bf16, &peak.fp8, &hardware.device.memory_bytes_per_s})
      rate->value *= kUnlimited;
    const Result<FrameworkTime> host = framework_time(prediction_.run, hardware);
    if (!host.ok() || !on_device.ok()) return;
    const double share = on_device->tokens_per_s / host->tokens_per_s;
    if (share < 2 * kNoticeable) return;
    add("the host", "launching takes at least " + percent(share) + " of the time that the device computes",
        share > kHostBound ? "host-bound: larger micro-batches, compiled layers, CUDA graphs, fewer and larger kernels"
                           : "hidden behind the device as long as nothing synchronises",
        share > kHostBound);
  }

  void check_microbatch() {
    RunConfig config = prediction_.config;
    config.batch.micro *= 2;
    if (config.batch.global % (config.batch.micro * config.parallel.dp) != 0) config.batch.global *= 2;
    const auto remedy = remedy_of(prediction_, config, "", "");
    if (!remedy || !remedy->speed || *remedy->speed < kNoticeable) return;
    add("small products",
        "twice the micro-batch would be " + signed_percent(*remedy->speed) + " quicker: " + format_bytes(remedy->need) +
            " of " + format_bytes(prediction_.run.capacity_bytes) + ", " + (remedy->fits ? "fits" : "does not fit"),
        remedy->fits ? "batch.micro = " + std::to_string(config.batch.micro) : "",
        remedy->fits && *remedy->speed > 0.1);
  }

  void check_selective() {
    if (prediction_.run.framework == Framework::kMegatron &&
        prediction_.run.checkpointing == Checkpointing::kCoreAttention &&
        prediction_.run.attention == AttentionKernel::kFlash)
      add("selective recompute", "with a flash kernel it saves next to nothing: there are no scores to compute again",
          "recompute.kind = none");
  }

  void summarize_findings() {
    std::vector<std::string> causes;
    for (const DoctorStep& step : diagnosis_.steps)
      if (step.cause) causes.push_back(step.title);
    diagnosis_.summary = "slow: " + (causes.empty() ? std::string("nothing stands out") : join(causes, ", then "));
    if (!diagnosis_.remedies.empty() && diagnosis_.remedies.front().speed)
      diagnosis_.summary += "; the quickest change that fits: " + diagnosis_.remedies.front().name + ", " +
                            signed_percent(*diagnosis_.remedies.front().speed);
  }

  static constexpr double kBusyCard = 0.85, kUneven = 0.2, kHostBound = 0.7;

  const DoctorCase& case_;
  const FrameworkPrediction& prediction_;
  LogSummary summary_;
  std::optional<double> measured_;
  Diagnosis diagnosis_;
};

}  // namespace

Diagnosis diagnose_pace(const DoctorCase& the_case) { return PaceChecklist(the_case).find(); }

}  // namespace fivefold
