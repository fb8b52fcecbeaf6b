// Table: aligned columns for the terminal. Columns whose cells all look like numbers are aligned right.
// Width counts code points, wide (CJK) ones as two.
#pragma once

#include <string>
#include <vector>

namespace fivefold {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  // REQUIRES: as many cells as the header has (checked).
  void add_row(std::vector<std::string> cells);
  // A horizontal line before the next row.
  void add_rule();
  // One line per row, each ended by a newline; `indent` spaces before each.
  std::string to_string(int indent = 0) const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

}  // namespace fivefold
