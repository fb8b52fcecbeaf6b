// TrainingRuns: a fixture for tests that train a tiny model on a text in a temporary folder, stop and go on.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "spec/run_config_io.h"
#include "spec/validate.h"
#include "support/reference_run.h"

namespace fivefold::testing {

class TrainingRuns : public ::testing::Test {
 protected:
  // Two layers with tied embeddings and an odd vocabulary.
  static ModelSpec run_model() {
    ModelSpec model;
    model.name = "tiny";
    model.architecture = "LlamaForCausalLM";
    model.hidden = 32;
    model.vocab = 257;
    model.max_positions = 64;
    model.tied_embeddings = true;
    LayerSpec layer;
    layer.mixer.num_heads = 4;
    layer.mixer.num_kv_heads = 2;
    layer.mixer.head_dim = 8;
    layer.mixer.rope.rotary_dim = 8;
    layer.mlp.ffn = 64;
    model.layers.assign(2, layer);
    return model;
  }

  void SetUp() override {
    const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("fivefold-" + std::string(test.test_suite_name()) + "-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) text << "line " << i * i % 97 << " of a text that repeats itself in part\n";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Six steps of eight rows of sixteen tokens unless `settings` say otherwise.
  TrainRequest request(const std::string& name, const std::vector<std::string>& settings) {
    ConfigSources sources;
    sources.set = {"run.name=" + name,   "run.steps=6",       "data.train=" + (folder_ / "text.txt").string(),
                   "batch.global=8",     "batch.sequence=16", "lr.warmup_steps=2",
                   "parallel.threads=1", "comm.timeout_s=60"};
    sources.set.insert(sources.set.end(), settings.begin(), settings.end());
    const LoadedConfig loaded = load_config(sources);
    FIVEFOLD_CHECK(loaded.errors.empty(), to_string(loaded.errors));
    TrainRequest train;
    train.model = run_model();
    train.model_config = write_model_config(train.model);
    train.config = resolve(loaded.config, train.model).value();
    train.run_directory = folder_ / name;
    std::filesystem::create_directories(train.run_directory);
    return train;
  }

  static TrainResult train(const TrainRequest& request) { return load_engine().value()->train(request).value(); }

  // Runs until `stop_after` steps are done, then asks for the stop.
  static TrainResult train_until(TrainRequest request, int64_t stop_after) {
    std::atomic<bool> stop{false};
    request.stop = &stop;
    // The wish is seen before the next step, which is the last one.
    request.on_step = [&](const TrainProgress& step) { stop = step.step >= stop_after - 1; };
    return train(request);
  }

  std::filesystem::path folder_;
};

}  // namespace fivefold::testing
