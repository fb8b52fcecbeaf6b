#include "schedule/schedule_source.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "schedule/schedule_file.h"

namespace fivefold {
namespace {

bool is_csv(const std::string& path) { return std::filesystem::path(path).extension() == ".csv"; }

Result<std::string> read_text(const std::string& path) {
  std::error_code status;
  if (!std::filesystem::is_regular_file(path, status)) {
    const bool exists = std::filesystem::exists(path, status);
    return Error{"parallel.schedule_file", path + (exists ? " is not a file" : " does not exist"),
                 "give the path of a schedule (docs/formats/schedule.md)"};
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return Error{"parallel.schedule_file", path + " cannot be read", ""};
  return text.str();
}

void adopt(RunConfig& config, const Schedule& schedule) {
  config.parallel.schedule_source = {.text = write_schedule_text(schedule),
                                     .placement = schedule.placement,
                                     .num_stages = schedule.num_stages,
                                     .chunks_per_rank = schedule.chunks_per_rank,
                                     .num_microbatches = schedule.num_microbatches};
}

}  // namespace

Status read_schedule_source(RunConfig& config) {
  const std::string& path = config.parallel.schedule_file;
  if (config.parallel.schedule != ScheduleKind::kFile || path.empty()) return Ok{};
  FIVEFOLD_ASSIGN(const std::string text, read_text(path));
  FIVEFOLD_ASSIGN(const Schedule schedule,
                  is_csv(path) ? read_schedule_csv(text, path) : read_schedule_text(text, path));
  adopt(config, schedule);
  return Ok{};
}

Status write_schedule_file(const Schedule& schedule, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  file << (is_csv(path) ? write_schedule_csv(schedule, CsvContent::kAll) : write_schedule_text(schedule));
  file.close();
  if (!file) return Error{path, "cannot be written", "name a file in a folder that exists"};
  return Ok{};
}

Status set_schedule_source(RunConfig& config, const std::string& text, const std::string& name) {
  if (config.parallel.schedule != ScheduleKind::kFile) return Ok{};
  FIVEFOLD_ASSIGN(const Schedule schedule, read_schedule_text(text, name));
  adopt(config, schedule);
  return Ok{};
}

}  // namespace fivefold
