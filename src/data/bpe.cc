#include "data/bpe.h"

#include <fmt/format.h>

#include <queue>

#include "data/utf8.h"

namespace fivefold {
namespace {

constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
// Text repeats its words: most of a corpus is served by this many short ones.
constexpr size_t kCachedWords = 1 << 16, kCachedWordBytes = 64;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// A merge as "left right" or as ["left", "right"].
Result<std::pair<std::string, std::string>> parse_merge(const nlohmann::json& merge, const std::string& where) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  }
  return Error{where, "is neither \"left right\" nor [\"left\", \"right\"]", ""};
}

}  // namespace

Result<std::unique_ptr<BpeModel>> BpeModel::parse(const JsonFields& model) {
  std::unique_ptr<BpeModel> bpe(new BpeModel);
  FIVEFOLD_TRY(bpe->parse_vocabulary(model));
  FIVEFOLD_TRY(bpe->parse_merges(model));
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    FIVEFOLD_ASSIGN(const std::string text, model.string_or(affix, ""));
    if (!text.empty()) return Error{model.place(affix), "is not supported", ""};
  }
  if (const nlohmann::json* dropout = model.find("dropout"); dropout != nullptr && *dropout != 0) {
    return Error{model.place("dropout"), "is not supported: encoding would not be repeatable", "set it to null"};
  }
  FIVEFOLD_ASSIGN(bpe->fuse_unk_, model.boolean_or("fuse_unk", false));
  FIVEFOLD_ASSIGN(bpe->ignore_merges_, model.boolean_or("ignore_merges", false));
  FIVEFOLD_ASSIGN(const bool byte_fallback, model.boolean_or("byte_fallback", false));
  if (byte_fallback) {
    for (int byte = 0; byte < 256; ++byte)
      bpe->byte_tokens_.push_back(bpe->find(fmt::format("<0x{:02X}>", byte)).value_or(-1));
  }
  FIVEFOLD_ASSIGN(const std::string unk, model.string_or("unk_token", ""));
  if (!unk.empty()) {
    bpe->unk_ = bpe->find(unk);
    if (!bpe->unk_) return Error{model.place("unk_token"), fmt::format("\"{}\" is not in the vocabulary", unk), ""};
  }
  return bpe;
}

Status BpeModel::parse_vocabulary(const JsonFields& model) {
  FIVEFOLD_ASSIGN(const nlohmann::json* vocab, model.required("vocab"));
  const std::string where = model.place("vocab");
  if (!vocab->is_object()) return Error{where, "is not an object of token: id", ""};
  std::unordered_map<int32_t, const std::string*> by_id;
  for (const auto& [token, value] : vocab->items()) {
    if (!value.is_number_integer())
      return Error{where, fmt::format("\"{}\" has an id that is not an integer", token), ""};
    const bool fits = value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(kMaxVocabulary);
    if (!fits) return Error{where, fmt::format("\"{}\" has id {}, outside [0, 2^24)", token, value.dump()), ""};
    const auto id = value.get<int32_t>();
    const auto entry = vocabulary_.emplace(token, id).first;
    const auto [other, fresh] = by_id.emplace(id, &entry->first);
    if (!fresh) return Error{where, fmt::format("\"{}\" and \"{}\" both have id {}", *other->second, token, id), ""};
  }
  if (vocabulary_.empty()) return Error{where, "is empty", ""};
  return Ok{};
}

Status BpeModel::parse_merges(const JsonFields& model) {
  FIVEFOLD_ASSIGN(const nlohmann::json* merges, model.required_array("merges"));
  merges_.reserve(merges->size());
  for (size_t rank = 0; rank < merges->size(); ++rank) {
    const std::string where = fmt::format("{}[{}]", model.place("merges"), rank);
    FIVEFOLD_ASSIGN(const auto parts, parse_merge((*merges)[rank], where));
    const auto& [left, right] = parts;
    for (const std::string& token : {left, right, left + right}) {
      if (!find(token)) return Error{where, fmt::format("\"{}\" is not in the vocabulary", token), ""};
    }
    merges_[pair_key(*find(left), *find(right))] = {static_cast<int32_t>(rank), *find(left + right)};
  }
  return Ok{};
}

std::optional<int32_t> BpeModel::find(std::string_view token) const {
  const auto found = vocabulary_.find(std::string(token));
  return found == vocabulary_.end() ? std::nullopt : std::optional(found->second);
}

const BpeModel::Merge* BpeModel::find_merge(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BpeModel::encode(std::string_view word, std::vector<int32_t>& out) const {
  const std::string key(word);
  if (ignore_merges_) {
    if (const auto found = vocabulary_.find(key); found != vocabulary_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  if (word.size() > kCachedWordBytes) {
    const std::vector<int32_t> ids = merge(word);
    out.insert(out.end(), ids.begin(), ids.end());
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = cache_.find(key); found != cache_.end()) {
      out.insert(out.end(), found->second.begin(), found->second.end());
      return;
    }
  }
  std::vector<int32_t> ids = merge(word);
  out.insert(out.end(), ids.begin(), ids.end());
  const std::lock_guard lock(mutex_);
  if (cache_.size() < kCachedWords) cache_.emplace(key, std::move(ids));
}

// The tokens of single characters that merging starts from.
std::vector<int32_t> BpeModel::split_characters(std::string_view word) const {
  std::vector<int32_t> ids;
  bool after_unk = false;
  for (size_t i = 0; i < word.size();) {
    const std::string_view character = word.substr(i, utf8_length(word[i]));
    i += character.size();
    bool spelled = false;
    if (const auto id = find(character)) {
      ids.push_back(*id);
      spelled = true;
    } else if (!byte_tokens_.empty()) {
      spelled = true;
      for (const char c : character) spelled = spelled && byte_tokens_[static_cast<unsigned char>(c)] >= 0;
      for (const char c : character) {
        if (spelled) ids.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
      }
    }
    if (!spelled && unk_ && !(after_unk && fuse_unk_)) ids.push_back(*unk_);
    after_unk = !spelled;
  }
  return ids;
}

// Always the lowest-ranked merge first, the leftmost of equals. Symbols are a doubly linked list over `ids`; a queue
// entry is stale when its pair has changed since.
std::vector<int32_t> BpeModel::merge(std::string_view word) const {
  std::vector<int32_t> ids = split_characters(word);
  const auto size = static_cast<int32_t>(ids.size());
  std::vector<int32_t> previous(ids.size()), next(ids.size());
  for (int32_t i = 0; i < size; ++i) {
    previous[static_cast<size_t>(i)] = i - 1;
    next[static_cast<size_t>(i)] = i + 1;
  }
  struct Candidate {
    int32_t rank, left, result;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto propose = [&](int32_t left) {
    if (left < 0 || next[static_cast<size_t>(left)] >= size) return;
    const Merge* found =
        find_merge(ids[static_cast<size_t>(left)], ids[static_cast<size_t>(next[static_cast<size_t>(left)])]);
    if (found != nullptr) queue.push({found->rank, left, found->result});
  };
  for (int32_t i = 0; i < size; ++i) propose(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const auto left = static_cast<size_t>(best.left);
    if (ids[left] < 0 || next[left] >= size) continue;
    const auto right = static_cast<size_t>(next[left]);
    const Merge* current = find_merge(ids[left], ids[right]);
    if (current == nullptr || current->rank != best.rank) continue;
    ids[left] = best.result;
    ids[right] = -1;  // gone
    next[left] = next[right];
    if (next[left] < size) previous[static_cast<size_t>(next[left])] = best.left;
    propose(previous[left]);
    propose(best.left);
  }
  std::erase(ids, -1);
  return ids;
}

}  // namespace fivefold
