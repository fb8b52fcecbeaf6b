// A checkpoint's manifest, and a shard's receipt. The input is the manifest's content: its checksum, which would turn
// all but unchanged input away, is put around it here.
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

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

// Each column block holds all of its elements, and the blocks together hold all columns.
void check_coverage(const StateKey& key, const StateTensor& tensor) {
  std::map<std::pair<int64_t, int64_t>, int64_t> held;  // elements by block
  for (const Piece& piece : tensor.pieces) held[{piece.block.first, piece.block.count}] += piece.end - piece.begin;
  int64_t elements = 0;
  int64_t columns = 0;
  for (const auto& [block, in_block] : held) {
    const auto& [first, count] = block;
    FIVEFOLD_CHECK(count == 0 || (first == columns && in_block == tensor.shape.at(0) * count), key.text());
    elements += in_block;
    columns += count;
  }
  FIVEFOLD_CHECK(elements == tensor.numel(), key.text());
  FIVEFOLD_CHECK(columns == 0 || (tensor.shape.size() == 2 && columns == tensor.shape[1]), key.text());
  // A block's count is never 0, so that one group of 0 stands for a tensor without blocks.
  FIVEFOLD_CHECK(columns == 0 || !held.contains({0, 0}), key.text());
}

void check_manifest(std::string_view text) {
  const auto manifest = parse_manifest(text, "manifest.json");
  if (!manifest.ok()) return check_error(manifest.error());
  for (const auto& [key, tensor] : manifest->tensors) check_coverage(key, tensor);
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
