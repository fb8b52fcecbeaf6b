#include "cli/explain_text.h"

#include <fmt/format.h>

#include "base/integer.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/output.h"
#include "planner/search.h"
#include "report/timeline_picture.h"
#include "spec/rank_grid.h"

namespace fivefold {
namespace {

std::string heading(std::string_view text) { return painted(Paint::kHeading, text) + "\n"; }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string tera(double flops) { return fmt::format("{:.4g} TFLOP", flops / 1e12); }

std::string traffic_table(const std::vector<TrafficLine>& traffic) {
  Table table({"collective", "group", "purpose", "calls", "sent"});
  for (const TrafficLine& line : traffic)
    table.add_row({std::string(to_string(line.kind)), std::string(to_string(line.group)),
                   std::string(to_string(line.purpose)), format_count(line.calls), format_bytes(line.bytes)});
  return table.to_string(2);
}

std::string saved_table(const ModelSpec& model, const Inventory& inventory, const Explanation& e) {
  Table table({"saved for backward", "recompute.tensors", "bytes per token", "of a microbatch, per layer"});
  const TapeShape shape = tape_shape(e.config);
  int64_t sum = 0;
  for (const SavedTensor& tensor : saved_tensors_by_range(model, inventory, e.config)) {
    const int64_t bytes = saved_bytes(tensor, shape);
    const std::string to_drop(tensor.name_to_drop ? to_string(*tensor.name_to_drop) : "");
    table.add_row({tensor.name, to_drop, format_count(div_ceil(bytes, shape.tokens)), format_bytes(bytes)});
    sum += bytes;
  }
  table.add_rule();
  table.add_row({"sum", "", format_count(div_ceil(sum, shape.tokens)), format_bytes(sum)});
  return table.to_string(2);
}

std::string flops_text(const ModelSpec& model, const Explanation& e) {
  return fmt::format(
      "  6 N per token          {}  (N {}, {} tokens)\n"
      "  attention, causal      {}  (all pairs: {})\n"
      "  recomputed             {}\n"
      "  MFU {}  HFU {}  (causal; all pairs: MFU {})\n",
      tera(e.flops.matrices), format_count(multiplied_parameters(model)), format_count(e.config.tokens_per_step),
      tera(e.flops.attention_causal), tera(e.flops.attention_full),
      tera(e.flops.hardware_causal() - e.flops.model_causal()), percent(e.mfu()), percent(e.hfu()),
      percent(e.flops.model_full() / (e.cost.seconds * e.peak_flops_per_s)));
}

std::string fit_text(const Explanation& e) {
  const bool fits = e.ledger.peak_total <= e.capacity;
  return fmt::format(
      "  {} {} of {} ({}), at: {}\n", painted(fits ? Paint::kGood : Paint::kBad, fits ? "fits:" : "does not fit:"),
      format_bytes(e.ledger.peak_total), format_bytes(e.capacity),
      percent(static_cast<double>(e.ledger.peak_total) / static_cast<double>(e.capacity)), e.ledger.peak_moment);
}

}  // namespace

std::string memory_table(const Ledger& ledger) {
  Table table({"account", "between steps", "at the peak", "own peak"});
  for (int i = 0; i < kNumAccounts; ++i) {
    const auto account = static_cast<Account>(i);
    if (ledger.peak[account] == 0) continue;
    table.add_row({std::string(to_string(account)), format_bytes(ledger.persistent[account]),
                   format_bytes(ledger.at_peak[account]), format_bytes(ledger.peak[account])});
  }
  table.add_rule();
  table.add_row({"sum", format_bytes(ledger.persistent.total()), format_bytes(ledger.peak_total), ""});
  return table.to_string(2);
}

std::string time_table(const StepCost& cost) {
  Table table({"part of a step", "time", "share"});
  for (int i = 0; i < kNumTimeParts; ++i) {
    const auto part = static_cast<TimePart>(i);
    if (cost[part] > 0)
      table.add_row({std::string(to_string(part)), format_seconds(cost[part]), percent(cost[part] / cost.seconds)});
  }
  table.add_rule();
  table.add_row({"step", format_seconds(cost.seconds), ""});
  return table.to_string(2);
}

std::string simulated_text(const HardwareSpec& hardware) {
  return hardware.simulated ? ", links of " + hardware.simulated->name : "";
}

std::string explanation_text(const ModelSpec& model, const Inventory& inventory, const Explanation& e,
                             const HardwareSpec& hardware) {
  std::string text = heading(fmt::format("{} on {} x {}{}: {}", model.name, e.config.degrees.world(),
                                         hardware.device.name, simulated_text(hardware), layout_text(e.config)));
  const std::string which = e.config.degrees.pp == 1 ? "a rank" : fmt::format("rank {}, the fullest", e.rank);
  text += "\n" + heading("Memory of " + which) + memory_table(e.ledger) + fit_text(e);
  text += "\n" + heading("Activations of a layer") + saved_table(model, inventory, e);
  text +=
      "\n" + heading("Communication of a rank and step") + (e.traffic.empty() ? "  none\n" : traffic_table(e.traffic));
  text += "\n" + heading("Time") + time_table(e.cost) +
          fmt::format("  {:.0f} tokens/s; communication {} in all; bubble {}\n", e.tokens_per_s,
                      format_seconds(e.cost.communication_seconds),
                      e.config.degrees.pp == 1 ? "0 (one stage)" : percent(e.cost[TimePart::kBubble] / e.cost.seconds));
  return text + "\n" + heading("Work of a step") + flops_text(model, e);
}

std::string formulas_text(const ModelSpec& model, const Inventory& inventory, const Explanation& e) {
  std::string text = "\n" + heading("Formulas: memory (docs/memory.md)");
  Table memory({"line", "account", "bytes", "formula"});
  const auto add_line = [&](const MemoryLine& line) {
    memory.add_row({line.name, std::string(to_string(line.account)), format_count(line.bytes), line.formula});
  };
  for (const MemoryLine& line : memory_lines(model, inventory, e.config)) add_line(line);
  if (e.scratch) add_line(*e.scratch);
  text += memory.to_string(2) + "\n" + heading("Formulas: communication (docs/communication.md)");
  Table traffic({"collective", "purpose", "bytes", "formula"});
  for (const TrafficLine& line : e.traffic)
    traffic.add_row({std::string(to_string(line.kind)), std::string(to_string(line.purpose)), format_count(line.bytes),
                     traffic_formula(line, inventory, e.config)});
  text += traffic.to_string(2) + "\n" + heading("Formulas: work");
  return text + fmt::format(
                    "  matrices   6 x N {} x {} tokens = {}\n"
                    "  attention  causal: sum over layers of 6 x a d x s {} x tokens = {}\n"
                    "  MFU        {} / ({} x {:.4g} TFLOP/s) = {}\n",
                    format_count(multiplied_parameters(model)), format_count(e.config.tokens_per_step),
                    tera(e.flops.matrices), e.config.config.batch.sequence, tera(e.flops.attention_causal),
                    tera(e.flops.model_causal()), format_seconds(e.cost.seconds), e.peak_flops_per_s / 1e12,
                    percent(e.mfu()));
}

std::string ranks_text(const Explanation& e) {
  const RankGrid grid = RankGrid::create(e.config.degrees).value();
  Table table({"rank", "dp", "shard", "replicate", "peak"});
  for (int rank = 0; rank < grid.world(); ++rank) {
    const Coordinates c = grid.coordinates(rank);
    table.add_row({std::to_string(rank), std::to_string(c.dp), std::to_string(c.shard), std::to_string(c.replicate),
                   format_bytes(e.ledger.peak_total)});
  }
  return "\n" + heading("Ranks") + table.to_string(2);
}

std::string timeline_text(const ModelSpec& model, const Explanation& e, const StepReplay& replay, int width) {
  const std::string bubble = e.config.degrees.pp == 1 ? "" : ", bubble of all ranks " + percent(replay.bubble());
  return "\n" + heading("Timeline") +
         draw_timelines(
             {replay_block("one step, " + format_seconds(replay.makespan_s) + bubble, replay, model, e.config)}, width);
}

std::string instructions_text(const Inventory& inventory, const StepReplay& replay) {
  const bool pipeline = replay.timelines.size() > 1;
  std::vector<std::string> header{"begin", "end", "on", "instruction"};
  if (pipeline) header.insert(header.begin(), "rank");
  Table table(header);
  for (size_t rank = 0; rank < replay.timelines.size(); ++rank)
    for (const TimelineEntry& entry : replay.timelines[rank]) {
      std::vector<std::string> cells{format_seconds(entry.begin_s), format_seconds(entry.end_s),
                                     entry.communication ? "network" : "device",
                                     to_string(entry.instruction, inventory)};
      if (pipeline) cells.insert(cells.begin(), std::to_string(rank));
      table.add_row(std::move(cells));
    }
  return "\n" + heading("Instructions") + table.to_string(2);
}

}  // namespace fivefold
