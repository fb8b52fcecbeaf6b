// The CSV of PyTorch's torch.distributed.pipelining (2.13, _Action and _dump_csv in schedules.py): a row per rank, a
// cell per action, [stage][action][microbatch]. Actions F, I (B of fivefold), W, B (BW of fivefold), SEND_F, RECV_F,
// SEND_B, RECV_B; (0F4;7B2)OVERLAP_F_B; an empty cell is an idle slot.
#include <algorithm>
#include <array>

#include "base/text.h"
#include "schedule/schedule_file.h"
#include "schedule/schedule_reading.h"
#include "schedule/transfers.h"

namespace fivefold {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";
constexpr std::array<std::pair<std::string_view, ScheduleOp>, 8> kNames = {{
    {"F", ScheduleOp::kForward},
    {"B", ScheduleOp::kBackward},
    {"I", ScheduleOp::kBackwardInput},
    {"W", ScheduleOp::kBackwardWeight},
    {"SEND_F", ScheduleOp::kSendForward},
    {"RECV_F", ScheduleOp::kRecvForward},
    {"SEND_B", ScheduleOp::kSendBackward},
    {"RECV_B", ScheduleOp::kRecvBackward},
}};
// Actions on a stage's parameters, which fivefold places by itself.
constexpr std::array<std::string_view, 3> kOfParameters = {"UNSHARD", "RESHARD", "REDUCE_GRAD"};

std::string part(const Schedule& schedule, int rank, ScheduleOp op, int chunk, int microbatch) {
  const auto name = std::find_if(kNames.begin(), kNames.end(), [&](const auto& entry) { return entry.second == op; });
  return std::to_string(virtual_stage(schedule, rank, chunk)) + std::string(name->first) + std::to_string(microbatch);
}

std::string cell(const Schedule& schedule, int rank, const ScheduleAction& action) {
  if (action.op != ScheduleOp::kOverlapped) return part(schedule, rank, action.op, action.chunk, action.microbatch);
  return "(" + part(schedule, rank, ScheduleOp::kForward, action.chunk, action.microbatch) + ";" +
         part(schedule, rank, ScheduleOp::kBackward, action.backward_chunk, action.backward_microbatch) + ")" +
         std::string(kOverlap);
}

// An action as it stands in the file: virtual stages in place of chunks, whose number is known only at the end.
struct Cell {
  ScheduleAction action;
  int line = 0, number = 0;  // from 1
};

class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Result<Schedule> run() {
    FIVEFOLD_TRY(read_rows());
    while (!rows_.empty() && rows_.back().empty()) rows_.pop_back();  // blank lines at the end
    const int p = static_cast<int>(rows_.size());
    if (p == 0) return Error{name_, "has no action", "a line per rank, like: 0F0,0F1,0B0,0B1"};
    int stages = 0, microbatches = 0;
    for (const auto& row : rows_) {
      for (const Cell& cell : row) {
        const ScheduleAction& action = cell.action;
        stages = std::max({stages, action.chunk + 1, action.backward_chunk + 1});
        microbatches = std::max({microbatches, action.microbatch + 1, action.backward_microbatch + 1});
      }
    }
    if (stages % p != 0 || stages / p > kMaxChunks)
      return Error{
          name_,
          std::to_string(stages) + " stages on " + std::to_string(p) + " ranks (lines): not the same number on each",
          "the number of stages is a multiple of the number of lines"};
    schedule_.num_stages = p;
    schedule_.chunks_per_rank = stages / p;
    schedule_.num_microbatches = microbatches;
    FIVEFOLD_TRY(find_placement());
    for (int rank = 0; rank < p; ++rank) {
      std::vector<ScheduleAction>& actions = schedule_.ranks.emplace_back();
      for (const Cell& cell : rows_[static_cast<size_t>(rank)]) actions.push_back(on_rank(rank, cell.action));
    }
    return finish_reading(std::move(schedule_), name_);
  }

 private:
  Error error(int line, int number, const std::string& problem, const std::string& hint) const {
    return {name_ + " line " + std::to_string(line) + " cell " + std::to_string(number), problem, hint};
  }

  Status read_rows() {
    for (int line = 1; !text_.empty(); ++line) {
      const size_t end = text_.find('\n');
      std::string_view row = text_.substr(0, end);
      text_ = end == std::string_view::npos ? std::string_view() : text_.substr(end + 1);
      if (line > kMaxRanks) return error(line, 1, "more than " + std::to_string(kMaxRanks) + " ranks", "");
      rows_.emplace_back();
      for (int number = 1;; ++number) {
        const size_t comma = row.find(',');
        FIVEFOLD_TRY(read_cell(trimmed(row.substr(0, comma)), line, number));
        if (comma == std::string_view::npos) break;
        row = row.substr(comma + 1);
      }
    }
    return Ok{};
  }

  Status read_cell(std::string_view text, int line, int number) {
    if (text.empty()) return Ok{};
    const auto unknown = [&] {
      return error(line, number, "'" + std::string(text) + "' is no action",
                   "like: 2F0, 2I0, 2W0, 2B0, 2SEND_F0, 2RECV_F0, 2SEND_B0, 2RECV_B0, (2F4;5B1)OVERLAP_F_B");
    };
    ScheduleAction action;
    std::string_view left = text;
    if (take(left, "(")) {
      ScheduleAction backward;
      if (!take_part(left, action) || !take(left, ";") || !take_part(left, backward) || !take(left, ")") ||
          left != kOverlap)
        return unknown();
      if (action.op != ScheduleOp::kForward || backward.op != ScheduleOp::kBackward)
        return error(line, number, "'" + std::string(text) + "' overlaps other than F with B", "first F, then B");
      action.op = ScheduleOp::kOverlapped;
      action.backward_chunk = backward.chunk;
      action.backward_microbatch = backward.microbatch;
    } else if (is_of_parameters(left)) {
      return Ok{};
    } else if (!take_part(left, action) || !left.empty()) {
      return unknown();
    }
    rows_.back().push_back({action, line, number});
    return Ok{};
  }

  static bool is_of_parameters(std::string_view text) {
    if (!take_number(text, kMaxStages - 1)) return false;
    return std::find(kOfParameters.begin(), kOfParameters.end(), text) != kOfParameters.end();
  }
  // A stage, a name and a microbatch. `chunk` takes the stage.
  static bool take_part(std::string_view& text, ScheduleAction& action) {
    const auto stage = take_number(text, kMaxStages - 1);
    if (!stage) return false;
    const auto entry =
        std::find_if(kNames.begin(), kNames.end(), [&](const auto& known) { return take(text, known.first); });
    if (entry == kNames.end()) return false;
    const auto microbatch = take_number(text, kMaxMicrobatches - 1);
    if (!microbatch) return false;
    action.op = entry->second;
    action.chunk = *stage;
    action.microbatch = *microbatch;
    return true;
  }

  // The first cell that is not where `placement` puts its stage; nothing when all are.
  const Cell* misplaced(Placement placement) {
    schedule_.placement = placement;
    for (int rank = 0; rank < schedule_.num_stages; ++rank)
      for (const Cell& cell : rows_[static_cast<size_t>(rank)])
        if (place_of(schedule_, cell.action.chunk).rank != rank ||
            (cell.action.backward_chunk >= 0 && place_of(schedule_, cell.action.backward_chunk).rank != rank))
          return &cell;
    return nullptr;
  }
  Status find_placement() {
    const Cell* in_v = misplaced(Placement::kV);
    const Cell* in_loop = misplaced(Placement::kLoop);
    if (in_loop == nullptr) return Ok{};
    if (in_v != nullptr)
      return error(in_loop->line, in_loop->number,
                   "this stage is on another rank when stages go round the ranks, and line " +
                       std::to_string(in_v->line) + " cell " + std::to_string(in_v->number) + " when they go in a V",
                   "stage s of p ranks is on rank s mod p, or on the way back of a V on p - 1 - s mod p");
    schedule_.placement = Placement::kV;
    return Ok{};
  }

  ScheduleAction on_rank(int rank, ScheduleAction action) const {
    action.chunk = place_of(schedule_, action.chunk).chunk;
    if (action.op == ScheduleOp::kOverlapped) action.backward_chunk = place_of(schedule_, action.backward_chunk).chunk;
    // A transfer without another end keeps -1, and is refused by the check.
    if (is_transfer(action.op)) action.peer = peer_of(schedule_, rank, action.op, action.chunk);
    return action;
  }

  std::string_view text_;
  const std::string& name_;
  std::vector<std::vector<Cell>> rows_;
  Schedule schedule_;
};

}  // namespace

std::string write_schedule_csv(const Schedule& schedule, CsvContent content) {
  std::string text;
  for (int rank = 0; rank < schedule.num_stages; ++rank) {
    std::vector<std::string> cells;
    for (const ScheduleAction& action : schedule.ranks[static_cast<size_t>(rank)])
      if (content == CsvContent::kAll || !is_transfer(action.op)) cells.push_back(cell(schedule, rank, action));
    text += join(cells, ",") + "\n";
  }
  return text;
}

Result<Schedule> read_schedule_csv(std::string_view text, const std::string& name) {
  return CsvReader(text, name).run();
}

}  // namespace fivefold
