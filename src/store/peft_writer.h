// Writing of a PEFT folder (store/peft_folder.h) as a stream. Both files are written under temporary names and renamed
// at the end, so that a failed export leaves an earlier adapter as it was up to the renames. Not thread-safe.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/peft_config.h"
#include "store/safetensors_writer.h"

namespace fivefold {

class PeftWriter {
 public:
  // Creates the folder if needed. `notes` go into the safetensors' metadata, which PEFT does not look at. Throws
  // StoreError, as every call does. REQUIRES: the tensors make an adapter of this configuration (checked).
  PeftWriter(std::filesystem::path folder, PeftConfig config, std::vector<TensorDeclaration> tensors,
             std::map<std::string, std::string> notes = {});

  // As SafetensorsWriter::write: tensors in declared order, in portions of any size.
  void write(std::string_view name, std::span<const std::byte> bytes) { model_.write(name, bytes); }
  // Syncs everything and gives the files their names. REQUIRES: every declared byte was written (checked).
  void finish();

 private:
  std::filesystem::path folder_;
  PeftConfig config_;
  SafetensorsWriter model_;
};

}  // namespace fivefold
