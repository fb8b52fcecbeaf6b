// fivefold's own text form: a header, then one line per rank. docs/formats/schedule.md.
#include <algorithm>
#include <array>

#include "base/text.h"
#include "schedule/schedule_file.h"
#include "schedule/schedule_reading.h"
#include "schedule/transfers.h"

namespace fivefold {
namespace {

constexpr std::array<std::pair<std::string_view, ScheduleOp>, 8> kNames = {{
    // A name that begins with another one stands before it.
    {"BW", ScheduleOp::kBackward},
    {"F", ScheduleOp::kForward},
    {"B", ScheduleOp::kBackwardInput},
    {"W", ScheduleOp::kBackwardWeight},
    {"SendF", ScheduleOp::kSendForward},
    {"RecvF", ScheduleOp::kRecvForward},
    {"SendB", ScheduleOp::kSendBackward},
    {"RecvB", ScheduleOp::kRecvBackward},
}};
std::string_view name_of(ScheduleOp op) {
  return std::find_if(kNames.begin(), kNames.end(), [&](const auto& entry) { return entry.second == op; })->first;
}

std::string part(ScheduleOp op, int chunk, int microbatch, bool with_chunk) {
  std::string text(name_of(op));
  if (with_chunk) text += std::to_string(chunk) + ".";
  return text + std::to_string(microbatch);
}

std::string token(const ScheduleAction& action, bool with_chunk) {
  if (action.op == ScheduleOp::kOverlapped)
    return part(ScheduleOp::kForward, action.chunk, action.microbatch, with_chunk) + "&" +
           part(ScheduleOp::kBackward, action.backward_chunk, action.backward_microbatch, with_chunk);
  std::string text = action.joined ? "+" : "";
  text += part(action.op, action.chunk, action.microbatch, with_chunk);
  if (is_transfer(action.op)) text += (is_send(action.op) ? ">" : "<") + std::to_string(action.peer);
  return text;
}

class TextReader {
 public:
  TextReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Result<Schedule> run() {
    bool header_read = false;
    while (!text_.empty()) {
      next_line();
      if (trimmed(rest_).empty()) continue;
      FIVEFOLD_TRY(header_read ? read_rank() : read_header());
      header_read = true;
    }
    if (!header_read) return Error{name_, "has no schedule", "the first line is like: " + std::string(kHeaderExample)};
    if (schedule_.ranks.size() != static_cast<size_t>(schedule_.num_stages))
      return Error{
          name_,
          "has " + std::to_string(schedule_.ranks.size()) + " of " + std::to_string(schedule_.num_stages) + " ranks",
          "a line per rank, from rank 0"};
    return finish_reading(std::move(schedule_), name_);
  }

 private:
  static constexpr std::string_view kHeaderExample = "pipeline ranks=4 chunks=1 microbatches=8 placement=loop";

  void next_line() {
    const size_t end = text_.find('\n');
    rest_ = text_.substr(0, end);
    text_ = end == std::string_view::npos ? std::string_view() : text_.substr(end + 1);
    rest_ = rest_.substr(0, rest_.find('#'));
    line_start_ = rest_.data();
    ++line_;
  }
  Error error(std::string_view at, const std::string& problem, const std::string& hint = "") const {
    const auto column = at.data() - line_start_ + 1;
    return {name_ + " line " + std::to_string(line_) + " column " + std::to_string(column), problem, hint};
  }
  // The next word of the line; empty at its end.
  std::string_view next_word() {
    rest_ = rest_.substr(std::min(rest_.find_first_not_of(" \t\r"), rest_.size()));
    const std::string_view word = rest_.substr(0, rest_.find_first_of(" \t\r"));
    rest_.remove_prefix(word.size());
    return word;
  }

  Status read_header() {
    const std::string hint = "like: " + std::string(kHeaderExample);
    if (const std::string_view word = next_word(); word != "pipeline")
      return error(word, "'" + std::string(word) + "' where the header should be", hint);
    FIVEFOLD_ASSIGN(schedule_.num_stages, setting("ranks", kMaxRanks));
    FIVEFOLD_ASSIGN(schedule_.chunks_per_rank, setting("chunks", kMaxChunks));
    if (schedule_.num_virtual_stages() > kMaxStages)
      return error(rest_, std::to_string(schedule_.num_virtual_stages()) + " virtual stages are too many",
                   "at most " + std::to_string(kMaxStages));
    FIVEFOLD_ASSIGN(schedule_.num_microbatches, setting("microbatches", kMaxMicrobatches));
    const std::string_view word = next_word();
    if (word == "placement=v")
      schedule_.placement = Placement::kV;
    else if (word != "placement=loop")
      return error(word, "'" + std::string(word) + "' where the placement should be", "placement=loop or placement=v");
    return expect_end();
  }
  Result<int> setting(const std::string& key, int max) {
    const std::string_view word = next_word();
    std::string_view value = word;
    if (!take(value, key + "=")) return error(word, "'" + std::string(word) + "' where " + key + "= should be");
    const auto number = take_number(value, max);
    if (!number || *number < 1 || !value.empty())
      return error(word, "'" + std::string(word) + "' is no number of " + key, "1 to " + std::to_string(max));
    return *number;
  }
  Status expect_end() {
    const std::string_view word = next_word();
    if (!word.empty()) return error(word, "'" + std::string(word) + "' after the end of the line");
    return Ok{};
  }

  Status read_rank() {
    const std::string expected = "rank " + std::to_string(schedule_.ranks.size()) + ":";
    const std::string_view first = next_word(), second = next_word();
    if (schedule_.ranks.size() == static_cast<size_t>(schedule_.num_stages))
      return error(first, "a line after the last rank");
    if (first != "rank" || second != std::to_string(schedule_.ranks.size()) + ":")
      return error(first, "the line should begin with '" + expected + "'");
    std::vector<ScheduleAction>& actions = schedule_.ranks.emplace_back();
    for (std::string_view word = next_word(); !word.empty(); word = next_word()) {
      FIVEFOLD_ASSIGN(const ScheduleAction action, read_action(word));
      actions.push_back(action);
    }
    return Ok{};
  }

  Result<ScheduleAction> read_action(std::string_view word) const {
    std::string_view left = word;
    ScheduleAction action;
    action.joined = take(left, "+");
    if (!take_part(left, action.op, action.chunk, action.microbatch)) return unknown(word);
    if (action.op == ScheduleOp::kForward && take(left, "&")) {
      ScheduleOp op = ScheduleOp::kForward;
      if (!take_part(left, op, action.backward_chunk, action.backward_microbatch) || op != ScheduleOp::kBackward)
        return error(word, "'" + std::string(word) + "': F is overlapped with a BW", "like: F0.4&BW1.2");
      action.op = ScheduleOp::kOverlapped;
    }
    if (is_transfer(action.op)) {
      if (!take(left, is_send(action.op) ? ">" : "<"))
        return error(word, "'" + std::string(word) + "' says no rank", "like: SendF3>1, RecvF3<0");
      const auto peer = take_number(left, kMaxRanks);
      if (!peer) return error(word, "'" + std::string(word) + "' says no rank");
      action.peer = *peer;
    } else if (action.joined) {
      return error(word, "'" + std::string(word) + "': only transfers are joined");
    }
    if (!left.empty()) return unknown(word);
    return action;
  }
  Error unknown(std::string_view word) const {
    return error(word, "'" + std::string(word) + "' is no action",
                 "F, BW, B, W, SendF, RecvF, SendB or RecvB, chunk and microbatch, like: F3, F0.3, SendF0.3>1");
  }
  static bool take_part(std::string_view& text, ScheduleOp& op, int& chunk, int& microbatch) {
    const auto entry =
        std::find_if(kNames.begin(), kNames.end(), [&](const auto& known) { return take(text, known.first); });
    if (entry == kNames.end()) return false;
    op = entry->second;
    auto number = take_number(text, kMaxMicrobatches);
    if (!number) return false;
    chunk = 0;
    microbatch = *number;
    if (!take(text, ".")) return true;
    chunk = microbatch;
    number = take_number(text, kMaxMicrobatches);
    if (!number) return false;
    microbatch = *number;
    return true;
  }

  std::string_view text_, rest_;
  const std::string& name_;
  const char* line_start_ = nullptr;
  int line_ = 0;
  Schedule schedule_;
};

}  // namespace

std::string write_schedule_text(const Schedule& schedule) {
  std::string text = "pipeline ranks=" + std::to_string(schedule.num_stages) +
                     " chunks=" + std::to_string(schedule.chunks_per_rank) +
                     " microbatches=" + std::to_string(schedule.num_microbatches) +
                     " placement=" + (schedule.placement == Placement::kV ? "v" : "loop") + "\n";
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    text += "rank " + std::to_string(rank) + ":";
    for (const ScheduleAction& action : schedule.ranks[rank]) text += " " + token(action, schedule.chunks_per_rank > 1);
    text += "\n";
  }
  return text;
}

Result<Schedule> read_schedule_text(std::string_view text, const std::string& name) {
  return TextReader(text, name).run();
}

Result<Schedule> finish_reading(Schedule schedule, const std::string& name) {
  bool transfers = false;
  for (const auto& actions : schedule.ranks)
    for (const ScheduleAction& action : actions) transfers = transfers || is_transfer(action.op);
  Result<Schedule> complete = transfers ? Result<Schedule>(std::move(schedule)) : add_transfers(schedule);
  const auto in_file = [&](const Error& error) { return Error{name + ": " + error.where, error.problem, error.hint}; };
  if (!complete.ok()) return in_file(complete.error());
  if (const auto checked = check_schedule(*complete); !checked.ok()) return in_file(checked.error());
  return complete;
}

}  // namespace fivefold
