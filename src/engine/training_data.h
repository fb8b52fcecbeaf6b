// TrainingData: the run's datasets cut into this rank's microbatches. Data order is a function of (seed, samples
// consumed). Const functions are thread-safe.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "engine/microbatch.h"
#include "spec/model.h"
#include "spec/run_config_resolve.h"

namespace fivefold {

class TrainingData {
 public:
  // Opens (tokenising where needed) training and validation data. Errors: those of the tokenizer and the data; a
  // vocabulary larger than the model's.
  static Result<TrainingData> open(const ResolvedConfig& config, const ModelSpec& model,
                                   const std::filesystem::path& cache_folder);

  // What a user should know of how the samples were made, with the name of the source before each.
  std::vector<std::string> remarks(const DataConfig& data) const;

  // Microbatches of the step that begins after `consumed` samples. Throws std::runtime_error for damaged token files.
  std::vector<MicrobatchTokens> step(const ResolvedConfig& config, int data_rank, int64_t consumed) const;

  bool has_validation() const { return validation_.has_value(); }
  // How often each rank evaluates one microbatch to see every validation sample once; equal on all ranks.
  int64_t num_validation_batches(const ResolvedConfig& config) const;
  MicrobatchTokens validation_batch(const ResolvedConfig& config, int data_rank, int64_t index) const;

 private:
  TrainingData(Dataset train, SampleOrder order) : train_(std::move(train)), order_(order) {}

  Dataset train_;
  SampleOrder order_;
  std::optional<Dataset> validation_;
};

}  // namespace fivefold
