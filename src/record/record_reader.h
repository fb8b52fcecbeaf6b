// Reads the record of a run back. Thread-safe: no state.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/result.h"
#include "record/run_record.h"

namespace fivefold {

// All ranks of a run. An incomplete last line of a file is left out (RankRecord::cut); unknown keys and unknown kinds
// of line are ignored, so that a newer minor addition does not hide an old reader's record.
// Errors ("FILE: line 12"): no record, a rank's file missing, a line that is no JSON object, a missing key, a value of
// the wrong type or out of range, another format version, a line before the first `run` line, times that are not as
// many as the program's instructions, a rank or world that contradicts the file's name or the other ranks.
Result<RunRecord> read_run_record(const std::filesystem::path& run_directory);

// One rank's file from its text; `where` stands for the file in errors.
Result<RankRecord> parse_rank_record(std::string_view text, const std::string& where);

}  // namespace fivefold
