#include "engine/agreement.h"

#include <algorithm>
#include <cstring>

namespace fivefold {

std::string broadcast_text(Communicator& communicator, const Group& group, const std::string& text) {
  return gather_texts(communicator, group, group.rank() == 0 ? text : std::string())[0];
}

std::vector<std::string> gather_texts(Communicator& communicator, const Group& group, const std::string& text) {
  const auto ranks = static_cast<size_t>(group.size());
  int64_t length = static_cast<int64_t>(text.size());
  std::vector<int64_t> lengths(ranks);
  communicator.all_gather(group, {&length, sizeof length, DType::kInt64, {}},
                          {lengths.data(), static_cast<int64_t>(ranks * sizeof length), DType::kInt64, {}},
                          Purpose::kControl);
  const int64_t longest = std::max<int64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
  std::string mine(static_cast<size_t>(longest), '\0'), all(static_cast<size_t>(longest) * ranks, '\0');
  std::memcpy(mine.data(), text.data(), text.size());
  communicator.all_gather(group, {mine.data(), longest, DType::kUint8, {}},
                          {all.data(), static_cast<int64_t>(all.size()), DType::kUint8, {}}, Purpose::kControl);
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < ranks; ++rank)
    texts.push_back(all.substr(rank * static_cast<size_t>(longest), static_cast<size_t>(lengths[rank])));
  return texts;
}

}  // namespace fivefold
