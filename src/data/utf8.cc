#include "data/utf8.h"

#include <unicode/uchar.h>

namespace fivefold {
namespace {

struct Part {
  size_t length;  // bytes of the character, or of the ill-formed part
  bool valid;
};

// Table 3-7 of the Unicode standard: the range of the second byte depends on the first.
Part next_part(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const size_t length = utf8_length(bytes[0]);
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i >= bytes.size() || at(i) < (i == 1 ? low : 0x80) || at(i) > (i == 1 ? high : 0xBF)) return {i, false};
  }
  return {length, true};
}

}  // namespace

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const Part part = next_part(bytes.substr(i));
    out += part.valid ? bytes.substr(i, part.length) : std::string_view("\xEF\xBF\xBD");
    i += part.length;
  }
  return out;
}

char32_t decode_utf8(std::string_view text, size_t at) {
  const size_t length = utf8_length(text[at]);
  const auto lead = static_cast<unsigned char>(text[at]);
  char32_t code_point = length == 1 ? lead : lead & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) code_point = code_point << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3FU);
  return code_point;
}

size_t previous_character(std::string_view text, size_t at) {
  do --at;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool is_white_space(char32_t code_point) { return u_isUWhiteSpace(static_cast<UChar32>(code_point)) != 0; }

bool is_word_character(char32_t code_point) {
  constexpr uint32_t kMarksDigitsConnectors = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  const auto c = static_cast<UChar32>(code_point);
  return (U_GET_GC_MASK(c) & kMarksDigitsConnectors) != 0 || u_hasBinaryProperty(c, UCHAR_ALPHABETIC) != 0 ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) != 0;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace fivefold
