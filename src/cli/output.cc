#include "cli/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

bool colors = false;
int write_error = 0;

}  // namespace

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && write_error == 0) write_error = errno;
}

void print_json(const nlohmann::ordered_json& json) { print(json.dump(2) + "\n"); }

void print_errors(const std::vector<Error>& errors) {
  std::fflush(stdout);
  std::fputs(to_string(errors).c_str(), stderr);
}

void print_note(const Error& note) { log_info("note: " + note.message()); }

bool finish_output() {
  if (std::fflush(stdout) != 0 && write_error == 0) write_error = errno;
  if (write_error == 0 || write_error == EPIPE) return true;
  std::fprintf(stderr, "fivefold: the output could not be written: error %d\n", write_error);
  return false;
}

int output_width() {
  const auto usable = [](long columns) { return columns >= 20 && columns <= 10'000; };
  if (const char* text = std::getenv("COLUMNS")) {
    const long columns = std::strtol(text, nullptr, 10);
    if (usable(columns)) return static_cast<int>(columns);
  }
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && usable(size.ws_col)) return size.ws_col;
  return 120;
}

void set_color(ColorMode mode) {
  const bool terminal = isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  colors = mode == ColorMode::kAlways || (mode == ColorMode::kAuto && terminal);
}

std::string painted(Paint paint, std::string_view text) {
  if (!colors) return std::string(text);
  const char* code = paint == Paint::kHeading ? "1" : paint == Paint::kGood ? "32" : "31";
  return "\033[" + std::string(code) + "m" + std::string(text) + "\033[0m";
}

}  // namespace fivefold
