// Training of a small model for 300 steps on text that can only be learned in part, for tests that compare where the
// loss ends. Torch-free.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "spec/run_config_io.h"
#include "spec/validate.h"
#include "support/tiny_model.h"

namespace fivefold::testing {

class ShortTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("fivefold-states-training-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    // 32 words of four of 24 letters, one after another by chance: what can be learned is the words.
    uint32_t state = 1;
    const auto next = [&](uint32_t bound) { return ((state = state * 1664525u + 1013904223u) >> 8) % bound; };
    std::vector<std::string> words(32);
    for (std::string& word : words) {
      for (int i = 0; i < 4; ++i) word += static_cast<char>('a' + next(24));
      word += ' ';
    }
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 60000; ++i) text << words[next(32)];
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  double mean_loss_of_last_50(const std::vector<std::string>& settings,
                              ModelSpec model = tiny_model_of_two_state_kinds(257)) {
    ConfigSources sources;
    sources.set = {"run.name=run",       "run.steps=300",         "data.train=" + (folder_ / "text.txt").string(),
                   "batch.micro=8",      "batch.sequence=32",     "lr.warmup_steps=20",
                   "parallel.threads=1", "optimizer.lr=3e-3",     "checkpoint.every=0",
                   "comm.timeout_s=60",  "precision.compute=bf16"};
    sources.set.insert(sources.set.end(), settings.begin(), settings.end());
    const LoadedConfig loaded = load_config(sources);
    FIVEFOLD_CHECK(loaded.errors.empty(), to_string(loaded.errors));
    TrainRequest train;
    train.model = std::move(model);
    train.model.architecture = "LlamaForCausalLM";
    train.model.max_positions = 32;
    train.model.init_std = 0.02;
    train.model_config = write_model_config(train.model);
    train.config = resolve(loaded.config, train.model).value();
    train.run_directory = folder_ / ("run" + std::to_string(runs_++));
    std::filesystem::create_directories(train.run_directory);
    double sum = 0;
    train.on_step = [&](const TrainProgress& step) { sum += step.step >= 250 ? step.loss / 50 : 0; };
    EXPECT_TRUE(load_engine().value()->train(train).value().finished);
    return sum;
  }

  std::filesystem::path folder_;
  int runs_ = 0;
};

}  // namespace fivefold::testing
