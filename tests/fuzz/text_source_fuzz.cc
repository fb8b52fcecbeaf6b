// Documents out of a text file in its three formats.
#include "data/text_source.h"
#include "fuzz/fuzz_target.h"

namespace fivefold::fuzz {
namespace {

void check_documents(const std::filesystem::path& file, TextFormat format, size_t file_bytes) {
  size_t documents = 0, bytes = 0;
  const Status status = for_each_document(file, format, [&](std::string_view document) {
    FIVEFOLD_CHECK(!document.empty());
    ++documents;
    bytes += document.size();
  });
  if (!status.ok()) check_error(status.error());
  // No format writes a character in fewer bytes than it has.
  FIVEFOLD_CHECK(bytes <= file_bytes && documents <= bytes);
  if (format == TextFormat::kText) FIVEFOLD_CHECK(bytes == file_bytes);
}

}  // namespace
}  // namespace fivefold::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  static const fuzz::ScratchFolder folder;
  const std::filesystem::path file = folder.write("text", fuzz::as_text(data, size));
  for (const TextFormat format : {TextFormat::kText, TextFormat::kParagraphs, TextFormat::kJsonl})
    fuzz::check_documents(file, format, size);
  return 0;
}
