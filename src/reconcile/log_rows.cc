#include "reconcile/log_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/integer.h"
#include "base/text.h"
#include "planner/profiles/published_error.h"
#include "reconcile/allocation_names.h"
#include "reconcile/sections.h"

namespace fivefold {
namespace {

// Reserved bytes beside what tensors have: above this share of them the blocks are worth a word.
constexpr double kNoticeableCache = 0.15;

int64_t figure_of(const ForeignLog& log, int rank, LoggedMemoryKind kind) {
  for (const LoggedMemory& figure : log.memory)
    if (figure.rank == rank && figure.kind == kind) return figure.bytes;
  return 0;
}

class LogRows {
 public:
  LogRows(const FrameworkPrediction& prediction, const ForeignLog& log)
      : prediction_(prediction), log_(log), summary_(summarize(log)), error_(published_error(prediction.run)) {}

  Reconciliation find() {
    for (const LoggedMemory& figure : log_.memory)
      if (is_of_run(figure)) add_memory(figure);
    add_pace();
    add_loss();
    add_notes();
    return std::move(result_);
  }

 private:
  std::vector<ReconcileRow>& rows() { return result_.rows; }

  // A card that no rank uses has next to nothing on it; a rank that the configuration does not have is of another run.
  bool is_of_run(const LoggedMemory& figure) {
    if (figure.rank >= prediction_.world()) {
      if (figure.kind != LoggedMemoryKind::kProcess) foreign_ranks_ = std::max(foreign_ranks_, figure.rank);
      return false;
    }
    const auto idle = static_cast<int64_t>(kIdleCard * static_cast<double>(prediction_.run.capacity_bytes));
    return figure.kind != LoggedMemoryKind::kProcess || figure.bytes >= idle;
  }

  void add_memory(const LoggedMemory& figure) {
    const FrameworkRun& run = prediction_.run;
    const int64_t stage = stage_of_rank(prediction_, figure.rank);
    const ReportedRank reported = run.pp == 1           ? ReportedRank::kLargest
                                  : stage == 0          ? ReportedRank::kFirst
                                  : stage == run.pp - 1 ? ReportedRank::kLast
                                                        : ReportedRank::kLargest;
    const bool between = run.pp > 2 && reported == ReportedRank::kLargest;
    ReconcileRow row{.section = RowSection::kMemory,
                     .quantity = figure.kind == LoggedMemoryKind::kBetweenSteps
                                     ? "memory.between_steps"
                                     : "memory.peak." + std::string(to_string(figure.kind)),
                     .rank = figure.rank,
                     .unit = RowUnit::kBytes,
                     .measured = static_cast<double>(figure.bytes),
                     .side = between ? BoundSide::kAbove : BoundSide::kBoth};
    row.predicted = static_cast<double>(predicted_figure(run, figure.kind, reported));
    row.bound = error_.memory * *row.predicted;
    row.cause = memory_cause(row, figure, reported);
    if (between && row.cause.empty()) row.cause = "a stage between: the prediction is the largest stage's";
    rows().push_back(std::move(row));
  }

  // Of the profile's lines the one that the difference is, or tensors of its size.
  std::string memory_cause(const ReconcileRow& row, const LoggedMemory& figure, ReportedRank reported) const {
    if (row.pass()) return "";
    const auto difference = static_cast<int64_t>(*row.difference());
    if (figure.kind == LoggedMemoryKind::kReserved || figure.kind == LoggedMemoryKind::kProcess) {
      const int64_t allocated = figure_of(log_, figure.rank, LoggedMemoryKind::kAllocated);
      const int64_t cached = figure.bytes - allocated;
      if (allocated > 0 && difference > 0 &&
          static_cast<double>(cached) > kNoticeableCache * static_cast<double>(allocated))
        return "fragmentation: " + format_bytes(cached) + " reserved beside " + format_bytes(allocated) +
               " in tensors; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
    }
    if (const auto other = explain_memory(prediction_, figure.kind, reported, figure.bytes))
      return "as measured with " + other->what + ": " + format_bytes(other->bytes) + " predicted" +
             (other->assumed ? " (nobody has said how it is set)" : "; was the run as the configuration says?");
    return named_difference(difference);
  }

  std::string named_difference(int64_t difference) const {
    // A line that is there twice or not at all, within a fiftieth.
    const auto near = [&](int64_t bytes) { return std::abs(bytes - std::abs(difference)) * 50 < std::abs(difference); };
    const std::string sign(difference > 0 ? "more by " : "less by ");
    for (const ProfileLine& line : prediction_.memory.peak().lines)
      if (near(line.bytes)) return sign + "as much as the line \"" + line.name + "\" (" + line.formula + ")";
    for (const NamedSize& size : tensor_sizes(prediction_.run))
      if (near(size.bytes)) return sign + "as much as " + size.name + " (" + size.formula + ")";
    return "";
  }

  void add_pace() {
    const auto tokens = measured_tokens_per_s(prediction_, summary_);
    std::optional<double> step = summary_.step_seconds;
    if (!step && tokens) step = prediction_.tokens_per_step() / *tokens / static_cast<double>(prediction_.world());
    std::optional<double> predicted_step, predicted_tokens;
    if (prediction_.time) {
      predicted_step = prediction_.step_seconds();
      predicted_tokens = prediction_.time->tokens_per_s;
    }
    if (step)
      rows().push_back({.section = RowSection::kTime,
                        .quantity = "time.step",
                        .unit = RowUnit::kSeconds,
                        .predicted = predicted_step,
                        .measured = *step,
                        .cause = summary_.spread > kSpread ? "the slowest tenth of the steps takes " +
                                                                 percent(summary_.spread) + " longer than the median"
                                                           : ""});
    if (tokens) {
      ReconcileRow row{.section = RowSection::kAcceptance,
                       .quantity = "tokens_per_s.gpu",
                       .unit = RowUnit::kPerSecond,
                       .predicted = predicted_tokens,
                       .measured = *tokens};
      if (predicted_tokens) row.bound = error_.throughput * *predicted_tokens;
      row.cause = pace_cause(row);
      rows().push_back(std::move(row));
    }
    if (summary_.flops_per_s) {
      const double peak = prediction_.hardware.device.peak_flops_per_s.bf16.value;
      rows().push_back({.section = RowSection::kAcceptance,
                        .quantity = "mfu",
                        .unit = RowUnit::kShare,
                        .predicted = prediction_.time ? std::optional(prediction_.time->mfu) : std::nullopt,
                        .measured = peak > 0 ? *summary_.flops_per_s / peak : 0,
                        .cause = format_count(std::llround(*summary_.flops_per_s / 1e12)) +
                                 " TFLOP/s of a GPU by the framework's own count"});
    }
  }

  std::string pace_cause(const ReconcileRow& row) const {
    if (row.pass() || !row.predicted || row.measured > *row.predicted) return "";
    const double share = row.measured / *row.predicted;
    std::string cause = percent(share) + " of what is predicted";
    const auto link = explain_by_network(prediction_, row.measured);
    if (link && share < kFaultyShare)
      return cause + ": inter-node bandwidth first: the pace of links of " + gigabytes(link->bytes_per_s) +
             " a GPU where " + gigabytes(link->stated_bytes_per_s) +
             " are stated; measure it with all_reduce_perf of nccl-tests over two nodes";
    if (log_.allocator_retries > 0)
      return cause + ": the allocator gave its cache back " + format_count(log_.allocator_retries) +
             " time(s), and waits for the device each time";
    for (const CardUse& card : log_.cards)
      if (card.mean_utilization > 0 && card.mean_utilization < kBusyCard)
        return cause + ": kernels run " + percent(card.mean_utilization) + " of the time: host, data or links";
    if (share < kFaultyShare) return cause + ": a fault rather than a setting: other jobs, clocks, links, data";
    return cause;
  }

  static std::string gigabytes(double bytes_per_s) {
    const double gigabytes = bytes_per_s / 1e9;
    return format_count(std::llround(gigabytes)) == "0" ? "under 1 GB/s"
                                                        : format_count(std::llround(gigabytes)) + " GB/s";
  }

  void add_loss() {
    const auto add = [&](const char* quantity, const std::optional<double>& value) {
      if (value)
        rows().push_back(
            {.section = RowSection::kAcceptance, .quantity = quantity, .unit = RowUnit::kNumber, .measured = *value});
    };
    add("loss.last", summary_.last_loss);
    add("grad_norm.median", summary_.grad_norm);
    if (log_.allocator_retries > 0)
      rows().push_back({.section = RowSection::kMemory,
                        .quantity = "allocator.retries",
                        .unit = RowUnit::kCount,
                        .measured = static_cast<double>(log_.allocator_retries)});
  }

  // The log's arguments that the configuration contradicts.
  void note_arguments() {
    const FrameworkRun& run = prediction_.run;
    const std::pair<const char*, int64_t> known[] = {
        {"tensor_model_parallel_size", run.tp},
        {"pipeline_model_parallel_size", run.pp},
        {"context_parallel_size", run.cp},
        {"expert_model_parallel_size", run.ep},
        {"data_parallel_size", run.dp},
        {"micro_batch_size", run.micro},
        {"local_batch_size", run.micro * (run.framework == Framework::kFsdp2 ? run.microbatches : 1)},
        {"global_batch_size", run.micro * run.dp * run.microbatches},
        {"seq_length", run.sequence},
        {"seq_len", run.sequence},
        {"world_size", prediction_.world()},
        {"sequence_parallel", run.sp},
        {"num_layers", static_cast<int64_t>(run.model.layers.size())},
        {"hidden_size", run.model.hidden}};
    for (const auto& [name, value] : known) {
      const auto at = log_.arguments.find(name);
      if (at == log_.arguments.end() || at->second == "None") continue;
      const std::string text =
          std::string(name) == "sequence_parallel" ? (value != 0 ? "True" : "False") : std::to_string(value);
      if (at->second != text)
        result_.notes.push_back("the log's run had " + at->first + " = " + at->second + ", the configuration " + text);
    }
  }

  void add_notes() {
    note_arguments();
    if (foreign_ranks_ > 0)
      result_.notes.push_back("the log has rank " + std::to_string(foreign_ranks_) + ", the configuration " +
                              std::to_string(prediction_.world()) + " ranks");
    for (const std::string& note : prediction_.notes) result_.notes.push_back(note);
    for (const std::string& note : summary_.notes) result_.notes.push_back(note);
    for (const std::string& note : log_.notes) result_.notes.push_back(note);
    for (const OutOfMemory& failure : log_.out_of_memory)
      if (&failure == &log_.out_of_memory.front())
        result_.notes.push_back("an allocation of " + format_bytes(failure.requested) +
                                " failed: fivefold doctor says what of");
    if (!prediction_.no_time.empty()) result_.notes.push_back("no time is predicted: " + prediction_.no_time);
    result_.notes.push_back("bounds: 90th percentile of the profile's error on published runs: memory " +
                            percent(error_.memory) + " (" + std::string(error_.memory_source) + "), throughput " +
                            percent(error_.throughput) + " (" + std::string(error_.throughput_source) + ")");
    if (const std::string assumed = assumed_switches(prediction_.run); !assumed.empty())
      result_.notes.push_back("nobody has set, so assumed: " + assumed);
  }

  static constexpr double kIdleCard = 0.03;  // of its memory
  static constexpr double kSpread = 0.2;     // of step times, worth a word
  static constexpr double kBusyCard = 0.85;  // what a card in training shows and more

  const FrameworkPrediction& prediction_;
  const ForeignLog& log_;
  LogSummary summary_;
  PublishedError error_;
  int foreign_ranks_ = 0;
  Reconciliation result_;
};

}  // namespace

std::optional<double> measured_tokens_per_s(const FrameworkPrediction& prediction, const LogSummary& summary) {
  if (summary.tokens_per_s) return summary.tokens_per_s;
  if (!summary.step_seconds) return std::nullopt;
  const double tokens =
      summary.samples ? *summary.samples * static_cast<double>(prediction.run.sequence) : prediction.tokens_per_step();
  return tokens / *summary.step_seconds / static_cast<double>(prediction.world());
}

Reconciliation reconcile_log(const FrameworkPrediction& prediction, const ForeignLog& log) {
  return LogRows(prediction, log).find();
}

}  // namespace fivefold
