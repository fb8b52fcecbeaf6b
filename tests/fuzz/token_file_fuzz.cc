// Megatron's pair of token files. Input: two bytes of index length (little-endian), the .idx, the .bin.
#include <algorithm>

#include "data/dataset.h"
#include "data/token_file.h"
#include "fuzz/fuzz_target.h"

namespace fivefold::fuzz {
namespace {

constexpr int64_t kVocabulary = 300;

// Every token that the index describes can be read, and samples can be cut from it.
void check_file(TokenFile file) {
  int64_t tokens = 0;
  bool valid = true;
  for (int64_t document = 0; document < file.num_documents(); ++document) {
    const int64_t length = file.document_length(document);
    tokens += length;
    std::vector<int32_t> ids(static_cast<size_t>(length));
    const Status status = file.read(document, 0, ids);
    if (!status.ok()) check_error(status.error());
    valid = valid && status.ok();
    for (const int32_t id : ids) FIVEFOLD_CHECK(!status.ok() || (id >= 0 && id < kVocabulary));
  }
  FIVEFOLD_CHECK(tokens == file.num_tokens());
  FIVEFOLD_CHECK(file.check_ids().ok() == valid);
  for (const Packing packing : {Packing::kConcatenate, Packing::kDocuments}) {
    auto again = TokenFile::open(file.path(), kVocabulary);
    FIVEFOLD_CHECK(again.ok());
    const auto dataset = Dataset::create(std::move(*again), 3, packing, 0);
    if (!dataset.ok()) {
      check_error(dataset.error());
      continue;
    }
    FIVEFOLD_CHECK(dataset->num_tokens() >= tokens && dataset->num_samples() > 0);
    const auto batch = dataset->fixed_batch(0, std::min<int64_t>(dataset->num_samples(), 16));
    FIVEFOLD_CHECK(batch.ok() || !valid);
  }
}

}  // namespace
}  // namespace fivefold::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  static const fuzz::ScratchFolder folder;
  if (size < 2) return 0;
  const std::string_view files = fuzz::as_text(data + 2, size - 2);
  const size_t index_bytes = std::min<size_t>(data[0] + 256u * data[1], files.size());
  folder.write("tokens.idx", files.substr(0, index_bytes));
  folder.write("tokens.bin", files.substr(index_bytes));
  auto file = TokenFile::open(folder.path() / "tokens", fuzz::kVocabulary);
  if (file.ok())
    fuzz::check_file(std::move(*file));
  else
    fuzz::check_error(file.error());
  return 0;
}
