#include "planner/published/published_run.h"

#include <algorithm>
#include <charconv>

#include "base/mapped_file.h"

namespace fivefold {
namespace {

// The cells of one line, quotes taken off.
std::vector<std::string> cells(std::string_view line) {
  std::vector<std::string> all(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      if (c != '"')
        all.back() += c;
      else if (i + 1 < line.size() && line[i + 1] == '"')
        all.back() += line[++i];
      else
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      all.emplace_back();
    } else if (c != '\r') {
      all.back() += c;
    }
  }
  return all;
}

}  // namespace

std::string PublishedRun::text(std::string_view column) const {
  const auto found = fields.find(column);
  return found == fields.end() ? std::string() : found->second;
}

std::optional<double> PublishedRun::number(std::string_view column) const {
  const std::string cell = text(column);
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end == cell.data()) return std::nullopt;
  return value;
}

int64_t PublishedRun::integer(std::string_view column, int64_t otherwise) const {
  const std::optional<double> value = number(column);
  return value && *value == static_cast<double>(static_cast<int64_t>(*value)) ? static_cast<int64_t>(*value)
                                                                              : otherwise;
}

std::string PublishedRun::note(std::string_view key) const {
  const std::string notes = text("notes"), wanted = std::string(key) + "=";
  for (size_t begin = 0; begin < notes.size();) {
    const size_t end = std::min(notes.find(';', begin), notes.size());
    std::string_view part = std::string_view(notes).substr(begin, end - begin);
    while (part.starts_with(' ')) part.remove_prefix(1);
    if (part.starts_with(wanted)) return std::string(part.substr(wanted.size()));
    begin = end + 1;
  }
  return {};
}

Result<std::vector<PublishedRun>> read_published_runs(const std::filesystem::path& csv) {
  FIVEFOLD_ASSIGN(const MappedFile file, MappedFile::open(csv));
  std::vector<PublishedRun> rows;
  std::vector<std::string> header;
  const std::string_view text = file.text();
  int line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    // A quoted cell may hold line ends.
    size_t end = begin;
    bool quoted = false;
    while (end < text.size() && (quoted || text[end] != '\n')) quoted ^= text[end++] == '"';
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.empty() || line == "\r" || (line.starts_with('#') && header.empty())) continue;
    std::vector<std::string> values = cells(line);
    if (header.empty()) {
      header = std::move(values);
      continue;
    }
    const std::string where = csv.filename().string() + ":" + std::to_string(line_number);
    if (values.size() > header.size())
      return Error{where,
                   "has " + std::to_string(values.size()) + " cells, the header " + std::to_string(header.size()),
                   "quote cells that hold commas"};
    PublishedRun row;
    row.where = where;
    for (size_t i = 0; i < values.size(); ++i)
      if (!values[i].empty()) row.fields[header[i]] = std::move(values[i]);
    rows.push_back(std::move(row));
  }
  if (header.empty())
    return Error{csv.string(), "has no header line", "the columns are in docs/formats/published-runs.md"};
  return rows;
}

}  // namespace fivefold
