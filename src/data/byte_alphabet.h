// The byte-level alphabet of GPT-2: each byte as one printable character, so that a vocabulary is made of strings.
// Printable Latin-1 (!-~, U+00A1-U+00AC, U+00AE-U+00FF) stands for itself, the other 68 bytes in order for U+0100 and
// up.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fivefold {

// Every byte of `text` as its character.
std::string to_byte_alphabet(std::string_view text);
// The inverse; nothing when a character is not of the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace fivefold
