// `fivefold convert` for adapters: of a run to PEFT's format, and into the weights of their base. Each prints what it
// read and wrote. Not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/adapter_merge.h"
#include "spec/enums.h"
#include "spec/model.h"
#include "spec/run_config.h"
#include "store/checkpoint_reader.h"

namespace fivefold {

struct ConvertAdapterOptions {
  std::filesystem::path from, to;
  std::string base;            // Hub folder; empty: the one that the adapter names
  std::string merge_into;      // "original" or "quantised"
  std::optional<DType> dtype;  // nothing: fp32 of an adapter, the base's own types of a merge
  int64_t max_shard_bytes = 0;
};

// A checkpoint of a run that trains an adapter.
struct AdapterCheckpoint {
  CheckpointReader& reader;
  RunConfig config;
  ModelSpec model;  // with the adapter
};

// Checkpoint -> PEFT folder. Errors: those of CheckpointReader::read.
Status write_peft_folder(const ConvertAdapterOptions& options, const AdapterCheckpoint& checkpoint);

// PEFT folder or checkpoint, and its base -> Hub folder. Errors: those of PeftFolder::open, read_model_config,
// HubFolder::open and write_merged_weights; no base; TO is the base.
Status merge_peft_folder(const ConvertAdapterOptions& options);
Status merge_checkpoint(const ConvertAdapterOptions& options, const AdapterCheckpoint& checkpoint);

}  // namespace fivefold
