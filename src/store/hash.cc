#include "store/hash.h"

#include <xxhash.h>

#include <charconv>

namespace fivefold {
namespace {

constexpr std::string_view kPrefix = "xxh3:";
constexpr size_t kDigits = 16;

}  // namespace

uint64_t hash_bytes(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hash_text(uint64_t hash) {
  std::string text(kPrefix);
  for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[(hash >> shift) & 15];
  return text;
}

std::optional<uint64_t> parse_hash(std::string_view text) {
  if (!text.starts_with(kPrefix) || text.size() != kPrefix.size() + kDigits) return std::nullopt;
  uint64_t hash = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + kPrefix.size(), end, hash, 16);
  if (error != std::errc() || stop != end || hash_text(hash) != text) return std::nullopt;
  return hash;
}

}  // namespace fivefold
