// nvidia-smi: the CSV of --query-gpu=... --format=csv with its header, and the plain table.
#include <algorithm>
#include <map>
#include <string>

#include "base/text.h"
#include "base/units.h"
#include "record/log_readers.h"

namespace fivefold {
namespace {

constexpr int kMostCards = 1024;

// Utilisation from the first sample in which a kernel ran to the last.
struct Utilization {
  double sum = 0;
  int64_t count = 0, idle = 0;
  void add(double share) {
    if (share <= 0) {
      idle += count > 0;
      return;
    }
    sum += share;
    count += 1 + idle;
    idle = 0;
  }
};

class NvidiaSmiReader {
 public:
  explicit NvidiaSmiReader(ForeignLog& log) : log_(log) {}

  void line(std::string_view line) {
    if (line.find("memory.used") != std::string_view::npos) return header(line);
    if (!columns_.empty() && line.find('|') == std::string_view::npos) return row(line);
    table(line);
  }

  void finish() {
    for (auto& [rank, card] : cards_) {
      const Utilization& use = use_[rank];
      card.mean_utilization = use.count > 0 ? use.sum / static_cast<double>(use.count) : 0;
      log_.capacity = std::max(log_.capacity, card.capacity);
      log_.cards.push_back(card);
    }
  }

 private:
  void header(std::string_view line) {
    columns_.clear();
    for (const std::string& cell : split(std::string(line), ',')) {
      std::string_view name = trimmed(cell);
      name = name.substr(0, name.find(' '));
      columns_.emplace_back(name);
    }
  }

  void row(std::string_view line) {
    const std::vector<std::string> cells = split(std::string(line), ',');
    if (cells.size() != columns_.size()) {
      ++log_.cut_lines;
      return;
    }
    const auto cell = [&](std::string_view name) -> std::optional<std::string_view> {
      const auto at = std::find(columns_.begin(), columns_.end(), name);
      if (at == columns_.end()) return std::nullopt;
      return trimmed(cells[static_cast<size_t>(at - columns_.begin())]);
    };
    int rank = 0;
    if (const auto index = cell("index")) {
      const auto number = whole_number(*index);
      if (!number || *number >= kMostCards) return;
      rank = static_cast<int>(*number);
    } else {
      for (const char* name : {"uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id"})
        if (const auto id = cell(name)) {
          rank = rank_of_id_.emplace(std::string(*id), static_cast<int>(rank_of_id_.size())).first->second;
          break;
        }
      if (rank >= kMostCards) return;
    }
    const auto used = leading_number(cell("memory.used").value_or(""));
    const auto total = leading_number(cell("memory.total").value_or(""));
    const auto busy = leading_number(cell("utilization.gpu").value_or(""));
    sample(rank, used, total, busy, cell("name").value_or(""));
  }

  // "|   0  NVIDIA A100-SXM4-80GB   On | ...", then "| N/A   53C   P0   332W / 400W |  73895MiB / 81920MiB |  96%
  // Default |"
  void table(std::string_view line) {
    const std::vector<std::string> cells = split(std::string(line), '|');
    if (cells.size() < 4) return;
    const std::string_view first = trimmed(cells[1]);
    std::string_view name;
    if (const auto index = whole_number(first, &name); index && *index < kMostCards && name.starts_with(" ")) {
      card_ = static_cast<int>(*index);
      name = trimmed(name);
      name_ = std::string(name.substr(0, name.find("  ")));
      return;
    }
    const std::string_view memory = trimmed(cells[2]);
    std::string_view rest;
    const auto used = leading_number(memory, &rest);
    if (!used || !rest.starts_with("MiB / ")) return;
    sample(std::max(card_, 0), used, leading_number(rest.substr(6)), leading_number(cells[3]), name_);
  }

  // Memory in MiB, `busy` in percent.
  void sample(int rank, std::optional<double> used, std::optional<double> total, std::optional<double> busy,
              std::string_view name) {
    CardUse& card = cards_[rank];
    card.rank = rank;
    ++card.samples;
    if (card.name.empty()) card.name = std::string(name);
    constexpr double kMostMiB = 1e9;
    if (used && *used <= kMostMiB)
      note_memory(log_, rank, LoggedMemoryKind::kProcess, *used * static_cast<double>(kMiB));
    if (total && *total <= kMostMiB) card.capacity = static_cast<int64_t>(*total) * kMiB;
    if (busy && *busy <= 100) use_[rank].add(*busy / 100);
  }

  ForeignLog& log_;
  std::vector<std::string> columns_;
  std::map<std::string, int> rank_of_id_;
  std::map<int, CardUse> cards_;
  std::map<int, Utilization> use_;
  int card_ = 0;
  std::string name_;
};

}  // namespace

void read_nvidia_smi(std::string_view content, ForeignLog& log) {
  NvidiaSmiReader reader(log);
  for_each_line(content, [&reader](std::string_view line) { reader.line(line); });
  reader.finish();
}

}  // namespace fivefold
