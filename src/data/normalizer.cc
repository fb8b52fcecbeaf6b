#include "data/normalizer.h"

#include <fmt/format.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "data/growth.h"
#include "data/pattern.h"

namespace fivefold {
namespace {

// NFC, NFD, NFKC, NFKD by ICU. All leave ASCII as it is.
class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(const icu::Normalizer2* form) : form_(form) {}
  std::string apply(std::string text) const override {
    if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; })) return text;
    if (text.size() > INT32_MAX) throw std::runtime_error("Unicode normalization: the text is larger than 2 GiB");
    std::string out;
    icu::StringByteSink<std::string> sink(&out);
    UErrorCode status = U_ZERO_ERROR;
    form_->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, nullptr, status);
    if (U_FAILURE(status)) throw std::runtime_error(fmt::format("Unicode normalization: {}", u_errorName(status)));
    return out;
  }
  double growth() const override { return 11.0; }  // NFKC and NFKD of some ligatures, the most of the four

 private:
  const icu::Normalizer2* form_;  // ICU's, never freed
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string apply(std::string text) const override { return text.empty() ? text : prefix_ + text; }
  double growth() const override { return 1.0 + static_cast<double>(prefix_.size()); }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  Replace(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  std::string apply(std::string text) const override { return replace_all(pattern_, text, content_); }
  double growth() const override { return replace_growth(pattern_, content_); }

 private:
  Regex pattern_;
  std::string content_;
};

class Chain final : public Normalizer {
 public:
  explicit Chain(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  std::string apply(std::string text) const override {
    for (const auto& part : parts_) text = part->apply(std::move(text));
    return text;
  }
  double growth() const override { return total_growth(parts_); }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

using Parsed = Result<std::unique_ptr<Normalizer>>;

template <typename Part, typename... Arguments>
std::unique_ptr<Normalizer> make(Arguments&&... arguments) {
  return std::make_unique<Part>(std::forward<Arguments>(arguments)...);
}

Parsed unicode_form(const std::string& type, const std::string& where) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* form = type == "NFC"    ? icu::Normalizer2::getNFCInstance(status)
                                 : type == "NFD"  ? icu::Normalizer2::getNFDInstance(status)
                                 : type == "NFKC" ? icu::Normalizer2::getNFKCInstance(status)
                                                  : icu::Normalizer2::getNFKDInstance(status);
  if (U_FAILURE(status)) return Error{where, fmt::format("{} is not available: {}", type, u_errorName(status)), ""};
  return make<UnicodeForm>(form);
}

Parsed parse_chain(const JsonFields& fields, int nesting) {
  FIVEFOLD_ASSIGN(const nlohmann::json* list, fields.required_array("normalizers"));
  std::vector<std::unique_ptr<Normalizer>> parts;
  for (size_t i = 0; i < list->size(); ++i) {
    FIVEFOLD_ASSIGN(auto part,
                    parse_normalizer((*list)[i], fmt::format("{}[{}]", fields.place("normalizers"), i), nesting + 1));
    parts.push_back(std::move(part));
  }
  return make<Chain>(std::move(parts));
}

}  // namespace

Parsed parse_normalizer(const nlohmann::json& json, const std::string& where, int nesting) {
  if (nesting > kMaxNesting) return Error{where, "sequences are nested too deeply", ""};
  FIVEFOLD_ASSIGN(const JsonFields fields, JsonFields::of(json, where));
  FIVEFOLD_ASSIGN(const std::string type, fields.required_string("type"));
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") return unicode_form(type, where);
  if (type == "Sequence") return parse_chain(fields, nesting);
  if (type == "Prepend") {
    FIVEFOLD_ASSIGN(std::string prefix, fields.required_string("prepend"));
    return make<Prepend>(std::move(prefix));
  }
  if (type == "Replace") {
    FIVEFOLD_ASSIGN(Regex pattern, parse_pattern(fields));
    FIVEFOLD_ASSIGN(std::string content, fields.required_string("content"));
    return make<Replace>(std::move(pattern), std::move(content));
  }
  return Error{where, fmt::format("unsupported normalizer \"{}\"", type),
               "supported: NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence"};
}

}  // namespace fivefold
