// Text sources: documents out of plain text files and JSONL, and their token files, made once and kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "base/result.h"
#include "data/tokenizer.h"

namespace fivefold {

enum class TextFormat : uint8_t {
  kText,        // one document per file
  kParagraphs,  // documents are separated by blank lines (lines of spaces and tabs)
  kJsonl,       // one JSON object per line, the document is the string under "text"
};

// Calls `each` for every document in order. `path` is a file, or a folder whose regular files are read in byte order of
// their names. Documents without a character are left out; an empty line of JSONL too. CR before LF is kept in
// documents. Errors: cannot be read; folder without files; JSONL (where: file:line): not JSON, not an object, no
// "text", not a string.
Status for_each_document(const std::filesystem::path& path, TextFormat format,
                         const std::function<void(std::string_view)>& each);

// Token file (common name of the pair) of the text at `path`, encoded with Specials::kAdd. Made in `cache_folder`
// (created when missing) under a name that is a hash of the content, the format and the tokenizer, and used again when
// it is there. Errors: those of for_each_document, a source without tokens. Throws std::system_error when the disk
// fails.
Result<std::filesystem::path> tokenize_to_cache(const std::filesystem::path& path, TextFormat format,
                                                const Tokenizer& tokenizer, const std::filesystem::path& cache_folder);

}  // namespace fivefold
