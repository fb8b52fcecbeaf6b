// Internal to src/record: the reader of each format, and what they share. Each adds what it finds to `log`.
#pragma once

#include <charconv>
#include <functional>
#include <string_view>

#include "record/foreign_log.h"

namespace fivefold {

void read_megatron(std::string_view content, ForeignLog& log);
void read_torchtitan(std::string_view content, ForeignLog& log);
void read_trainer(std::string_view content, ForeignLog& log);
void read_nvidia_smi(std::string_view content, ForeignLog& log);
// Failed allocations, summaries and retries of PyTorch's allocator, in any text.
void read_allocator_messages(std::string_view content, ForeignLog& log);
// Errors: no plain data, or no snapshot.
Status read_snapshot(std::string_view content, const std::string& name, ForeignLog& log);

// Values above are nonsense: an exabyte, or a rate no cluster has. Keeps sums finite.
inline constexpr double kMostOfAnything = 1e18;

// Calls `line` with each line: ended by \n or \r (a progress bar writes over itself), without colours, at most 64 KiB
// of it.
void for_each_line(std::string_view content, const std::function<void(std::string_view line)>& line);

std::string_view trimmed(std::string_view text);
// The number at the start of `text`, after blanks, with thousands separators ("6,667"): not below zero, finite, at most
// kMostOfAnything. `rest` gets what follows.
std::optional<double> leading_number(std::string_view text, std::string_view* rest = nullptr);
// The number behind `key` and a ':' or '='.
std::optional<double> number_after(std::string_view line, std::string_view key);
std::optional<int64_t> whole_number(std::string_view text, std::string_view* rest = nullptr);
// "786.00 MiB" at the start of `text`: bytes. `precision` gets half a unit of its last digit.
std::optional<int64_t> leading_size(std::string_view text, int64_t* precision = nullptr);
// The rank that a line was printed by, as launchers mark it: "[rank3]:", "[Rank 3]", "3: "; or kUnknownRank.
int rank_of_line(std::string_view line);

// Keeps the largest figure of a rank and kind.
void note_memory(ForeignLog& log, int rank, LoggedMemoryKind kind, double bytes);

// Numbers the sessions: a step that is not after the last one of its rank begins another.
class SessionCount {
 public:
  int session_of(int rank, int64_t step);

 private:
  struct Last {
    int64_t step = -1;
    int session = 0;
  };
  std::map<int, Last> last_;
};

}  // namespace fivefold
