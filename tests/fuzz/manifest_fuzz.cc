// A checkpoint's manifest, and a shard's receipt. The input is the manifest's content: its checksum, which would turn
// all but unchanged input away, is put around it here.
#include <nlohmann/json.hpp>
#include <span>

#include "fuzz/fuzz_target.h"
#include "store/hash.h"
#include "store/manifest.h"

namespace fivefold::fuzz {
namespace {

using nlohmann::json;

std::string with_checksum(std::string_view content) {
  const json value = json::parse(content, nullptr, /*allow_exceptions=*/false);
  const std::string plain = value.is_discarded() ? std::string(content) : value.dump();
  return R"({"checksum": ")" + hash_text(hash_bytes(std::as_bytes(std::span(plain)))) + R"(", "content": )" + plain +
         "}";
}

void check_manifest(std::string_view text) {
  const auto manifest = parse_manifest(text, "manifest.json");
  if (!manifest.ok()) return check_error(manifest.error());
  for (const auto& [key, tensor] : manifest->tensors) {
    int64_t elements = 0;
    for (const Piece& piece : tensor.pieces) elements += piece.end - piece.begin;
    FIVEFOLD_CHECK(elements == tensor.numel(), key.text());
  }
  const std::string written = to_text(*manifest);
  const auto again = parse_manifest(written, "manifest.json");
  FIVEFOLD_CHECK(again.ok() && to_text(*again) == written, written);
}

void check_receipt(std::string_view text) {
  const auto receipt = parse_receipt(text);
  if (!receipt.ok()) return check_error(receipt.error());
  const std::string written = to_text(*receipt);
  const auto again = parse_receipt(written);
  FIVEFOLD_CHECK(again.ok() && to_text(*again) == written, written);
  const auto merged = merge_receipts({.step = receipt->step}, 1, receipt->nonce, {*receipt}, "step-1");
  if (!merged.ok()) return check_error(merged.error());
  check_manifest(to_text(*merged));
}

}  // namespace
}  // namespace fivefold::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold::fuzz;
  const std::string_view text = as_text(data, size);
  check_manifest(text);
  check_manifest(with_checksum(text));
  check_receipt(text);
  return 0;
}
