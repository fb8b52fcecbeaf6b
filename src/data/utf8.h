// UTF-8 in std::string: what a tokenizer needs of it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fivefold {

// The text with every maximal ill-formed part replaced by U+FFFD (Unicode 15, section 3.9, "U+FFFD substitution of
// maximal subparts"). Well-formed text is returned as it is.
std::string to_valid_utf8(std::string_view bytes);

// Bytes of the character that starts with `lead`. REQUIRES: the lead byte of well-formed UTF-8.
constexpr size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The character that starts at `at`. REQUIRES: well-formed, at < size.
char32_t decode_utf8(std::string_view text, size_t at);
// Where the character that ends at `at` starts. REQUIRES: well-formed, 0 < at <= size.
size_t previous_character(std::string_view text, size_t at);

// The Unicode property White_Space.
bool is_white_space(char32_t code_point);
// \w of Unicode Technical Standard 18, annex C: Alphabetic, marks, decimal digits, connector punctuation, joiners.
bool is_word_character(char32_t code_point);

void append_utf8(std::string& out, char32_t code_point);

}  // namespace fivefold
