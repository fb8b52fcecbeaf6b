#include "cli/framework_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/integer.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/framework_host.h"
#include "cli/framework_steps.h"
#include "cli/output.h"
#include "planner/goodput.h"
#include "planner/profiles/framework_config.h"
#include "planner/profiles/framework_knobs.h"
#include "planner/profiles/framework_switches.h"
#include "planner/profiles/published_error.h"
#include "planner/profiles/run_notes.h"
#include "reconcile/doctor.h"
#include "spec/model_count.h"

namespace fivefold {
namespace {

std::string heading(std::string_view text) { return painted(Paint::kHeading, text) + "\n"; }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
int64_t gpus_of(const FrameworkRun& run) { return run.dp * run.tp * run.cp * run.pp; }

std::string ledger_text(const FrameworkPlan& plan, bool formulas) {
  std::vector<std::string> header = {"line", "bytes"};
  if (formulas) header.emplace_back("formula");
  Table table(header);
  const auto add = [&](const std::string& name, int64_t bytes, const std::string& formula) {
    std::vector<std::string> cells = {name, format_bytes(bytes)};
    if (formulas) cells.push_back(formula);
    table.add_row(std::move(cells));
  };
  for (const ProfileLine& line : plan.memory.peak().lines) add(line.name, line.bytes, line.formula);
  table.add_rule();
  const int64_t peak = plan.memory.peak().bytes();
  add("allocated at the peak", peak, "");
  add("with the allocator's loss and what lies outside it", plan.needed, "");
  const PublishedError error = published_error(plan.run);
  std::string verdict;
  if (!plan.fits())
    verdict = "; it does not fit";
  else if (static_cast<double>(plan.needed) * (1 + error.memory) > static_cast<double>(plan.capacity))
    verdict = "; within that error it may not fit: try it for a step";
  return table.to_string(2) +
         fmt::format("  {} of {} that the GPU has; nine of ten published runs are within {:.0f} % ({}){}\n",
                     format_bytes(plan.needed), format_bytes(plan.capacity), 100 * error.memory, error.memory_source,
                     verdict);
}

std::string time_text(const FrameworkPlan& plan) {
  Table table({"part of a step", "time", "share"});
  for (int i = 0; i < kNumFrameworkParts; ++i) {
    const auto part = static_cast<FrameworkPart>(i);
    if (plan.time[part] <= 0) continue;
    table.add_row(
        {std::string(to_string(part)), format_seconds(plan.time[part]), percent(plan.time[part] / plan.time.seconds)});
  }
  table.add_rule();
  table.add_row({"step", format_seconds(plan.time.seconds), ""});
  const PublishedError error = published_error(plan.run);
  return table.to_string(2) + fmt::format(
                                  "  {:.0f} tokens/s, {:.0f} a GPU; MFU {}, HFU {} with causal attention, {} and {} "
                                  "with all of it; nine of ten "
                                  "published runs are within {:.0f} % ({})\n",
                                  plan.tokens_per_s, plan.time.tokens_per_s, percent(plan.time.mfu),
                                  percent(plan.time.hfu), percent(plan.time.mfu_full), percent(plan.time.hfu_full),
                                  100 * error.throughput, error.throughput_source);
}

std::string switches_text(const FrameworkRun& run) {
  std::vector<std::string> said, assumed;
  for (const SwitchValue& value : switch_values(run))
    (value.assumed ? assumed : said).push_back(value.name + "=" + value.value);
  std::string text;
  if (!said.empty()) text += fmt::format("  set: {}\n", join(said, ", "));
  return text + fmt::format("  assumed: {}\n", join(assumed, ", "));
}

// A checkpoint: weights in 2 bytes, and what the optimizer has.
double checkpoint_bytes(const FrameworkRun& run) { return 14.0 * static_cast<double>(count_parameters(run.model)); }

std::string running_text(const FrameworkPlan& plan, const HardwareSpec& hardware, double tokens) {
  const int64_t gpus = gpus_of(plan.run);
  const Goodput good = goodput(gpus, div_ceil(gpus, hardware.devices_per_node), checkpoint_bytes(plan.run));
  std::string text;
  const double price = hardware.device.price_per_hour.value * static_cast<double>(gpus);
  if (price > 0)
    text +=
        fmt::format("  {:.2f} US dollars an hour ({} a GPU, assumed)\n", price, hardware.device.price_per_hour.value);
  if (gpus > 8)
    text += fmt::format(
        "  goodput {}: a failure every {} (Llama 3's rate), a checkpoint every {} that stalls {}, restarts of {}\n",
        percent(good.share), format_seconds(good.failure_every_s), format_seconds(good.checkpoint_every_s),
        format_seconds(good.stall_s), format_seconds(kRestartS));
  if (tokens > 0) {
    const double hours = tokens / plan.tokens_per_s / (gpus > 8 ? good.share : 1) / 3600;
    text += fmt::format("  {} tokens: {:.1f} days, {:.0f} US dollars\n", format_count(std::llround(tokens)), hours / 24,
                        price * hours);
  }
  return text;
}

std::string knobs_text(const FrameworkPlan& plan, const HardwareSpec& hardware) {
  Table table({"change", "needs", "step", "what changes"});
  for (const Knob& knob : framework_knobs(plan, hardware)) {
    if (!knob.plan) {
      table.add_row({knob.change, "-", "-", knob.refused});
      continue;
    }
    const double change = knob.plan->time.seconds / plan.time.seconds - 1;
    table.add_row({knob.change, format_bytes(knob.plan->needed), fmt::format("{:+.1f} %", 100 * change),
                   (knob.plan->fits() ? "" : "does not fit; ") + changed_parts(plan.time, knob.plan->time)});
  }
  return table.to_string(2);
}

std::string plans_text(const FrameworkResult& result) {
  Table table({"layout", "needs", "step", "tokens/s", "a GPU", "MFU"});
  for (const FrameworkPlan& plan : result.plans)
    table.add_row({layout_text(plan.run), format_bytes(plan.needed), format_seconds(plan.time.seconds),
                   fmt::format("{:.0f}", plan.tokens_per_s), fmt::format("{:.0f}", plan.time.tokens_per_s),
                   percent(plan.time.mfu)});
  return table.to_string(2);
}

std::string losers_text(const FrameworkResult& result) {
  std::string text;
  const FrameworkPlan& best = result.plans[0];
  for (size_t i = 1; i < result.plans.size(); ++i)
    text += fmt::format("  {}\n    {}\n", layout_text(result.plans[i].run), losing_reason(best, result.plans[i]));
  for (const FrameworkLoser& loser : result.losers) {
    if (!loser.plan) {
      text += fmt::format("  {}\n    has no legal layout\n", loser.kind);
      continue;
    }
    const bool shown =
        std::ranges::any_of(result.plans, [&](const FrameworkPlan& p) { return p.layout == loser.plan->layout; });
    if (!shown)
      text +=
          fmt::format("  {}: {}\n    {}\n", loser.kind, layout_text(loser.plan->run), losing_reason(best, *loser.plan));
  }
  return text;
}

std::string notes_text(const FrameworkPlan& plan, const HardwareSpec& hardware) {
  std::string text;
  for (const Error& note : run_notes(plan.run, plan.memory, hardware))
    text += fmt::format("  {}: {}{}\n", note.where, note.problem, note.hint.empty() ? "" : "\n    -> " + note.hint);
  return text;
}

std::string title(const FrameworkRun& run, int64_t gpus, const HardwareSpec& hardware) {
  return heading(fmt::format("{} on {} x {}, as {} runs it", run.model.name, gpus, hardware.device.name,
                             to_string(run.framework)));
}

std::string search_text(const FrameworkResult& result) {
  return fmt::format(
      "\n{} layouts: {} bounds computed, {} of them sized, {} replayed; nothing left out is faster and fits\n",
      result.layouts, result.bounds, result.sized, result.replayed);
}

}  // namespace

std::string framework_plan_text(const FrameworkAnswer& answer) {
  const auto& [request, result, base, tokens, with_more, assumed] = answer;
  std::string text = title(request.base, request.gpus, request.hardware);
  for (const std::string& line : assumed) text += line + "\n";
  text += "\n";
  int number = 1;
  for (const DecisionStep& step : framework_steps(request, result)) {
    text += heading(fmt::format("{}. {}", number++, step.title));
    for (const std::string& line : step.lines) text += "   " + line + "\n";
  }
  text += "\n";
  if (result.plans.empty()) {
    text += painted(Paint::kBad,
                    fmt::format("Nothing fits. The least that any layout needs is {} of {}.",
                                format_bytes(result.smallest->needed), format_bytes(result.smallest->capacity))) +
            "\n";
    text += ledger_text(*result.smallest, false) + "\n";
    const RunConfig config = framework_run_config(result.smallest->run, base);
    const Result<FrameworkPrediction> predicted = predict_framework(request.base.model, config, request.hardware);
    if (with_more)
      text += heading("On more GPUs") + fmt::format("  {} instead of {}: {}\n    {} a GPU, {:.0f} tokens/s\n\n",
                                                    gpus_of(with_more->run), request.gpus, layout_text(with_more->run),
                                                    format_bytes(with_more->needed), with_more->tokens_per_s);
    if (predicted.ok())
      text += heading("What would make it fit") + to_text(diagnose({.prediction = *predicted}, Symptom::kOutOfMemory));
    return text + search_text(result);
  }
  const FrameworkPlan& best = result.plans[0];
  text += heading("Plans, best first") + plans_text(result) + "\n";
  text += heading(best.run.pp > 1 ? fmt::format("Memory of the best, of stage {}, which needs most", best.memory.stage)
                                  : std::string("Memory of the best")) +
          ledger_text(best, false) + "\n";
  text += heading("Time of the best, of the stage that computes longest") + time_text(best) + "\n";
  if (const std::string running = running_text(best, request.hardware, tokens); !running.empty())
    text += heading("Running it") + running + "\n";
  text += heading("What each axis costs and buys here") + knobs_text(best, request.hardware) + "\n";
  text += heading("Why the rest loses") + losers_text(result) + "\n";
  text += heading("Switches") + switches_text(best.run);
  if (const std::string notes = notes_text(best, request.hardware); !notes.empty())
    text += "\n" + heading("To know") + notes;
  return text + search_text(result);
}

std::string framework_cards_text(const std::string& model, const std::string& device, int64_t sequence,
                                 const std::vector<FrameworkCardsRow>& rows) {
  Table table({"cards", "method", "layout", "needs", "tokens/s", "a card"});
  std::vector<std::string> use;
  int before = rows.empty() ? 0 : rows[0].cards, named = 0;
  for (const FrameworkCardsRow& row : rows) {
    if (row.cards != before) table.add_rule();
    before = row.cards;
    const std::string cards = std::to_string(row.cards), method(to_string(row.method));
    if (!row.answer.ok()) {
      table.add_row({cards, method, row.answer.error().problem, "", "", ""});
      continue;
    }
    const FrameworkResult& result = row.answer->result;
    if (result.plans.empty()) {
      table.add_row({cards, method, "does not fit", format_bytes(result.smallest->needed), "", ""});
      continue;
    }
    const FrameworkPlan& plan = result.plans[0];
    if (named != row.cards) use.push_back(cards + ": " + method);
    named = row.cards;
    table.add_row({cards, method, layout_text(plan.run), format_bytes(plan.needed),
                   fmt::format("{:.0f}", plan.tokens_per_s), fmt::format("{:.0f}", plan.time.tokens_per_s)});
  }
  std::string text =
      heading(fmt::format("{} on {}, sequences of {} tokens", model, device, sequence)) + table.to_string(2);
  if (!use.empty()) text += fmt::format("  most that can be trained, by cards: {}\n", join(use, ", "));
  return text + "  compare by what a card does: totals grow with any number of cards\n";
}

std::string framework_explanation_text(const FrameworkPlan& plan, const HardwareSpec& hardware, bool formulas) {
  std::string text = title(plan.run, gpus_of(plan.run), hardware);
  text += layout_text(plan.run) + "\n";
  if (!plan.fits())
    text += painted(Paint::kBad, fmt::format("It does not fit: {} more than the GPU has.",
                                             format_bytes(plan.needed - plan.capacity))) +
            "\n";
  text += "\n" +
          heading(plan.run.pp > 1 ? fmt::format("Memory, of stage {}, which needs most", plan.memory.stage)
                                  : std::string("Memory")) +
          ledger_text(plan, formulas) + "\n" + host_text(plan, hardware, formulas) + "\n";
  text += heading("Time, of the stage that computes longest") + time_text(plan) + "\n";
  if (const std::string running = running_text(plan, hardware, 0); !running.empty())
    text += heading("Running it") + running + "\n";
  text += heading("What each axis costs and buys here") + knobs_text(plan, hardware) + "\n";
  text += heading("Switches") + switches_text(plan.run);
  if (const std::string notes = notes_text(plan, hardware); !notes.empty()) text += "\n" + heading("To know") + notes;
  return text;
}

}  // namespace fivefold
