// What the tests of the record share: one example of each line with every field away from its default, and a folder
// that is removed at the end of a test.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "record/run_record.h"

namespace fivefold::record_testing {

class TemporaryRun {
 public:
  TemporaryRun() {
    std::string name = (std::filesystem::temp_directory_path() / "fivefold-record-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot make " << name;
    path_ = name;
  }
  ~TemporaryRun() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string file_text(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

inline RunStart example_start(int rank, int world) {
  RunStart start;
  start.fivefold_version = "0.1.0";
  start.rank = rank;
  start.world = world;
  start.coordinates.dp = rank;
  start.coordinates.shard = rank;
  start.configuration = "[run]\nname = \"tiny\"\n";
  start.model_config = "{}";
  start.parameters = 1000;
  start.embedding_parameters = 100;
  start.threads = 2;
  start.instruction_set = "avx512";
  start.started_at = 1700000000.25;
  return start;
}

inline StepRecord example_step(int64_t step) {
  StepRecord line;
  line.step = step;
  line.loss = 5.5;
  line.grad_norm = 1.25;
  line.lr = 0.0003;
  line.tokens = 64;
  line.valid_tokens = 60;
  line.samples_consumed = 4 * step;
  line.begin_s = 0.5;
  line.seconds = 0.25;
  line.live[Account::kParams] = 2000;
  line.peak[Account::kParams] = 2000;
  line.peak[Account::kWorkspace] = 4096;
  line.at_peak[Account::kParams] = 2000;
  line.peak_total = 6000;
  line.traffic = {{CollectiveKind::kAllReduce, GroupKind::kDpCp, Purpose::kLoss, 1, 8}};
  line.collective_seconds[static_cast<size_t>(CollectiveKind::kAllReduce)] = 0.0125;
  return line;
}

}  // namespace fivefold::record_testing
