#include "store/hub_writer.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <regex>
#include <utility>

#include "base/check.h"
#include "store/hub_folder.h"

namespace fivefold {
namespace {

constexpr std::string_view kTempSuffix = ".tmp";

std::string shard_file_name(size_t index, size_t count) {
  if (count == 1) return std::string(kHubModelFile);
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

std::filesystem::path temp_path(const std::filesystem::path& path) { return path.string() + std::string(kTempSuffix); }

}  // namespace

HubWriter::HubWriter(std::filesystem::path folder, std::vector<TensorDeclaration> tensors, HubWriterOptions options)
    : folder_(std::move(folder)), options_(std::move(options)) {
  FIVEFOLD_CHECK(options_.max_shard_bytes > 0);
  int64_t room = options_.max_shard_bytes;
  shards_.emplace_back();
  for (TensorDeclaration& tensor : tensors) {
    const int64_t bytes = tensor.bytes();
    if (bytes > room && !shards_.back().tensors.empty()) {
      shards_.emplace_back();
      room = options_.max_shard_bytes;
    }
    room -= bytes;
    FIVEFOLD_CHECK(shard_of_.emplace(tensor.name, shards_.size() - 1).second,
                   "'" + tensor.name + "' is declared twice");
    shards_.back().tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < shards_.size(); ++i) shards_[i].file_name = shard_file_name(i, shards_.size());
  make_folder(folder_);
  open_shard(0);
}

void HubWriter::open_shard(size_t shard) {
  current_ = shard;
  writer_.emplace(temp_path(folder_ / shards_[shard].file_name), shards_[shard].tensors, options_.metadata);
}

void HubWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = shard_of_.find(name);
  FIVEFOLD_CHECK(found != shard_of_.end(), "'" + std::string(name) + "' was not declared");
  while (current_ < found->second) {
    writer_->finish(Sync::kYes);
    open_shard(current_ + 1);
  }
  writer_->write(name, bytes);
}

void HubWriter::finish() {
  writer_->finish(Sync::kYes);
  // Shards at the end may hold only tensors without elements, which nobody needs to write.
  while (current_ + 1 < shards_.size()) {
    open_shard(current_ + 1);
    writer_->finish(Sync::kYes);
  }
  for (const Shard& shard : shards_) rename_path(temp_path(folder_ / shard.file_name), folder_ / shard.file_name);
  if (shards_.size() > 1) write_index();
  sync_folder(folder_);
  remove_other_form();
  sync_folder(folder_);
}

void HubWriter::write_index() const {
  nlohmann::json weight_map = nlohmann::json::object();
  int64_t total_bytes = 0;
  for (const Shard& shard : shards_) {
    for (const TensorDeclaration& tensor : shard.tensors) {
      weight_map[tensor.name] = shard.file_name;
      total_bytes += tensor.bytes();
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", std::move(weight_map)}};
  const std::filesystem::path path = folder_ / kHubIndexFile;
  OutputFile file(temp_path(path));
  file.write(index.dump(2) + "\n");
  file.sync();
  file.close();
  rename_path(temp_path(path), path);
}

void HubWriter::remove_other_form() const {
  if (shards_.size() == 1) remove_path(folder_ / kHubIndexFile);
  if (shards_.size() > 1) remove_path(folder_ / kHubModelFile);
  const std::regex shard_name("model-[0-9]{5}-of-[0-9]{5}\\.safetensors");
  for (const std::filesystem::path& path : list_folder(folder_)) {
    const std::string name = path.filename().string();
    const bool ours = std::ranges::find(shards_, name, &Shard::file_name) != shards_.end();
    if (!ours && std::regex_match(name, shard_name)) remove_path(path);
  }
}

}  // namespace fivefold
