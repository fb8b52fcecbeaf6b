// WeightsFolder: a trained model as the user names it: a folder as on the Hub, a fivefold checkpoint, a folder of
// checkpoints, or a run. Finds the model, its tokenizer and the ids that end a text. Pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "spec/model.h"
#include "store/checkpoint_reader.h"

namespace fivefold {

struct WeightsFolder {
  std::filesystem::path weights;  // folder of safetensors, or of one checkpoint
  ModelSpec model;
  std::string tokenizer;          // for load_tokenizer; empty: the folder has none
  std::vector<int32_t> stop_ids;  // beside the tokenizer's own EOS: those of config.json and generation_config.json
  std::string note;               // to show; empty: none
};

// `model`: a name or config.json that stands for what the folder says; empty: none. Of several checkpoints the newest
// whole one. Errors: no such folder; nothing of the kind in it; a damaged file; a model that is not known.
Result<WeightsFolder> find_weights(const std::filesystem::path& path, const std::string& model);

// The model that a checkpoint belongs to: its run keeps a config.json, or else its configuration says which.
Result<ModelSpec> model_of(const CheckpointReader& checkpoint);

}  // namespace fivefold
