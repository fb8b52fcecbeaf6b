// A model folder as on the Hub: `model.safetensors`, or shards listed by `model.safetensors.index.json`. When both
// exist the single file wins, as in the Hub's own libraries. All files are mapped and checked when the folder opens, so
// that a missing shard is found before anything is loaded. Tensors of a shard that the index does not list are not
// seen.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/safetensors.h"

namespace fivefold {

inline constexpr std::string_view kHubModelFile = "model.safetensors";
inline constexpr std::string_view kHubIndexFile = "model.safetensors.index.json";

struct HubTensor {
  TensorInfo info;
  std::span<const std::byte> bytes;  // valid as long as the HubFolder; alignment as in SafetensorsFile
};

// Movable; safe to read from several threads.
class HubFolder {
 public:
  // Errors: neither form is there; a damaged index; a shard name that leaves the folder; a missing or damaged shard; a
  // tensor that is listed for a shard which does not hold it.
  static Result<HubFolder> open(const std::filesystem::path& folder);

  // Sorted by name.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const { return file_of_.find(name) != file_of_.end(); }
  // Errors: no such tensor; the hint has the nearest name.
  Result<HubTensor> tensor(std::string_view name) const;
  const std::filesystem::path& path() const { return folder_; }
  // Of all files; MappedFile's.
  void release_pages() const {
    for (const SafetensorsFile& file : files_) file.release_pages();
  }

 private:
  explicit HubFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}
  Status open_single();
  Status open_sharded();

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t, std::less<>> file_of_;  // tensor -> index into files_
  std::vector<std::string> names_;
};

}  // namespace fivefold
