#include "store/hub_folder.h"

#include <string>
#include <utility>

#include "base/text.h"
#include "store/file_io.h"
#include "store/json_input.h"

namespace fivefold {
namespace {

std::string tensor_place(const std::filesystem::path& file, const std::string& tensor) {
  return file.string() + " (" + tensor + ")";
}

// tensor -> shard file name, as the index says. Errors: those of a damaged index.
Result<std::map<std::string, std::string>> parse_weight_map(const MappedFile& file, const std::string& where) {
  FIVEFOLD_ASSIGN(const nlohmann::json index, parse_json_object(file.text(), "index", where));
  FIVEFOLD_ASSIGN(const nlohmann::json* weight_map, json_object_field(index, "weight_map", where));
  if (weight_map->empty()) return Error{where, "'weight_map' lists no tensors", ""};
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, shard] : weight_map->items()) {
    const std::string place = where + " (" + tensor + ")";
    if (!shard.is_string()) return Error{place, "shard must be the name of a file, not " + shard.dump(), ""};
    const auto& name = shard.get_ref<const std::string&>();
    if (!is_plain_file_name(name))
      return Error{place, "shard '" + name + "' is not the name of a file in this folder",
                   "shards lie beside the index"};
    shard_of[tensor] = name;
  }
  return shard_of;
}

}  // namespace

Result<HubFolder> HubFolder::open(const std::filesystem::path& folder) {
  HubFolder hub(folder);
  std::error_code error;
  if (std::filesystem::exists(folder / kHubModelFile, error)) {
    FIVEFOLD_TRY(hub.open_single());
  } else if (std::filesystem::exists(folder / kHubIndexFile, error)) {
    FIVEFOLD_TRY(hub.open_sharded());
  } else if (!std::filesystem::is_directory(folder, error)) {
    return Error{folder.string(), "no such folder", ""};
  } else {
    return Error{folder.string(), "has neither " + std::string(kHubModelFile) + " nor " + std::string(kHubIndexFile),
                 "other weight formats are not read; convert them to safetensors"};
  }
  for (const auto& [name, file] : hub.file_of_) hub.names_.push_back(name);
  return hub;
}

Status HubFolder::open_single() {
  FIVEFOLD_ASSIGN(SafetensorsFile file, SafetensorsFile::open(folder_ / kHubModelFile));
  for (const TensorInfo& tensor : file.tensors()) file_of_[tensor.name] = 0;
  files_.push_back(std::move(file));
  return Ok{};
}

Status HubFolder::open_sharded() {
  const std::filesystem::path index_path = folder_ / kHubIndexFile;
  FIVEFOLD_ASSIGN(const MappedFile index, MappedFile::open(index_path));
  FIVEFOLD_ASSIGN(const auto shard_of, parse_weight_map(index, index_path.string()));
  std::map<std::string, size_t> opened;
  std::error_code error;
  for (const auto& [tensor, shard] : shard_of) {
    auto found = opened.find(shard);
    if (found == opened.end()) {
      if (!std::filesystem::exists(folder_ / shard, error))
        return Error{tensor_place(index_path, tensor), "shard '" + shard + "' is missing",
                     "the download is incomplete"};
      FIVEFOLD_ASSIGN(SafetensorsFile file, SafetensorsFile::open(folder_ / shard));
      found = opened.emplace(shard, files_.size()).first;
      files_.push_back(std::move(file));
    }
    if (files_[found->second].find(tensor) == nullptr)
      return Error{tensor_place(index_path, tensor), "shard '" + shard + "' does not hold this tensor",
                   "index and shards are of different models"};
    file_of_[tensor] = found->second;
  }
  return Ok{};
}

Result<HubTensor> HubFolder::tensor(std::string_view name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end())
    return Error{tensor_place(folder_, std::string(name)), "no such tensor", name_hint(name, names_)};
  const SafetensorsFile& file = files_[found->second];
  const TensorInfo* info = file.find(name);
  return HubTensor{*info, file.bytes(*info)};
}

}  // namespace fivefold
