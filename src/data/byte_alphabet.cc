#include "data/byte_alphabet.h"

#include <array>

#include "data/utf8.h"

namespace fivefold {
namespace {

constexpr size_t kCharacters = 256 + 68;

struct Alphabet {
  std::array<std::string, 256> character;
  std::array<int, kCharacters> byte;  // by code point; -1: none
};

const Alphabet& alphabet() {
  static const Alphabet made = [] {
    Alphabet out;
    out.byte.fill(-1);
    char32_t extra = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t code_point = printable ? static_cast<char32_t>(byte) : extra++;
      append_utf8(out.character[static_cast<size_t>(byte)], code_point);
      out.byte[code_point] = byte;
    }
    return out;
  }();
  return made;
}

}  // namespace

std::string to_byte_alphabet(std::string_view text) {
  std::string out;
  for (const char c : text) out += alphabet().character[static_cast<unsigned char>(c)];
  return out;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text[i]);
    const char32_t code_point = decode_utf8(text, i);
    if (code_point >= kCharacters || alphabet().byte[code_point] < 0) return std::nullopt;
    out.push_back(static_cast<char>(alphabet().byte[code_point]));
    i += length;
  }
  return out;
}

}  // namespace fivefold
