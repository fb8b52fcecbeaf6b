#include "base/table.h"

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace fivefold {
namespace {

// Columns a UTF-8 string takes on a terminal.
size_t display_width(const std::string& text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // Three-byte sequences from U+2E80 on are CJK and full-width forms.
    width += (length >= 3 && lead >= 0xE2 && !(lead == 0xE2 && static_cast<unsigned char>(text[i + 1]) < 0xBA)) ? 2 : 1;
    i += length;
  }
  return width;
}

bool looks_like_number(const std::string& cell) {
  return cell.empty() || cell == "-" ||
         (cell.find_first_of("0123456789") != std::string::npos &&
          (std::isdigit(static_cast<unsigned char>(cell[0])) || cell[0] == '-' || cell[0] == '+' || cell[0] == '.'));
}

}  // namespace

void Table::add_row(std::vector<std::string> cells) {
  FIVEFOLD_CHECK(cells.size() == header_.size());
  rows_.push_back(std::move(cells));
}

void Table::add_rule() { rows_.emplace_back(); }

std::string Table::to_string(int indent) const {
  const size_t columns = header_.size();
  std::vector<size_t> width(columns);
  std::vector<bool> right(columns, true);
  for (size_t c = 0; c < columns; ++c) width[c] = display_width(header_[c]);
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) {
      width[c] = std::max(width[c], display_width(row[c]));
      if (!looks_like_number(row[c])) right[c] = false;
    }
  }
  std::string text;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line(static_cast<size_t>(indent), ' ');
    for (size_t c = 0; c < columns; ++c) {
      const std::string pad(width[c] - display_width(cells[c]), ' ');
      if (c > 0) line += "  ";
      line += right[c] ? pad + cells[c] : cells[c] + pad;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  const auto add_line_of_dashes = [&] {
    std::vector<std::string> dashes;
    for (size_t c = 0; c < columns; ++c) dashes.emplace_back(width[c], '-');
    add_line(dashes);
  };
  add_line(header_);
  add_line_of_dashes();
  for (const auto& row : rows_) {
    if (row.empty()) {
      add_line_of_dashes();
    } else {
      add_line(row);
    }
  }
  return text;
}

}  // namespace fivefold
