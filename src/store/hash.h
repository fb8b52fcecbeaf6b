// XXH3-64 of bytes, and its text form "xxh3:" + 16 lower-case hexadecimal digits. Guards against accidents (flipped
// bits, truncation), not against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fivefold {

uint64_t hash_bytes(std::span<const std::byte> bytes);
std::string hash_text(uint64_t hash);
// Inverse of hash_text; nothing for any other text.
std::optional<uint64_t> parse_hash(std::string_view text);

}  // namespace fivefold
