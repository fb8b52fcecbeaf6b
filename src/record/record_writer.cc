#include "record/record_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "record/record_fields.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

// Tenths of microseconds: finer digits of a clock say nothing and double the size of a line.
double rounded(double seconds) { return std::round(seconds * 1e7) / 1e7; }

// Builds the JSON object of a line.
class FieldPutter {
 public:
  explicit FieldPutter(Json& json) : json_(json) {}

  void operator()(const char* key, const std::string& value) { json_[key] = value; }
  void optional(const char* key, const std::string& value) {
    if (!value.empty()) json_[key] = value;
  }
  void optional(const char* key, double value) {
    if (value != 0) (*this)(key, value);
  }
  void operator()(const char* key, int64_t value) { json_[key] = value; }
  void operator()(const char* key, int value) { json_[key] = value; }
  void operator()(const char* key, bool value) { json_[key] = value; }
  // JSON has no NaN and no infinity.
  void operator()(const char* key, double value) {
    if (std::isfinite(value)) {
      json_[key] = value;
    } else {
      json_[key] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
    }
  }
  void operator()(const char* key, const std::optional<int64_t>& value) {
    json_[key] = value ? Json(*value) : Json(nullptr);
  }
  template <typename Enum>
    requires std::is_enum_v<Enum>
  void operator()(const char* key, Enum value) {
    json_[key] = std::string(to_string(value));
  }
  void operator()(const char* key, const Coordinates& value) { json_[key] = object(value); }
  void operator()(const char* key, const AccountBytes& value) {
    Json accounts = Json::object();
    for (int i = 0; i < kNumAccounts; ++i) {
      const auto account = static_cast<Account>(i);
      if (value[account] != 0) accounts[std::string(to_string(account))] = value[account];
    }
    json_[key] = std::move(accounts);
  }
  void operator()(const char* key, const std::array<double, kNumCollectiveKinds>& value) {
    Json kinds = Json::object();
    for (size_t i = 0; i < value.size(); ++i)
      if (value[i] != 0) kinds[std::string(to_string(static_cast<CollectiveKind>(i)))] = rounded(value[i]);
    json_[key] = std::move(kinds);
  }
  void operator()(const char* key, const std::vector<RecordedTime>& value) {
    Json times = Json::array();
    for (const RecordedTime& time : value)
      times.push_back({rounded(time.begin_s), rounded(time.end_s), rounded(time.cpu_s)});
    json_[key] = std::move(times);
  }
  template <typename Item>
  void operator()(const char* key, const std::vector<Item>& value) {
    Json items = Json::array();
    for (const Item& item : value) items.push_back(object(item));
    json_[key] = std::move(items);
  }
  void index(const char* key, int value) { json_[key] = value; }
  void seconds(const char* key, double value) { json_[key] = rounded(value); }
  void moment(const char* key, double value) { json_[key] = rounded(value); }

 private:
  template <typename Item>
  static Json object(const Item& item) {
    Json json = Json::object();
    FieldPutter put(json);
    visit_fields(put, item);
    return json;
  }

  Json& json_;
};

template <typename Line>
std::string to_line(const Line& line) {
  Json json;
  json["line"] = std::string(line_kind(line));
  if constexpr (std::same_as<Line, RunStart>) json["version"] = kRunRecordVersion;
  FieldPutter put(json);
  visit_fields(put, line);
  // Text from outside (a path, a message) may not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Length of the file up to the end of its last whole line.
off_t whole_lines_length(int descriptor, off_t size) {
  char block[4096];
  for (off_t end = size; end > 0;) {
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(sizeof block));
    const ssize_t got = ::pread(descriptor, block, static_cast<size_t>(end - begin), begin);
    if (got <= 0) return -1;
    for (ssize_t i = got; i > 0; --i)
      if (block[i - 1] == '\n') return begin + i;
    end = begin;
  }
  return 0;
}

}  // namespace

RecordError::RecordError(const std::filesystem::path& file, const std::string& action, int error_number)
    : std::runtime_error("run record " + file.string() + ": cannot " + action + ": " + std::strerror(error_number)),
      error_number_(error_number) {}

std::filesystem::path record_file(const std::filesystem::path& run_directory, int rank) {
  return run_directory / "record" / ("rank-" + std::to_string(rank) + ".jsonl");
}

RecordWriter::RecordWriter(const std::filesystem::path& run_directory, int rank)
    : file_(record_file(run_directory, rank)) {
  std::error_code error;
  std::filesystem::create_directories(file_.parent_path(), error);
  if (error) throw RecordError(file_, "make the folder", error.value());
  descriptor_ = ::open(file_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw RecordError(file_, "open", errno);
  struct stat status{};
  const bool known = ::fstat(descriptor_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) return;  // a device has no earlier lines
  const off_t whole = whole_lines_length(descriptor_, status.st_size);
  if (whole < 0 || (whole != status.st_size && ::ftruncate(descriptor_, whole) != 0)) {
    const int number = errno;
    close();
    throw RecordError(file_, "cut off an incomplete line", number);
  }
}

RecordWriter::~RecordWriter() { close(); }

void RecordWriter::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void RecordWriter::append(std::string line) {
  if (descriptor_ < 0) throw RecordError(file_, "write", EBADF);
  const off_t before = ::lseek(descriptor_, 0, SEEK_END);
  for (size_t done = 0; done < line.size();) {
    const ssize_t written = ::write(descriptor_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int number = errno;
      // Best effort: the reader would leave out the incomplete line too.
      if (before >= 0 && ::ftruncate(descriptor_, before) != 0) close();
      throw RecordError(file_, "write", number);
    }
    done += static_cast<size_t>(written);
  }
}

void RecordWriter::write(const RunStart& line) { append(to_line(line)); }
void RecordWriter::write(const ProgramRecord& line) { append(to_line(line)); }
void RecordWriter::write(const StepRecord& line) { append(to_line(line)); }
void RecordWriter::write(const EvaluationRecord& line) { append(to_line(line)); }
void RecordWriter::write(const CheckpointRecord& line) { append(to_line(line)); }
void RecordWriter::write(const ProcessRecord& line) { append(to_line(line)); }
void RecordWriter::write(const EventRecord& line) { append(to_line(line)); }
void RecordWriter::write(const SummaryRecord& line) { append(to_line(line)); }

}  // namespace fivefold
