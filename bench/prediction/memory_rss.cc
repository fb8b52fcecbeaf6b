// Predicted peak memory, summed over the ranks, with what calibrate found that libraries take, against the resident
// memory of the process above the idle process, in five configurations of hundreds of MB, each in a process of its own:
// memory_rss RUN_CASE
//
// Idle: the engine is loaded. Exit 5 when a prediction is more than 5 % off.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace {

constexpr double kBound = 0.05;
constexpr const char* kCases[] = {
    "layers=8 micro=4 threads=2",
    "layers=8 micro=4 threads=2 bf16=1",
    "layers=6 micro=2 dp=2 zero=1 bf16=1",
    "layers=8 micro=2 dp=2 zero=3",
    "hidden=768 heads=12 layers=8 ffn=2048 micro=1 accumulation=2 dp=2 zero=2 bf16=1 recompute_every=2",
};

// What the command prints. Empty: it cannot be run.
std::string output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string text;
  std::array<char, 4096> buffer{};
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), n);
  return pclose(pipe) == 0 ? text : "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: memory_rss RUN_CASE (the program beside this one)\n");
    return 2;
  }
  constexpr double kMiB = 1024.0 * 1024.0;
  bool pass = true;
  fmt::print("{:>10} {:>10} {:>10} {:>7}  case (MiB)\n", "predicted", "libraries", "above idle", "error");
  for (const char* settings : kCases) {
    const std::string text = output_of(std::string(argv[1]) + " steps=3 " + settings);
    if (text.empty()) {
      fmt::print(stderr, "{} {} failed\n", argv[1], settings);
      return 1;
    }
    const auto line = nlohmann::json::parse(text);
    const double libraries = line.at("libraries"), predicted = line.at("predicted").get<double>() + libraries;
    const double above = line.at("peak_rss").get<double>() - line.at("idle_rss").get<double>();
    const double error = predicted / above - 1;
    pass = pass && std::abs(error) <= kBound;
    fmt::print("{:10.1f} {:10.1f} {:10.1f} {:+6.1f}%  {}\n", predicted / kMiB, libraries / kMiB, above / kMiB,
               error * 100, line.at("case").get<std::string>());
    std::fflush(stdout);
  }
  return pass ? 0 : 5;
}
