#include "record/record_reader.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/nesting.h"
#include "base/text.h"
#include "record/record_fields.h"
#include "record/record_writer.h"

namespace fivefold {
namespace {

using Json = nlohmann::json;

// Above any byte count, token count or time of a run, and low enough for sums over its steps.
constexpr int64_t kMaxCount = int64_t{1} << 50;
constexpr double kMaxSeconds = 1e12;

template <typename Enum, typename ToString>
std::vector<std::string> names_of(int count, ToString name) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(name(static_cast<Enum>(i)));
  return names;
}

// Takes the fields of a line out of its JSON object. Keeps the first error; what follows it is left alone.
class FieldTaker {
 public:
  FieldTaker(const Json& object, std::string where, std::optional<Error>& error)
      : object_(object), where_(std::move(where)), error_(error) {}

  void operator()(const char* key, std::string& value) {
    if (const Json* json = find(key)) {
      if (!json->is_string()) return fail(key, "is not a string");
      value = json->get<std::string>();
    }
  }
  void operator()(const char* key, bool& value) {
    if (const Json* json = find(key)) {
      if (!json->is_boolean()) return fail(key, "is not true or false");
      value = json->get<bool>();
    }
  }
  void operator()(const char* key, int64_t& value) {
    if (const Json* json = find(key)) value = integer(*json, key, 0, kMaxCount);
  }
  void operator()(const char* key, int& value) {
    if (const Json* json = find(key)) value = static_cast<int>(integer(*json, key, 0, std::numeric_limits<int>::max()));
  }
  void optional(const char* key, std::string& value) {
    if (object_.contains(key)) (*this)(key, value);
  }
  void optional(const char* key, double& value) {
    if (object_.contains(key)) (*this)(key, value);
  }
  void index(const char* key, int& value) {
    if (const Json* json = find(key))
      value = static_cast<int>(integer(*json, key, -1, std::numeric_limits<int>::max()));
  }
  void operator()(const char* key, std::optional<int64_t>& value) {
    const Json* json = find(key);
    if (json && !json->is_null()) value = integer(*json, key, 0, kMaxCount);
  }
  void operator()(const char* key, double& value) {
    const Json* json = find(key);
    if (!json) return;
    if (json->is_number()) {
      value = json->get<double>();
    } else if (*json == "nan") {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (*json == "inf" || *json == "-inf") {
      value = (*json == "inf" ? 1 : -1) * std::numeric_limits<double>::infinity();
    } else {
      fail(key, "is not a number");
    }
  }
  void operator()(const char* key, CollectiveKind& value) {
    name(key, value, parse_collective_kind, kNumCollectiveKinds);
  }
  void operator()(const char* key, GroupKind& value) { name(key, value, parse_group_kind, kNumGroupKinds); }
  void operator()(const char* key, Purpose& value) { name(key, value, parse_purpose, kNumPurposes); }
  void operator()(const char* key, EventKind& value) { name(key, value, parse_event_kind, kNumEventKinds); }
  void operator()(const char* key, Coordinates& value) {
    if (const Json* json = find(key)) item(*json, place(key), value);
  }
  void operator()(const char* key, AccountBytes& value) {
    members(key, parse_account, names_of<Account>(kNumAccounts, [](Account a) { return to_string(a); }),
            [&](Account account, const Json& json, const std::string& path) {
              value[account] = integer(json, path, 0, kMaxCount);
            });
  }
  void operator()(const char* key, std::array<double, kNumCollectiveKinds>& value) {
    members(key, parse_collective_kind,
            names_of<CollectiveKind>(kNumCollectiveKinds, [](CollectiveKind k) { return to_string(k); }),
            [&](CollectiveKind kind, const Json& json, const std::string& path) {
              value[static_cast<size_t>(kind)] = duration(json, path);
            });
  }
  void operator()(const char* key, std::vector<RecordedTime>& value) {
    elements(key, value, [&](const Json& json, const std::string& path, RecordedTime& time) {
      if (!json.is_array() || json.size() != 3) return fail(path, "is not [begin, end, cpu]");
      time = {duration(json[0], path), duration(json[1], path), duration(json[2], path)};
      if (!error_ && time.end_s < time.begin_s) fail(path, "ends before it begins");
    });
  }
  template <typename Item>
  void operator()(const char* key, std::vector<Item>& value) {
    elements(key, value,
             [&](const Json& json, const std::string& path, Item& entry) { item(json, place(path), entry); });
  }
  void seconds(const char* key, double& value) {
    if (const Json* json = find(key)) value = duration(*json, key);
  }
  // May lie before what it counts from.
  void moment(const char* key, double& value) {
    const Json* json = find(key);
    if (!json) return;
    value = json->is_number() ? json->get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(std::abs(value) <= kMaxSeconds)) fail(key, json->dump() + " is not a time in seconds");
  }

 private:
  std::string place(const std::string& key) const { return where_ + ": " + key; }
  void fail(const std::string& key, std::string problem, std::string hint = "") {
    if (!error_) error_ = Error{place(key), std::move(problem), std::move(hint)};
  }

  const Json* find(const char* key) {
    if (error_) return nullptr;
    const auto found = object_.find(key);
    if (found == object_.end()) fail(key, "is missing");
    return found == object_.end() ? nullptr : &*found;
  }

  int64_t integer(const Json& json, const std::string& key, int64_t least, int64_t most) {
    const bool fits =
        json.is_number_integer() && (!json.is_number_unsigned() || json.get<uint64_t>() <= static_cast<uint64_t>(most));
    if (!fits || json.get<int64_t>() < least || json.get<int64_t>() > most) {
      fail(key, json.dump() + " is not a whole number from " + std::to_string(least) + " to " + std::to_string(most));
      return 0;
    }
    return json.get<int64_t>();
  }

  double duration(const Json& json, const std::string& key) {
    const double value = json.is_number() ? json.get<double>() : -1.0;
    if (!(value >= 0 && value <= kMaxSeconds)) fail(key, json.dump() + " is not a time in seconds");
    return value;
  }

  template <typename Enum, typename Parse>
  void name(const char* key, Enum& value, Parse parse, int count) {
    const Json* json = find(key);
    if (!json) return;
    const std::string text = json->is_string() ? json->get<std::string>() : json->dump();
    const auto parsed = parse(text);
    if (!parsed)
      return fail(key, "'" + text + "' is unknown",
                  name_hint(text, names_of<Enum>(count, [](Enum e) { return to_string(e); })));
    value = *parsed;
  }

  // Calls take(enumerator, json, path) for each member of an object whose keys are names.
  template <typename Parse, typename Take>
  void members(const char* key, Parse parse, const std::vector<std::string>& known, Take take) {
    const Json* json = find(key);
    if (!json) return;
    if (!json->is_object()) return fail(key, "is not an object");
    for (const auto& [member, value] : json->items()) {
      const auto parsed = parse(member);
      if (!parsed) return fail(std::string(key) + "." + member, "is unknown", name_hint(member, known));
      take(*parsed, value, std::string(key) + "." + member);
      if (error_) return;
    }
  }

  template <typename Item, typename Take>
  void elements(const char* key, std::vector<Item>& value, Take take) {
    const Json* json = find(key);
    if (!json) return;
    if (!json->is_array()) return fail(key, "is not an array");
    for (size_t i = 0; i < json->size() && !error_; ++i) {
      value.emplace_back();
      take((*json)[i], std::string(key) + "[" + std::to_string(i) + "]", value.back());
    }
  }

  template <typename Item>
  void item(const Json& json, const std::string& where, Item& value) {
    if (!json.is_object()) {
      if (!error_) error_ = Error{where, "is not an object", ""};
      return;
    }
    FieldTaker take(json, where, error_);
    visit_fields(take, value);
  }

  const Json& object_;
  std::string where_;
  std::optional<Error>& error_;
};

template <typename Line>
Result<Line> take_line(const Json& json, const std::string& where) {
  Line line;
  std::optional<Error> error;
  FieldTaker take(json, where + ": " + std::string(line_kind(line)), error);
  visit_fields(take, line);
  if (error) return *error;
  return line;
}

Status start_session(const Json& json, const std::string& where, RankRecord& record) {
  const auto version = json.find("version");
  if (version == json.end() || *version != kRunRecordVersion)
    return Error{where + ": run: version",
                 (version == json.end() ? std::string("is missing") : version->dump() + " is not a known version"),
                 "this fivefold reads version " + std::to_string(kRunRecordVersion)};
  FIVEFOLD_ASSIGN(RunStart start, take_line<RunStart>(json, where));
  if (start.world < 1 || start.rank < 0 || start.rank >= start.world)
    return Error{where + ": run: rank", std::to_string(start.rank) + " is not a rank of " + std::to_string(start.world),
                 ""};
  if (!record.sessions.empty() && start.rank != record.rank)
    return Error{
        where + ": run: rank",
        "is " + std::to_string(start.rank) + ", but the lines before are of rank " + std::to_string(record.rank), ""};
  record.rank = start.rank;
  record.sessions.emplace_back();
  record.sessions.back().start = std::move(start);
  return Ok{};
}

Status add_step(const Json& json, const std::string& where, RecordedSession& session) {
  FIVEFOLD_ASSIGN(StepRecord step, take_line<StepRecord>(json, where));
  if (!session.steps.empty() && step.step <= session.steps.back().step)
    return Error{where + ": step: step",
                 std::to_string(step.step) + " follows step " + std::to_string(session.steps.back().step), ""};
  if (!step.times.empty() && step.times.size() != session.program.size())
    return Error{where + ": step: times",
                 "has " + std::to_string(step.times.size()) + " entries, the program " +
                     std::to_string(session.program.size()) + " instructions",
                 ""};
  session.steps.push_back(std::move(step));
  return Ok{};
}

template <typename Line>
Status add_line(const Json& json, const std::string& where, std::vector<Line>& lines) {
  FIVEFOLD_ASSIGN(Line line, take_line<Line>(json, where));
  lines.push_back(std::move(line));
  return Ok{};
}

Status add(const Json& json, const std::string& where, RankRecord& record) {
  const auto kind_json = json.find("line");
  if (kind_json == json.end() || !kind_json->is_string())
    return Error{where + ": line", "is missing or not a string", ""};
  const std::string kind = kind_json->get<std::string>();
  if (kind == line_kind(RunStart{})) return start_session(json, where, record);
  if (record.sessions.empty()) return Error{where, "a '" + kind + "' line before the first 'run' line", ""};
  RecordedSession& session = record.sessions.back();
  if (kind == line_kind(StepRecord{})) return add_step(json, where, session);
  if (kind == line_kind(EvaluationRecord{})) return add_line(json, where, session.evaluations);
  if (kind == line_kind(CheckpointRecord{})) return add_line(json, where, session.checkpoints);
  if (kind == line_kind(ProcessRecord{})) return add_line(json, where, session.processes);
  if (kind == line_kind(EventRecord{})) return add_line(json, where, session.events);
  if (kind == line_kind(ProgramRecord{})) {
    FIVEFOLD_ASSIGN(ProgramRecord program, take_line<ProgramRecord>(json, where));
    session.program = std::move(program.instructions);
  }
  if (kind == line_kind(SummaryRecord{})) {
    FIVEFOLD_ASSIGN(session.summary, take_line<SummaryRecord>(json, where));
  }
  return Ok{};  // a kind of line that a newer fivefold writes
}

Result<RankRecord> read_rank(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return Error{file.string(), "cannot be read", "is this the folder of a run?"};
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  return parse_rank_record(text, file.string());
}

// Unix time before which no rank can have started the last session: the end of the one before, as `rank` saw it.
double session_gap_end(const RankRecord& rank) {
  if (rank.sessions.size() < 2) return 0;
  const RecordedSession& before = rank.sessions[rank.sessions.size() - 2];
  return before.start.started_at + last_moment_s(before);
}

}  // namespace

Result<RankRecord> parse_rank_record(std::string_view text, const std::string& where) {
  RankRecord record;
  int64_t number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) {
      record.cut = true;
      break;
    }
    const std::string line_where = where + ": line " + std::to_string(number);
    FIVEFOLD_TRY(check_json_nesting(text.substr(0, end), line_where));
    const Json json = Json::parse(text.substr(0, end), nullptr, false);
    if (json.is_discarded()) return Error{line_where, "is not JSON", ""};
    if (!json.is_object()) return Error{line_where, "is not a JSON object", ""};
    FIVEFOLD_TRY(add(json, line_where, record));
    text.remove_prefix(end + 1);
  }
  if (record.sessions.empty()) return Error{where, "has no 'run' line", "the rank ended before it wrote one"};
  return record;
}

Result<RunRecord> read_run_record(const std::filesystem::path& run_directory) {
  RunRecord run;
  int world = 1;
  for (int rank = 0; rank < world; ++rank) {
    const std::filesystem::path file = record_file(run_directory, rank);
    FIVEFOLD_ASSIGN(RankRecord record, read_rank(file));
    if (record.rank != rank) return Error{file.string(), "holds the lines of rank " + std::to_string(record.rank), ""};
    const RunStart& start = record.sessions.back().start;
    if (rank == 0) world = start.world;
    if (start.world != world || (rank > 0 && start.started_at < session_gap_end(run.ranks[0])))
      return Error{file.string(), "its last session is not that of rank 0",
                   "the rank ended before it wrote a 'run' line"};
    run.ranks.push_back(std::move(record));
  }
  return run;
}

}  // namespace fivefold
