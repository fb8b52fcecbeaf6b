#include "data/text_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/mapped_file.h"
#include "base/units.h"

namespace fivefold {
namespace {

using Callback = std::function<void(std::string_view)>;

// A document's tokens are counted in 31 bits and are held in memory while it is encoded.
constexpr size_t kMaxDocumentBytes = static_cast<size_t>(kGiB);

Status emit(std::string_view document, const std::string& where, const Callback& each) {
  if (document.size() > kMaxDocumentBytes) {
    return Error{where, fmt::format("a document of {} bytes is larger than 1 GiB", document.size()),
                 "split it, or use format = \"paragraphs\" or \"jsonl\""};
  }
  if (!document.empty()) each(document);
  return Ok{};
}

// Calls `line(text, number, offset)` for each line without its LF; stops at the first error.
template <typename Line>
Status for_each_line(std::string_view text, Line line) {
  int64_t number = 1;
  for (size_t start = 0; start < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', start), text.size());
    FIVEFOLD_TRY(line(text.substr(start, end - start), number, start));
    start = end + 1;
  }
  return Ok{};
}

Status read_paragraphs(std::string_view text, const std::string& where, const Callback& each) {
  size_t first = 0, last = 0;  // the open paragraph is [first, last)
  const auto flush = [&] {
    const std::string_view paragraph = text.substr(first, last - first);
    first = last;
    return emit(paragraph, where, each);
  };
  FIVEFOLD_TRY(for_each_line(text, [&](std::string_view line, int64_t, size_t start) -> Status {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return flush();
    if (first == last) first = start;
    last = start + line.size();
    return Ok{};
  }));
  return flush();
}

Status read_jsonl(std::string_view text, const std::string& path, const Callback& each) {
  return for_each_line(text, [&](std::string_view line, int64_t number, size_t) -> Status {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return Ok{};
    const std::string where = fmt::format("{}:{}", path, number);
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) return Error{where, "is not JSON in UTF-8", R"(each line is one object, {"text": "..."})"};
    if (!json.is_object()) return Error{where, "is not a JSON object", R"(each line is one object, {"text": "..."})"};
    const auto found = json.find("text");
    if (found == json.end()) return Error{where, "has no key \"text\"", ""};
    if (!found->is_string()) return Error{where, "\"text\" is not a string", ""};
    return emit(found->get_ref<const std::string&>(), where, each);
  });
}

Status read_file(const std::filesystem::path& path, TextFormat format, const Callback& each) {
  FIVEFOLD_ASSIGN(const MappedFile file, MappedFile::open(path));
  switch (format) {
    case TextFormat::kText:
      return emit(file.text(), path.string(), each);
    case TextFormat::kParagraphs:
      return read_paragraphs(file.text(), path.string(), each);
    case TextFormat::kJsonl:
      return read_jsonl(file.text(), path.string(), each);
  }
  FIVEFOLD_CHECK(false);
}

}  // namespace

Result<std::vector<std::filesystem::path>> list_text_files(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return std::vector{path};
  std::vector<std::filesystem::path> files;
  for (auto entry = std::filesystem::directory_iterator(path, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->is_regular_file(error)) files.push_back(entry->path());
  }
  if (error) return Error{path.string(), "cannot be listed: " + error.message(), ""};
  if (files.empty()) return Error{path.string(), "the folder holds no files", ""};
  std::sort(files.begin(), files.end());
  return files;
}

Status for_each_document(const std::filesystem::path& path, TextFormat format, const Callback& each) {
  FIVEFOLD_ASSIGN(const auto files, list_text_files(path));
  for (const auto& file : files) FIVEFOLD_TRY(read_file(file, format, each));
  return Ok{};
}

}  // namespace fivefold
