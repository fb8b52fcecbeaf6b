#include "planner/published/validation.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "planner/profiles/device_need.h"
#include "planner/profiles/framework_time.h"
#include "planner/published/published_names.h"
#include "planner/work.h"

namespace fivefold {
namespace {

constexpr double kGibibyte = 0x1p30;
// Below it fixed overheads (workspaces, context of libraries) dominate what the formulas are about.
constexpr int64_t kSmallRun = int64_t{4} << 30;

// The column is in GiB; a source that prints powers of ten says so in mem_kind.
int64_t measured_bytes(const PublishedRun& row) {
  const double unit = row.text("mem_kind").find("GB=1e9") != std::string::npos ? 1e9 : kGibibyte;
  return static_cast<int64_t>(row.number("mem_gib_per_gpu").value_or(0.0) * unit);
}

// Outcomes that say what memory did. A failure without its cause ("failed") says nothing.
std::optional<bool> ran(const PublishedRun& row) {
  const std::string outcome = row.text("outcome");
  if (outcome == "ok" || outcome.starts_with("fits")) return true;
  if (outcome == "oom" || outcome == "oom_or_failed") return false;
  return std::nullopt;
}

// Floating-point operations of a token by Megatron-LM's convention: 6 for each weight that multiplies, the output
// matrix included, and attention in full (12 s a d a layer).
double megatron_flops_per_token(const FrameworkRun& run) {
  double attention = 0;
  for (const LayerSpec& layer : run.model.layers)
    attention += 12 * static_cast<double>(run.sequence * layer.mixer.num_heads * layer.mixer.head_dim);
  return 6 * static_cast<double>(multiplied_parameters(run.model)) + attention;
}

// Of one GPU: as the source has it, from the time of a step, or from an MFU.
double measured_tokens_per_s(const PublishedRun& row, const FrameworkRun& run, const HardwareSpec* hardware) {
  if (const auto stated = row.number("tokens_per_s_per_gpu")) return *stated;
  const auto step = row.number("step_time_s");
  if (!step || *step <= 0) {
    const double peak = hardware != nullptr ? hardware->device.peak_flops_per_s.bf16.value : 0;
    // Narayanan et al. count what is recomputed.
    const bool counts_all = row.source() == "megatron_lm_readme_papers" && run.checkpointing == Checkpointing::kFull;
    return row.number("mfu").value_or(0) * (counts_all ? 0.75 : 1) * peak / megatron_flops_per_token(run);
  }
  return static_cast<double>(run.micro * run.microbatches * run.sequence) / *step /
         static_cast<double>(run.tp * run.pp * run.cp);
}

void predict_time(const PublishedRun& row, const FrameworkRun& run, const HardwareSpec* hardware,
                  ValidatedRow& validated) {
  validated.measured_tokens_per_s = measured_tokens_per_s(row, run, hardware);
  if (validated.measured_tokens_per_s == 0) return;
  // The sequence of a row is that of its peak; of some runs the mean is far shorter.
  if (row.text("notes").find("NOT at seq_len") != std::string::npos || run.hf.typical_length > 0) {
    validated.time_skipped = "most sequences are shorter than the stated one";
    return;
  }
  if (hardware == nullptr) {
    validated.time_skipped = "the GPU has no file";
    return;
  }
  const Result<FrameworkTime> time = framework_time(run, *hardware);
  if (time.ok())
    validated.predicted_tokens_per_s = time->tokens_per_s;
  else
    validated.time_skipped = time.error().problem;
}

void predict(const PublishedRun& row, const HardwareOf& hardware_of, ValidatedRow& validated) {
  const Result<FrameworkRun> run = framework_run(row);
  if (!run.ok()) {
    validated.skipped = run.error().problem;
    return;
  }
  validated.experts =
      std::ranges::any_of(run->model.layers, [](const LayerSpec& layer) { return layer.mlp.kind == MlpKind::kMoe; });
  const ProfileMemory memory = profile_memory(*run);
  validated.predicted_peak = memory.peak().bytes();
  validated.assumed = memory.assumed;
  const std::string cluster = published_cluster(row);
  const HardwareSpec* hardware = run->gpu.empty() ? nullptr : hardware_of(cluster.empty() ? run->gpu : cluster);
  const int64_t capacity =
      hardware != nullptr ? std::llround(hardware->device.memory_bytes.value) : run->capacity_bytes;
  if (capacity > 0) {
    // What a card must have does not depend on what a table prints.
    FrameworkRun allocated = *run;
    allocated.hf.figure = allocated.megatron.figure = MemoryFigure::kAllocated;
    allocated.sharding.counts_process = false;
    validated.predicted_fits = needed_bytes(profile_memory(allocated)) <= capacity;
  }
  predict_time(row, *run, hardware, validated);
}

bool states_time(const PublishedRun& row) {
  return std::ranges::any_of(std::array{"tokens_per_s_per_gpu", "step_time_s", "mfu"},
                             [&](const char* column) { return row.number(column).value_or(0) > 0; });
}

ValidatedRow validated_row(const PublishedRun& row, const HardwareOf& hardware_of) {
  ValidatedRow validated{.id = row.id(),
                         .source = row.source(),
                         .where = row.where,
                         .measured_peak = measured_bytes(row),
                         .trust = row.text("mem_trust"),
                         .held_out = is_held_out(row),
                         .ran = ran(row),
                         .group = row.source() + "|" + row.text("model") + "|" + row.text("n_gpus"),
                         .states_time = states_time(row),
                         .time_trust = row.text("time_trust"),
                         .mfu = row.number("mfu").value_or(0)};
  if (row.text("split") == "exclude") {
    validated.trust = "excluded";
    validated.skipped = "split is exclude: it contradicts itself or physics";
  } else {
    predict(row, hardware_of, validated);
  }
  return validated;
}

void anchor_times(const std::vector<PublishedRun>& runs, std::vector<ValidatedRow>& rows) {
  std::map<std::string, ValidatedRow*> fastest;
  const auto like = [&](size_t i) {
    return rows[i].source + "|" + runs[i].text("model") + "|" + published_gpu(runs[i]);
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].time_scored()) continue;
    ValidatedRow*& best = fastest[like(i)];
    if (best == nullptr || rows[i].measured_tokens_per_s > best->measured_tokens_per_s) best = &rows[i];
  }
  std::map<std::string, double> scale;
  for (const auto& [name, row] : fastest) {
    scale[name] = row->measured_tokens_per_s / row->predicted_tokens_per_s;
    row->anchor = true;
  }
  for (size_t i = 0; i < rows.size(); ++i)
    if (const auto known = scale.find(like(i)); known != scale.end()) rows[i].predicted_tokens_per_s *= known->second;
}

ErrorScore time_score(const std::vector<const ValidatedRow*>& rows, auto&& which) {
  std::vector<double> errors;
  for (const ValidatedRow* row : rows)
    if (row->time_scored() && which(*row)) errors.push_back(row->time_error_pct());
  return error_score(errors);
}

OrderScore order_of(const std::vector<const ValidatedRow*>& rows, double least_mfu) {
  std::vector<OrderedRun> runs;
  for (const ValidatedRow* row : rows)
    if (row->time_scored() && row->mfu >= least_mfu)
      runs.push_back({row->group, row->predicted_tokens_per_s, row->measured_tokens_per_s});
  return order_score(runs);
}

void score_times(const std::vector<const ValidatedRow*>& rows, SourceScore& score) {
  for (const ValidatedRow* row : rows) {
    if (!row->states_time || row->excluded() || (row->time_trust != "A" && row->time_trust != "B")) continue;
    ++score.time_measured;
    if (row->predicted_tokens_per_s > 0) continue;
    ++score.time_skipped;
    ++score.time_reasons[row->skipped.empty() ? row->time_skipped : row->skipped];
  }
  score.order = order_of(rows, 0);
  score.throughput = time_score(rows, [](const ValidatedRow&) { return true; });
  score.throughput_fitted = time_score(rows, [](const ValidatedRow& row) { return !row.held_out; });
  score.throughput_held_out = time_score(rows, [](const ValidatedRow& row) { return row.held_out; });
  for (const double least : {0.1, 0.2}) {
    const ErrorScore busy = time_score(rows, [&](const ValidatedRow& row) { return row.mfu >= least; });
    if (busy.n > 0 && busy.n < score.throughput.n) score.busy.push_back({least, busy, order_of(rows, least)});
  }
}

ErrorScore memory_score(const std::vector<const ValidatedRow*>& rows, auto&& which) {
  std::vector<double> errors;
  for (const ValidatedRow* row : rows)
    if (which(*row)) errors.push_back(row->memory_error_pct());
  return error_score(errors);
}

std::vector<PartScore> part_scores(const std::vector<const ValidatedRow*>& rows) {
  const auto part = [&](std::string name, bool experts, std::optional<bool> small) {
    return PartScore{std::move(name), memory_score(rows, [=](const ValidatedRow& row) {
                       return row.memory_scored() && row.experts == experts &&
                              (!small || *small == row.measured_peak < kSmallRun);
                     })};
  };
  std::vector<PartScore> parts = {part("dense, 4 GiB or more", false, false), part("dense, under 4 GiB", false, true),
                                  part("experts", true, std::nullopt)};
  std::erase_if(parts, [](const PartScore& p) { return p.memory.n == 0; });
  if (parts.size() < 2) parts.clear();
  return parts;
}

SourceScore source_score(const std::string& source, const std::vector<const ValidatedRow*>& rows) {
  SourceScore score{.source = source, .rows = static_cast<int>(rows.size())};
  std::vector<Outcome> outcomes;
  for (const ValidatedRow* row : rows) {
    if (!row->can_be_scored()) continue;
    ++score.measured;
    if (!row->skipped.empty()) {
      ++score.skipped;
      ++score.reasons[row->skipped];
    } else if (row->ran && row->predicted_fits && row->trust != "C") {
      outcomes.push_back({.predicted_fits = *row->predicted_fits, .ran = *row->ran});
    }
  }
  score.memory = memory_score(rows, [](const ValidatedRow& row) { return row.memory_scored(); });
  score.parts = part_scores(rows);
  score.fitted = memory_score(rows, [](const ValidatedRow& row) { return row.memory_scored() && !row.held_out; });
  score.held_out = memory_score(rows, [](const ValidatedRow& row) { return row.memory_scored() && row.held_out; });
  score.looked_at = memory_score(
      rows, [](const ValidatedRow& row) { return row.skipped.empty() && row.measured_peak > 0 && row.trust == "C"; });
  score.fit = fit_score(outcomes);
  score_times(rows, score);
  return score;
}

}  // namespace

double ValidatedRow::memory_error_pct() const {
  FIVEFOLD_CHECK(measured_peak > 0);
  return 100 * (static_cast<double>(predicted_peak) / static_cast<double>(measured_peak) - 1);
}

bool is_held_out(const PublishedRun& run) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char* column : {"source", "model", "layers", "vocab", "method", "n_gpus", "dp", "tp", "pp", "vpp",
                             "pp_schedule", "cp", "ep", "zero_stage", "recompute", "precision"})
    for (const char c : run.text(column) + "|") hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return (hash ^ hash >> 32) % 2 == 1;
}

std::vector<PublishedRun> merged_runs(std::vector<PublishedRun> runs) {
  std::map<std::string, size_t> first;
  std::vector<PublishedRun> merged;
  for (PublishedRun& run : runs) {
    const auto [known, is_new] = first.try_emplace(run.id(), merged.size());
    if (is_new || run.id().empty())
      merged.push_back(std::move(run));
    else
      merged[known->second].fields.merge(run.fields);
  }
  return merged;
}

Validation validate_runs(const std::vector<PublishedRun>& runs, const HardwareOf& hardware_of, bool anchored) {
  Validation validation;
  for (const PublishedRun& run : runs) validation.rows.push_back(validated_row(run, hardware_of));
  if (anchored) anchor_times(runs, validation.rows);
  std::vector<std::string> order;
  std::map<std::string, std::vector<const ValidatedRow*>> by_source;
  for (const ValidatedRow& row : validation.rows) {
    std::vector<const ValidatedRow*>& rows = by_source[row.source];
    if (rows.empty()) order.push_back(row.source);
    rows.push_back(&row);
  }
  for (const std::string& source : order) validation.sources.push_back(source_score(source, by_source[source]));
  return validation;
}

}  // namespace fivefold
