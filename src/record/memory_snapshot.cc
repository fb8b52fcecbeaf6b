// PyTorch's memory snapshot: segments of the caching allocator, and, where a history was recorded, its events
// (torch/cuda/memory.py, torch/csrc/cuda/memory_snapshot.cpp). A pickle of plain data, or the same as JSON.
#include <algorithm>
#include <map>
#include <string>

#include "record/log_readers.h"
#include "record/plain_data.h"

namespace fivefold {
namespace {

using Node = PlainData::Node;
using Kind = PlainData::Kind;

constexpr int64_t kMostBytes = int64_t{1} << 50;
constexpr size_t kKeptAllocations = 64;
constexpr int kMostDevices = 1024;

class SnapshotReader {
 public:
  SnapshotReader(const PlainData& data, ForeignLog& log) : data_(data), log_(log) {}

  // False when the document has no segments.
  bool read() {
    const Node segments = data_.at(data_.root(), "segments");
    if (data_.kind(data_.root()) != Kind::kDictionary || data_.kind(segments) != Kind::kList) return false;
    for (const Node segment : data_.elements(segments)) read_segment(segment);
    int device = 0;
    for (const Node trace : data_.elements(data_.at(data_.root(), "device_traces"))) {
      if (device >= kMostDevices) break;
      read_trace(trace, device++);
    }
    for (const auto& [index, held] : held_) {
      note_memory(log_, index, LoggedMemoryKind::kAllocated, static_cast<double>(std::max(held.allocated, held.peak)));
      note_memory(log_, index, LoggedMemoryKind::kReserved,
                  static_cast<double>(std::max(held.reserved, held.peak_reserved)));
    }
    for (const auto& [key, count] : live_)
      log_.live.push_back({.bytes = key.first, .count = count, .where = key.second});
    std::ranges::stable_sort(log_.live, std::greater(), [](const LiveAllocation& a) { return a.bytes * a.count; });
    if (log_.live.size() > kKeptAllocations) log_.live.resize(kKeptAllocations);
    return true;
  }

 private:
  struct Held {
    int64_t allocated = 0, reserved = 0;  // when the snapshot was taken
    int64_t peak = 0, peak_reserved = 0;  // over the recorded events
  };

  int64_t bytes(Node dictionary, std::string_view key) const {
    return std::clamp<int64_t>(data_.integer(data_.at(dictionary, key)), 0, kMostBytes);
  }

  // The innermost frame of Python.
  std::string where(Node holder) const {
    for (const Node frame : data_.elements(data_.at(holder, "frames"))) {
      const std::string_view file = data_.text(data_.at(frame, "filename"));
      if (!file.ends_with(".py")) continue;
      const size_t slash = file.rfind('/');
      std::string text(slash == std::string_view::npos ? file : file.substr(slash + 1));
      text += ":" + std::to_string(data_.integer(data_.at(frame, "line"))) + " ";
      return text += data_.text(data_.at(frame, "name"));
    }
    return "";
  }

  void read_segment(Node segment) {
    const int64_t device = data_.integer(data_.at(segment, "device"));
    if (device < 0 || device >= kMostDevices) return;
    Held& held = held_[static_cast<int>(device)];
    held.reserved = std::min(kMostBytes, held.reserved + bytes(segment, "total_size"));
    held.allocated = std::min(kMostBytes, held.allocated + bytes(segment, "allocated_size"));
    for (const Node block : data_.elements(data_.at(segment, "blocks"))) {
      const std::string_view state = data_.text(data_.at(block, "state"));
      const int64_t size = bytes(block, "size");
      if (state == "inactive") {
        log_.inactive_bytes = std::min(kMostBytes, log_.inactive_bytes + size);
        ++log_.inactive_blocks;
      } else if (state == "active_allocated" && size > 0) {
        // Snapshots before 2.1 had the frames of a block in its history.
        std::string place = where(block);
        const auto& history = data_.elements(data_.at(block, "history"));
        if (place.empty() && !history.empty()) place = where(history.front());
        ++live_[{size, std::move(place)}];
      }
    }
  }

  // Walks back from what there was in the end.
  void read_trace(Node trace, int device) {
    Held& held = held_[device];
    held.peak = std::max(held.peak, held.allocated), held.peak_reserved = std::max(held.peak_reserved, held.reserved);
    int64_t allocated = held.allocated, reserved = held.reserved;
    const std::vector<Node>& events = data_.elements(trace);
    for (auto event = events.rbegin(); event != events.rend(); ++event) {
      const std::string_view action = data_.text(data_.at(*event, "action"));
      const int64_t size = bytes(*event, "size");
      if (action == "alloc")
        allocated = std::max<int64_t>(0, allocated - size);
      else if (action == "free_requested" || action == "free")
        allocated = std::min(kMostBytes, allocated + size);
      else if (action == "segment_alloc" || action == "segment_map")
        reserved = std::max<int64_t>(0, reserved - size);
      else if (action == "segment_free" || action == "segment_unmap")
        reserved = std::min(kMostBytes, reserved + size);
      else if (action == "oom" && size > 0)
        log_.out_of_memory.push_back({.device = device,
                                      .requested = size,
                                      .free = bytes(*event, "device_free"),
                                      .allocated = allocated,
                                      .unallocated = std::max<int64_t>(0, reserved - allocated),
                                      .precision = 1,
                                      .where = where(*event)});
      held.peak = std::max(held.peak, allocated), held.peak_reserved = std::max(held.peak_reserved, reserved);
    }
  }

  const PlainData& data_;
  ForeignLog& log_;
  std::map<int, Held> held_;
  std::map<std::pair<int64_t, std::string>, int64_t> live_;
};

}  // namespace

Status read_snapshot(std::string_view content, const std::string& name, ForeignLog& log) {
  const bool is_json = !content.empty() && content.front() != '\x80';
  FIVEFOLD_ASSIGN(const PlainData data, is_json ? read_json_data(content, name) : read_pickle(content, name));
  if (!SnapshotReader(data, log).read())
    return Error{name, "has no segments: it is no snapshot of PyTorch's memory", "torch.cuda.memory._dump_snapshot"};
  return Ok{};
}

}  // namespace fivefold
