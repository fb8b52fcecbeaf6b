// Output of commands: results go to stdout, errors and remarks to stderr. Colour only where a reader gains by it:
// headings and verdicts. Not thread-safe.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fivefold {

void print(std::string_view text);
// Indented, with a newline.
void print_json(const nlohmann::ordered_json& json);
// All problems, as validate.h words them.
void print_errors(const std::vector<Error>& errors);
// A line "note: ..." on stderr; silent under --quiet.
void print_note(const Error& note);
// Flushes stdout. False when it could not be written and that matters: a reader that has gone does not.
bool finish_output();

// Columns that a picture may take: COLUMNS of the environment, else the terminal's, else 120.
int output_width();

enum class ColorMode : uint8_t { kAuto, kAlways, kNever };
void set_color(ColorMode mode);

enum class Paint : uint8_t { kHeading, kGood, kBad };
// `text` in the colour, or as it is when colours are off.
std::string painted(Paint paint, std::string_view text);

}  // namespace fivefold
