// Megatron-LM's log, and that of its forks: training_log() in megatron/training/training.py (lines about iterations),
// report_memory() in megatron/training/utils.py, report_theoretical_memory(), the dump of all arguments, timers.
#include <algorithm>
#include <string>

#include "base/units.h"
#include "record/log_readers.h"

namespace fivefold {
namespace {

constexpr size_t kMostArguments = 4096, kMostTimers = 256;

// "Elapsed_time per iteration" as "elapsed time per iteration".
std::string plain_key(std::string_view key) {
  std::string plain;
  for (const char c : trimmed(key))
    plain += c == '_' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return plain;
}

class MegatronReader {
 public:
  explicit MegatronReader(ForeignLog& log) : log_(log) {}

  void read(std::string_view line) {
    if (line.find("- arguments -") != std::string_view::npos) {
      in_arguments_ = true;
    } else if (line.find("- end of arguments -") != std::string_view::npos) {
      in_arguments_ = false;
    } else if (in_arguments_ && argument(line)) {
      return;
    }
    const size_t iteration = line.find("iteration");
    if (iteration != std::string_view::npos && about_iteration(line, line.substr(iteration + 9))) return;
    if (line.find("memory (MB)") != std::string_view::npos) return memory(line);
    if (line.find("Theoretical memory footprints") != std::string_view::npos) return theoretical(line);
    if (const size_t at = line.find("(new size: "); at != std::string_view::npos)
      if (const auto padded = whole_number(line.substr(at + 11)))
        log_.arguments.emplace("padded_vocab_size", std::to_string(*padded));
    timer(line);
  }

 private:
  // "  tensor_model_parallel_size ...................... 8", behind whatever a launcher puts there.
  bool argument(std::string_view line) {
    const size_t dots = line.find(" ...");
    if (dots == std::string_view::npos) return false;
    const std::string_view before = trimmed(line.substr(0, dots));
    const size_t blank = before.find_last_of(" \t:]");
    const std::string_view name = blank == std::string_view::npos ? before : before.substr(blank + 1);
    const size_t value = line.find_first_not_of('.', dots + 1);
    if (name.empty() || log_.arguments.size() >= kMostArguments) return true;
    log_.arguments[std::string(name)] =
        value == std::string_view::npos ? std::string() : std::string(trimmed(line.substr(value)));
    return true;
  }

  // " 100/ 1000 | consumed samples: ... |" behind the word; some forks write "iteration= 100/ 1000".
  bool about_iteration(std::string_view line, std::string_view rest) {
    rest = trimmed(rest);
    if (!rest.empty() && (rest.front() == '=' || rest.front() == ':')) rest.remove_prefix(1);
    const auto number = whole_number(rest, &rest);
    if (!number || !rest.starts_with("/")) return false;
    const size_t bar = rest.find('|');
    if (bar == std::string_view::npos) {
      ++log_.cut_lines;
      return true;
    }
    LoggedStep step{.step = *number, .rank = rank_of_line(line)};
    for (rest = rest.substr(bar + 1); !rest.empty();) {
      const size_t end = rest.find('|');
      // What has no bar behind it was cut off, perhaps within a number.
      if (end == std::string_view::npos) break;
      field(rest.substr(0, end), step);
      rest = rest.substr(end + 1);
    }
    if (!step.seconds) {
      ++log_.cut_lines;
      return true;
    }
    step.session = sessions_.session_of(step.rank, step.step);
    log_.steps.push_back(step);
    return true;
  }

  static void field(std::string_view text, LoggedStep& step) {
    const size_t colon = text.find_last_of(":=");
    if (colon == std::string_view::npos) return;
    const std::string key = plain_key(text.substr(0, colon));
    const auto value = leading_number(text.substr(colon + 1));
    if (!value) return;
    const auto names = [&key](std::string_view what) { return key.find(what) != std::string::npos; };
    const auto set = [&value](std::optional<double>& to, double scale) {
      if (!to) to = *value * scale;
    };
    if (key.starts_with("elapsed time per iteration")) {
      if (*value > 0) set(step.seconds, 1e-3);
    } else if (names("tflop")) {
      set(step.flops_per_s, 1e12);
    } else if (names("tokens/s/gpu") || names("tokens per gpu per second")) {
      set(step.tokens_per_s, 1);
    } else if (key == "global batch size") {
      set(step.samples, 1);
    } else if (key == "consumed tokens") {
      set(step.tokens_of_world, 1);
    } else if (key == "grad norm") {
      set(step.grad_norm, 1);
    } else if (key == "loss" || key == "lm loss") {
      set(step.loss, 1);
    }
  }

  // "[Rank 0] (after 2 iterations) memory (MB) | allocated: ... | max allocated: ... | reserved: ... | max reserved:
  // ..."
  void memory(std::string_view line) {
    const int rank = std::max(0, rank_of_line(line));
    const auto note = [&](std::string_view key, LoggedMemoryKind kind) {
      if (const auto mib = number_after(line, key)) note_memory(log_, rank, kind, *mib * static_cast<double>(kMiB));
    };
    note("| allocated", LoggedMemoryKind::kBetweenSteps);
    note("max allocated", LoggedMemoryKind::kAllocated);
    note("max reserved", LoggedMemoryKind::kReserved);
    note("total device memory used", LoggedMemoryKind::kProcess);
    if (!number_after(line, "max allocated")) ++log_.cut_lines;
  }

  void theoretical(std::string_view line) {
    const auto bytes = [&](std::string_view key) {
      return static_cast<int64_t>(std::min(number_after(line, key).value_or(0), 1e9) * static_cast<double>(kMiB));
    };
    log_.theoretical_states = std::max(log_.theoretical_states, bytes("weight and optimizer"));
    log_.theoretical_activations = std::max(log_.theoretical_activations, bytes("activation"));
  }

  // "    forward-backward ...............................: (106622.81, 106624.28)": the later report counts.
  void timer(std::string_view line) {
    const size_t dots = line.find(" ...");
    if (dots == std::string_view::npos) return;
    const size_t open = line.find(": (", dots);
    if (open == std::string_view::npos || line.find_first_not_of('.', dots + 1) != open) return;
    std::string_view rest;
    if (!leading_number(line.substr(open + 3), &rest) || !rest.starts_with(",")) return;
    const auto slowest = leading_number(rest.substr(1));
    const std::string_view before = trimmed(line.substr(0, dots));
    const size_t blank = before.find_last_of(" \t:]");
    const std::string name(blank == std::string_view::npos ? before : before.substr(blank + 1));
    if (slowest && (log_.timers_ms.size() < kMostTimers || log_.timers_ms.contains(name)))
      log_.timers_ms[name] = *slowest;
  }

  ForeignLog& log_;
  SessionCount sessions_;
  bool in_arguments_ = false;
};

}  // namespace

void read_megatron(std::string_view content, ForeignLog& log) {
  MegatronReader reader(log);
  for_each_line(content, [&reader](std::string_view line) { reader.read(line); });
}

}  // namespace fivefold
