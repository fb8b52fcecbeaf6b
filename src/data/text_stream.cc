#include "data/text_stream.h"

#include <algorithm>
#include <utility>

#include "data/utf8.h"

namespace fivefold {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD: what an open character decodes to

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<int32_t> before)
    : tokenizer_(tokenizer), ids_(std::move(before)), num_shown_(ids_.size()) {}

std::string TextStream::push(int32_t id) {
  ids_.push_back(id);
  std::string text = tokenizer_.decode(ids_);
  if (to_valid_utf8(text).ends_with(kReplacement)) return "";
  return take(std::move(text));
}

std::string TextStream::finish() { return take(tokenizer_.decode(ids_)); }

std::string TextStream::take(std::string text) {
  const size_t shown = tokenizer_.decode(std::span(ids_).first(num_shown_)).size();
  text.erase(0, std::min(shown, text.size()));
  // Tokens without text (special ones) do not count as what stands before.
  if (text.empty()) return text;
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(num_shown_));
  num_shown_ = ids_.size();
  return text;
}

}  // namespace fivefold
