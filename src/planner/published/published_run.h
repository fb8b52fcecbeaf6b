// Published training runs, one row of CSV each (columns: docs/formats/published-runs.md), and the FrameworkRun that a
// row states. `validate` scores predictions on them.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "planner/profiles/framework_run.h"

namespace fivefold {

struct PublishedRun {
  std::map<std::string, std::string, std::less<>> fields;  // by column; empty cells are left out
  std::string where;                                       // "core.csv:17"

  // The cell's text, "" when the source does not say.
  std::string text(std::string_view column) const;
  // A cell that begins with a number; nothing when it is empty or does not.
  std::optional<double> number(std::string_view column) const;
  // A whole number, or `otherwise`.
  int64_t integer(std::string_view column, int64_t otherwise) const;
  // Value of "key=value" in the notes (up to the next ';'), "" when there is none.
  std::string note(std::string_view key) const;
  std::string id() const { return text("id"); }
  std::string source() const { return text("source"); }
};

// Rows of one file. Lines that begin with '#' are skipped; quoted cells may hold commas and quotes. Errors: unreadable,
// no header, a row with more cells than the header.
Result<std::vector<PublishedRun>> read_published_runs(const std::filesystem::path& csv);

// The shape that the row states. Errors say what is missing: the reason to leave the row out.
Result<ModelSpec> published_model(const PublishedRun& row);
// The run, with the switches that the row (its columns and notes) states. Errors: the reason to leave the row out.
Result<FrameworkRun> framework_run(const PublishedRun& row);

}  // namespace fivefold
