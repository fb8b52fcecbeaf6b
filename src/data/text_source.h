// Text sources: documents out of plain text files and JSONL, and their token files, made once and kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/tokenizer.h"

namespace fivefold {

enum class TextFormat : uint8_t {
  kText,        // one document per file
  kParagraphs,  // documents are separated by blank lines (lines of spaces and tabs)
  kJsonl,       // one JSON object per line, the document is the string under "text"
};

// The file itself, or the regular files of a folder in byte order of their names. Errors: folder without files.
Result<std::vector<std::filesystem::path>> list_text_files(const std::filesystem::path& path);

// Calls `each` for every document of list_text_files(path), in order. Documents without a character are left out, and
// so are empty lines of JSONL. Errors: cannot be read; a document above 1 GiB; JSONL (where: file:line): not JSON in
// UTF-8, not an object, no "text", not a string.
Status for_each_document(const std::filesystem::path& path, TextFormat format,
                         const std::function<void(std::string_view)>& each);

// Token file (common name of the pair) of the text at `path`, encoded with Specials::kAdd. Made in `cache_folder`
// (created when missing) under a name that is a hash of the content, the format and the tokenizer, and used again when
// it is there. Errors: those of for_each_document, a source without tokens. Throws std::system_error when the disk
// fails.
Result<std::filesystem::path> tokenize_to_cache(const std::filesystem::path& path, TextFormat format,
                                                const Tokenizer& tokenizer, const std::filesystem::path& cache_folder);

}  // namespace fivefold
