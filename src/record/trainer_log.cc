// transformers' Trainer: trainer_state.json (TrainerState.log_history), the dictionaries that ProgressCallback and
// PrinterCallback print, log_metrics()'s table, and the progress bar. Keys of ms-swift and axolotl are understood too.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/nesting.h"
#include "base/units.h"
#include "record/log_readers.h"

namespace fivefold {
namespace {

using Json = nlohmann::json;
using Entry = std::map<std::string, double>;

std::optional<double> signed_number(std::string_view text) {
  text = trimmed(text);
  const bool negative = text.starts_with("-");
  if (negative) text.remove_prefix(1);
  const auto size = leading_number(text);
  if (!size) return std::nullopt;
  return negative ? -*size : *size;
}

// A flat dictionary as Python prints it; values that are no numbers are left out. Numbers may be in quotes
// (transformers 5). Nothing when the text is none, or is cut off.
std::optional<Entry> printed_entry(std::string_view text) {
  if (!text.starts_with("{")) return std::nullopt;
  text.remove_prefix(1);
  Entry entry;
  while (true) {
    text = trimmed(text);
    if (text.empty() || (text.front() != '\'' && text.front() != '"')) return std::nullopt;
    const size_t quote = text.find(text.front(), 1);
    if (quote == std::string_view::npos) return std::nullopt;
    const std::string key(text.substr(1, quote - 1));
    text = trimmed(text.substr(quote + 1));
    if (!text.starts_with(":")) return std::nullopt;
    text = trimmed(text.substr(1));
    std::string_view value;
    if (!text.empty() && (text.front() == '\'' || text.front() == '"')) {
      const size_t close = text.find(text.front(), 1);
      if (close == std::string_view::npos) return std::nullopt;
      value = text.substr(1, close - 1);
      text = trimmed(text.substr(close + 1));
    } else {
      const size_t end = text.find_first_of(",}");
      if (end == std::string_view::npos) return std::nullopt;
      value = text.substr(0, end);
      text = text.substr(end);
    }
    if (const auto number = signed_number(value)) entry[key] = *number;
    if (text.starts_with("}")) return entry;
    if (!text.starts_with(",")) return std::nullopt;
    text.remove_prefix(1);
  }
}

std::optional<double> of(const Entry& entry, const std::string& key) {
  const auto at = entry.find(key);
  if (at == entry.end() || at->second < 0) return std::nullopt;
  return at->second;
}

class TrainerReader {
 public:
  explicit TrainerReader(ForeignLog& log) : log_(log) {}

  void add(const Entry& entry) {
    memory(entry);
    if (of(entry, "train_runtime") && (of(entry, "train_loss") || of(entry, "train_samples_per_second"))) {
      whole(entry);
    } else if (entry.contains("loss")) {
      LoggedStep step;
      step.step = static_cast<int64_t>(std::min(of(entry, "step").value_or(static_cast<double>(++printed_)), 1e15));
      step.loss = of(entry, "loss");
      step.grad_norm = of(entry, "grad_norm");
      step.tokens_of_world = of(entry, "num_input_tokens_seen");
      for (const char* key : {"tokens_per_second_per_gpu", "tokens/train_per_sec_per_gpu"})
        if (!step.tokens_per_s) step.tokens_per_s = of(entry, key);
      step.session = sessions_.session_of(kUnknownRank, step.step);
      log_.steps.push_back(step);
    }
  }

  void line(std::string_view text) {
    const size_t open = text.find('{');
    if (open != std::string_view::npos) {
      const std::string_view rest = text.substr(open);
      if (const auto entry = printed_entry(rest))
        add(*entry);
      else if (rest.starts_with("{'loss':"))
        ++log_.cut_lines;
      return;
    }
    if (metric(trimmed(text))) return;
    bar(trimmed(text));
  }

  void finish() {
    const auto longest = std::ranges::max_element(
        bars_, {}, [](const auto& bar) { return bar.second.empty() ? 0.0 : bar.second.back().elapsed_s; });
    if (longest != bars_.end()) log_.progress = longest->second;
    if (metrics_.contains("train_runtime")) whole(metrics_);
  }

 private:
  void whole(const Entry& entry) {
    log_.whole.seconds = of(entry, "train_runtime");
    log_.whole.steps_per_s = of(entry, "train_steps_per_second");
    log_.whole.samples_per_s = of(entry, "train_samples_per_second");
    log_.whole.tokens_per_s = of(entry, "train_tokens_per_second");
  }

  void memory(const Entry& entry) {
    for (const auto& [key, value] : entry) {
      std::string lower = key;
      std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
      const auto names = [&lower](std::string_view what) { return lower.find(what) != std::string::npos; };
      if (!lower.starts_with("memory") || !names("gib")) continue;
      // ms-swift's memory(GiB) is reserved; axolotl names which.
      if (lower == "memory(gib)" || names("reserved"))
        note_memory(log_, 0, LoggedMemoryKind::kReserved, value * static_cast<double>(kGiB));
      else if (names("alloc") || names("active"))
        note_memory(log_, 0, LoggedMemoryKind::kAllocated, value * static_cast<double>(kGiB));
    }
    // TrainerMemoryTracker: what was there, what a stage left, and how far above that its peak was.
    if (!entry.contains("train_mem_gpu_peaked_delta") || !entry.contains("before_init_mem_gpu")) return;
    double peak = 0;
    for (const char* key :
         {"before_init_mem_gpu", "init_mem_gpu_alloc_delta", "train_mem_gpu_alloc_delta", "train_mem_gpu_peaked_delta"})
      if (const auto at = entry.find(key); at != entry.end()) peak += at->second;
    note_memory(log_, 0, LoggedMemoryKind::kAllocated, peak);
  }

  // "  train_samples_per_second =      8.021", "  train_runtime            = 0:04:59.19"
  bool metric(std::string_view text) {
    const size_t equals = text.find('=');
    if (!text.starts_with("train_") || equals == std::string_view::npos) return false;
    const std::string key(trimmed(text.substr(0, equals)));
    const std::string_view value = trimmed(text.substr(equals + 1));
    if (key == "train_runtime") {
      if (const auto clock = clock_seconds(value)) metrics_[key] = *clock;
    } else if (const auto number = leading_number(value)) {
      metrics_[key] = *number;
    }
    return true;
  }

  // "0:04:59.19", "04:11": seconds. `rest` gets what follows.
  static std::optional<double> clock_seconds(std::string_view text, std::string_view* rest = nullptr) {
    double seconds = 0;
    for (int part = 0; part < 4; ++part) {
      const auto number = leading_number(text, &text);
      if (!number) return std::nullopt;
      seconds = seconds * 60 + *number;
      if (!text.starts_with(":")) {
        if (part == 0 || seconds > kMostOfAnything) return std::nullopt;
        if (rest != nullptr) *rest = text;
        return seconds;
      }
      text.remove_prefix(1);
    }
    return std::nullopt;
  }

  // " 12%|#2   | 12/100 [00:31<03:50,  2.61s/it]": the training's bar has no description before the percentage.
  void bar(std::string_view text) {
    if (text.empty() || text.front() < '0' || '9' < text.front()) return;
    const size_t open = text.rfind(" [");
    const size_t before = text.rfind('|', open);
    if (open == std::string_view::npos || before == std::string_view::npos || before > open) return;
    ProgressPoint point;
    std::string_view rest;
    const auto done = whole_number(text.substr(before + 1), &rest);
    if (!done || !rest.starts_with("/")) return;
    const auto total = whole_number(rest.substr(1));
    const auto clock = clock_seconds(text.substr(open + 2), &rest);
    if (!total || !clock || !rest.starts_with("<")) return;
    std::vector<ProgressPoint>& points = bars_[*total];
    if (!points.empty() && *done < points.back().done) points.clear();
    if (points.empty() || *done > points.back().done) points.push_back({*done, *total, *clock});
  }

  ForeignLog& log_;
  SessionCount sessions_;
  int64_t printed_ = 0;
  Entry metrics_;
  std::map<int64_t, std::vector<ProgressPoint>> bars_;  // by their totals
};

// trainer_state.json. False when the text is none.
bool read_state(std::string_view content, TrainerReader& reader) {
  const size_t first = content.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || content[first] != '{') return false;
  if (!check_json_nesting(content, "trainer_state.json").ok()) return false;
  const Json state = Json::parse(content, nullptr, false);
  if (!state.is_object() || !state.contains("log_history") || !state["log_history"].is_array()) return false;
  for (const Json& item : state["log_history"]) {
    if (!item.is_object()) continue;
    Entry entry;
    for (const auto& [key, value] : item.items())
      if (value.is_number())
        if (const double number = value.get<double>(); std::isfinite(number) && std::abs(number) <= kMostOfAnything)
          entry[key] = number;
    reader.add(entry);
  }
  return true;
}

}  // namespace

void read_trainer(std::string_view content, ForeignLog& log) {
  TrainerReader reader(log);
  if (!read_state(content, reader)) for_each_line(content, [&reader](std::string_view line) { reader.line(line); });
  reader.finish();
}

}  // namespace fivefold
