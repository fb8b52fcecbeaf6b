#include "data/hub_tokenizer.h"

#include <algorithm>

#include "base/text.h"
#include "data/utf8.h"

namespace fivefold {

HubTokenizer::HubTokenizer(HubTokenizerParts parts) : parts_(std::move(parts)) {
  for (const auto& [text, id] : parts_.model->vocabulary()) tokens_[id].text = text;
  for (const AddedToken& token : parts_.added->tokens()) tokens_[token.id] = {token.spelling, token.special};
  for (const auto& [id, entry] : tokens_) vocab_size_ = std::max(vocab_size_, id + 1);
}

std::vector<int32_t> HubTokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<int32_t> ids;
  const auto add = [&](const std::vector<int32_t>& more) {
    if (specials == Specials::kAdd) ids.insert(ids.end(), more.begin(), more.end());
  };
  add(parts_.before);
  parts_.added->split(
      to_valid_utf8(text), parts_.normalizer.get(), [&](int32_t id) { ids.push_back(id); },
      [&](std::string part, bool at_start) {
        std::vector<Piece> pieces;
        pieces.push_back({std::move(part), at_start});
        if (parts_.pre_tokenizer) pieces = parts_.pre_tokenizer->apply(std::move(pieces));
        for (const Piece& piece : pieces) parts_.model->encode(piece.text, ids);
      });
  add(parts_.after);
  return ids;
}

std::string HubTokenizer::decode(std::span<const int32_t> ids, Specials specials) const {
  std::vector<std::string> texts;
  for (const int32_t id : ids) {
    const auto found = tokens_.find(id);
    if (found == tokens_.end()) continue;
    const Entry& entry = found->second;
    if (!entry.special || specials == Specials::kAdd) texts.push_back(entry.text);
  }
  if (!parts_.decoder) return join(texts, " ");
  return join(parts_.decoder->apply(std::move(texts)), "");
}

std::vector<SpecialToken> HubTokenizer::special_tokens() const {
  std::vector<SpecialToken> out;
  for (const AddedToken& token : parts_.added->tokens()) {
    if (token.special) out.push_back({token.id, token.content});
  }
  return out;
}

}  // namespace fivefold
