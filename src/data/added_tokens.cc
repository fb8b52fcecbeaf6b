#include "data/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/utf8.h"

namespace fivefold {
namespace {

constexpr int64_t kMaxId = int64_t{1} << 24;

Result<AddedToken> parse_token(const nlohmann::json& json, const std::string& where) {
  FIVEFOLD_ASSIGN(const JsonFields fields, JsonFields::of(json, where));
  AddedToken token;
  FIVEFOLD_ASSIGN(const int64_t id, fields.required_integer("id"));
  if (id < 0 || id >= kMaxId) return Error{fields.place("id"), fmt::format("{} is outside [0, 2^24)", id), ""};
  token.id = static_cast<int32_t>(id);
  FIVEFOLD_ASSIGN(token.content, fields.required_string("content"));
  if (token.content.empty()) return Error{fields.place("content"), "is empty", ""};
  FIVEFOLD_ASSIGN(token.single_word, fields.boolean_or("single_word", false));
  FIVEFOLD_ASSIGN(token.lstrip, fields.boolean_or("lstrip", false));
  FIVEFOLD_ASSIGN(token.rstrip, fields.boolean_or("rstrip", false));
  FIVEFOLD_ASSIGN(token.special, fields.boolean_or("special", false));
  FIVEFOLD_ASSIGN(token.normalized, fields.boolean_or("normalized", !token.special));
  return token;
}

// The model and the added tokens share one numbering.
Status check_ids(const std::vector<AddedToken>& tokens, const BpeModel& model, const std::string& where) {
  std::unordered_map<int32_t, std::string> by_id;
  for (const auto& [content, id] : model.vocabulary()) by_id.emplace(id, content);
  for (const AddedToken& token : tokens) {
    if (const auto id = model.find(token.content); id && *id != token.id) {
      return Error{where, fmt::format("\"{}\" has id {} here and {} in the model", token.content, token.id, *id), ""};
    }
    const auto [other, fresh] = by_id.emplace(token.id, token.content);
    if (!fresh && other->second != token.content) {
      return Error{where, fmt::format("\"{}\" and \"{}\" both have id {}", other->second, token.content, token.id), ""};
    }
  }
  return Ok{};
}

// No character of a word right before or after [begin, end).
bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool before = begin > 0 && is_word_character(decode_utf8(text, previous_character(text, begin)));
  const bool after = end < text.size() && is_word_character(decode_utf8(text, end));
  return !before && !after;
}

size_t skip_space_before(std::string_view text, size_t begin) {
  while (begin > 0 && is_white_space(decode_utf8(text, previous_character(text, begin)))) {
    begin = previous_character(text, begin);
  }
  return begin;
}

size_t skip_space_after(std::string_view text, size_t end) {
  while (end < text.size() && is_white_space(decode_utf8(text, end))) end += utf8_length(text[end]);
  return end;
}

}  // namespace

Result<AddedTokens> AddedTokens::parse(const nlohmann::json& list, const BpeModel& model, const Normalizer* normalizer,
                                       const std::string& where) {
  if (!list.is_array()) return Error{where, "is not an array", ""};
  std::vector<AddedToken> tokens;
  for (size_t i = 0; i < list.size(); ++i) {
    FIVEFOLD_ASSIGN(AddedToken token, parse_token(list[i], fmt::format("{}[{}]", where, i)));
    token.spelling = token.normalized && normalizer != nullptr ? normalizer->apply(token.content) : token.content;
    tokens.push_back(std::move(token));
  }
  FIVEFOLD_TRY(check_ids(tokens, model, where));
  std::sort(tokens.begin(), tokens.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return AddedTokens(std::move(tokens));
}

// The spellings point into tokens_, whose buffer moves along with the object.
AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), as_written_(256), normalized_(256) {
  for (const AddedToken& token : tokens_) {
    if (token.spelling.empty()) continue;  // nothing is left of it after normalization
    (token.normalized ? normalized_ : as_written_)[static_cast<unsigned char>(token.spelling.front())].push_back(
        &token);
  }
  for (Spellings* spellings : {&as_written_, &normalized_}) {
    for (auto& same_byte : *spellings) {
      std::stable_sort(same_byte.begin(), same_byte.end(), [](const AddedToken* a, const AddedToken* b) {
        return a->spelling.size() > b->spelling.size();
      });
    }
  }
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found =
      std::find_if(tokens_.begin(), tokens_.end(), [&](const AddedToken& t) { return t.content == content; });
  return found == tokens_.end() ? nullptr : &*found;
}

void AddedTokens::split(const Spellings& spellings, std::string_view text, const std::function<void(int32_t)>& token,
                        const std::function<void(std::string_view, size_t)>& part) const {
  const auto flush = [&](size_t begin, size_t end) {
    if (end > begin) part(text.substr(begin, end - begin), begin);
  };
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const auto& candidates = spellings[static_cast<unsigned char>(text[at])];
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const AddedToken* candidate) {
      return text.substr(at, candidate->spelling.size()) == candidate->spelling;
    });
    if (found == candidates.end()) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + (*found)->spelling.size();
    at = end;
    if ((*found)->single_word && !stands_alone(text, begin, end)) continue;
    if ((*found)->lstrip) begin = std::max(done, skip_space_before(text, begin));
    if ((*found)->rstrip) end = skip_space_after(text, end);
    flush(done, begin);
    token((*found)->id);
    done = at = end;
  }
  flush(done, text.size());
}

void AddedTokens::split(const std::string& text, const Normalizer* normalizer,
                        const std::function<void(int32_t)>& token,
                        const std::function<void(std::string, bool)>& part) const {
  split(as_written_, text, token, [&](std::string_view raw, size_t raw_begin) {
    std::string normal(raw);
    if (normalizer != nullptr) normal = normalizer->apply(std::move(normal));
    split(normalized_, normal, token,
          [&](std::string_view words, size_t begin) { part(std::string(words), raw_begin == 0 && begin == 0); });
  });
}

}  // namespace fivefold
