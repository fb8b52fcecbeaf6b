#include "store/safetensors_writer.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/integer.h"

namespace fivefold {

std::string safetensors_header_bytes(std::span<const TensorDeclaration> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  // Assembled as text: ordered_json finds a key by linear search, which is quadratic in the tensors.
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  std::set<std::string_view> seen;
  int64_t offset = 0;
  for (const TensorDeclaration& tensor : tensors) {
    FIVEFOLD_CHECK(tensor.name != "__metadata__" && seen.insert(tensor.name).second,
                   "tensor name '" + tensor.name + "' cannot be used or is used twice");
    const int64_t end = offset + tensor.bytes();
    if (text.size() > 1) text += ',';
    nlohmann::ordered_json entry;
    entry["dtype"] = safetensors_name(tensor.dtype);
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {offset, end};
    text += nlohmann::json(tensor.name).dump() + ':' + entry.dump();
    offset = end;
  }
  text += '}';
  text.resize(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), 8)), ' ');
  FIVEFOLD_CHECK(static_cast<int64_t>(text.size()) <= kMaxSafetensorsHeaderBytes, "safetensors header too long");

  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xff);
  return length + text;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorDeclaration> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : tensors_(std::move(tensors)), file_(path) {
  file_.write(safetensors_header_bytes(tensors_, metadata));
}

// Tensors without elements take no turn.
void SafetensorsWriter::skip_full_tensors() {
  while (next_ < tensors_.size() && written_bytes_ == tensors_[next_].bytes()) {
    ++next_;
    written_bytes_ = 0;
  }
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  skip_full_tensors();
  FIVEFOLD_CHECK(next_ < tensors_.size() && tensors_[next_].name == name,
                 "'" + std::string(name) + "' written out of turn");
  written_bytes_ += static_cast<int64_t>(bytes.size());
  FIVEFOLD_CHECK(written_bytes_ <= tensors_[next_].bytes(), "'" + std::string(name) + "': more bytes than declared");
  file_.write(bytes);
}

void SafetensorsWriter::finish(Sync sync) {
  skip_full_tensors();
  FIVEFOLD_CHECK(next_ == tensors_.size(), file_.path().string() + ": not every declared tensor was written");
  if (sync == Sync::kYes) file_.sync();
  file_.close();
}

}  // namespace fivefold
