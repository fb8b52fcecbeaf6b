#include "record/foreign_log.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "record/log_readers.h"

namespace fivefold {
namespace {

constexpr std::array<std::string_view, kNumLogKinds> kKindNames = {"megatron",   "torchtitan", "hf",
                                                                   "nvidia-smi", "snapshot",   "messages"};

bool has(std::string_view content, std::string_view what) { return content.find(what) != std::string_view::npos; }

// Protocols 2 to 5 of pickle begin with this opcode and their number.
bool is_pickle(std::string_view content) {
  return content.size() > 2 && content[0] == '\x80' && content[1] >= 2 && content[1] <= 5;
}

std::string_view expected(LogKind kind) {
  switch (kind) {
    case LogKind::kMegatron:
      return "no line \"iteration N/ M | ... elapsed time per iteration (ms): ...\" and no memory report";
    case LogKind::kTorchtitan:
      return "no line \"step: N  loss: ...\"";
    case LogKind::kTrainer:
      return "no log_history and no printed {'loss': ...}";
    case LogKind::kNvidiaSmi:
      return "no header with memory.used and no table of cards";
    case LogKind::kSnapshot:
      return "no segments";
    case LogKind::kMessages:
      return "no message of PyTorch's allocator";
  }
  FIVEFOLD_CHECK(false);
}

}  // namespace

std::string_view to_string(LogKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::optional<LogKind> log_kind_of(std::string_view name) {
  const auto at = std::find(kKindNames.begin(), kKindNames.end(), name);
  if (at == kKindNames.end()) return std::nullopt;
  return static_cast<LogKind>(at - kKindNames.begin());
}

std::string_view to_string(LoggedMemoryKind kind) {
  switch (kind) {
    case LoggedMemoryKind::kBetweenSteps:
      return "between_steps";
    case LoggedMemoryKind::kAllocated:
      return "allocated";
    case LoggedMemoryKind::kReserved:
      return "reserved";
    case LoggedMemoryKind::kProcess:
      return "process";
  }
  FIVEFOLD_CHECK(false);
}

int64_t ForeignLog::peak(LoggedMemoryKind kind) const {
  int64_t most = 0;
  for (const LoggedMemory& figure : memory)
    if (figure.kind == kind) most = std::max(most, figure.bytes);
  return most;
}

bool ForeignLog::empty() const {
  return steps.empty() && memory.empty() && out_of_memory.empty() && live.empty() && progress.empty() &&
         cards.empty() && arguments.empty() && allocator_retries == 0 && !whole.seconds && !whole.steps_per_s;
}

std::optional<LogKind> detect_log(std::string_view content) {
  if (is_pickle(content)) return LogKind::kSnapshot;
  const size_t first = content.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return std::nullopt;
  if (content[first] == '{' && has(content, "\"segments\"") && has(content, "\"total_size\""))
    return LogKind::kSnapshot;
  if (has(content, "\"log_history\"")) return LogKind::kTrainer;
  if (has(content, "elapsed time per iteration (ms)") || has(content, "elapsed_time_per_iteration_ms") ||
      has(content, "memory (MB) | allocated:") || has(content, "- end of arguments -"))
    return LogKind::kMegatron;
  if (has(content, "step: ") && has(content, "GiB(")) return LogKind::kTorchtitan;
  if (has(content, "'train_runtime':") || (has(content, "{'loss':") && has(content, "'epoch':")) ||
      (has(content, "***** train metrics *****")))
    return LogKind::kTrainer;
  if (has(content, "memory.used") || (has(content, "| NVIDIA-SMI") && has(content, "MiB /")))
    return LogKind::kNvidiaSmi;
  if (has(content, "step: ") && (has(content, " tps: ") || has(content, " wps: "))) return LogKind::kTorchtitan;
  if (has(content, "Tried to allocate") || has(content, "CUDA memory summary")) return LogKind::kMessages;
  return std::nullopt;
}

Result<ForeignLog> parse_foreign_log(std::string_view content, const std::string& name, std::optional<LogKind> kind) {
  if (!kind) kind = detect_log(content);
  if (!kind) {
    const std::vector<std::string> names(kKindNames.begin(), kKindNames.end());
    return Error{name, "is no log that is known", "say which with --from: " + join(names, ", ")};
  }
  ForeignLog log;
  log.kinds.push_back(*kind);
  switch (*kind) {
    case LogKind::kMegatron:
      read_megatron(content, log);
      break;
    case LogKind::kTorchtitan:
      read_torchtitan(content, log);
      break;
    case LogKind::kTrainer:
      read_trainer(content, log);
      break;
    case LogKind::kNvidiaSmi:
      read_nvidia_smi(content, log);
      break;
    case LogKind::kSnapshot:
      FIVEFOLD_TRY(read_snapshot(content, name, log));
      break;
    case LogKind::kMessages:
      break;
  }
  if (*kind != LogKind::kSnapshot) read_allocator_messages(content, log);
  if (log.empty()) return Error{name, std::string(expected(*kind)), "another --from, or leave it out"};
  return log;
}

Result<ForeignLog> read_foreign_log(const std::filesystem::path& path, std::optional<LogKind> kind) {
  FIVEFOLD_ASSIGN(const MappedFile file, MappedFile::open(path));
  return parse_foreign_log(file.text(), path.string(), kind);
}

void add_log(ForeignLog& log, ForeignLog other) {
  const auto append = [](auto& to, auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  append(log.kinds, other.kinds);
  append(log.steps, other.steps);
  append(log.out_of_memory, other.out_of_memory);
  append(log.live, other.live);
  append(log.cards, other.cards);
  append(log.notes, other.notes);
  for (const LoggedMemory& figure : other.memory)
    note_memory(log, figure.rank, figure.kind, static_cast<double>(figure.bytes));
  if (log.progress.empty()) log.progress = std::move(other.progress);
  if (!log.whole.seconds && !log.whole.steps_per_s) log.whole = other.whole;
  log.arguments.merge(other.arguments);
  log.timers_ms.merge(other.timers_ms);
  log.allocator_retries += other.allocator_retries;
  log.inactive_bytes += other.inactive_bytes;
  log.inactive_blocks += other.inactive_blocks;
  log.theoretical_states = std::max(log.theoretical_states, other.theoretical_states);
  log.theoretical_activations = std::max(log.theoretical_activations, other.theoretical_activations);
  log.capacity = std::max(log.capacity, other.capacity);
  log.cut_lines += other.cut_lines;
}

}  // namespace fivefold
