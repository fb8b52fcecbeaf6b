// TensorBoard event files: the curves of a run, from its record. Format: docs/formats/run-record.md. No protobuf type
// appears here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "record/run_record.h"

namespace fivefold {

// One event file, written from its start. One thread per object.
class TensorboardWriter {
 public:
  // Makes FOLDER/events.out.tfevents.TIME.fivefold. `started_at`: Unix time, part of the name and of the first event.
  TensorboardWriter(const std::filesystem::path& folder, double started_at);

  void add(int64_t step, double wall_time, const std::vector<std::pair<std::string, double>>& scalars);
  // Errors: the file could not be made or written.
  Status finish();

 private:
  void append(const std::string& event);

  std::filesystem::path file_;
  std::ofstream stream_;
};

// The curves of all sessions of rank 0: loss, grad_norm, lr, tokens_per_s, and validation_loss. Each session is a file
// of its own, so that steps done again after a restart replace those before it in TensorBoard. Files of sessions that
// are there already are written anew.
Status write_tensorboard(const RankRecord& rank, const std::filesystem::path& folder);

// Castagnoli's checksum, as event files mask it.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace fivefold
