// The schedule that a configuration names in parallel.schedule_file, read into the configuration, so that whoever gets
// the configuration needs the file no more.
#pragma once

#include <string>

#include "base/result.h"
#include "schedule/schedule.h"
#include "spec/run_config.h"

namespace fivefold {

// Reads and checks the file when `config` has schedule = file: CSV when its name ends in .csv, else fivefold's text.
// Does nothing otherwise. Errors: the file cannot be read; those of read_schedule_text() and read_schedule_csv().
Status read_schedule_source(RunConfig& config);

// Writes a schedule so that read_schedule_source() reads it: CSV, with transfers, when the name ends in .csv, else
// text. Errors: the file cannot be written.
Status write_schedule_file(const Schedule& schedule, const std::string& path);

// What read_schedule_source() does, from the text that a run's record holds.
Status set_schedule_source(RunConfig& config, const std::string& text, const std::string& name);

}  // namespace fivefold
