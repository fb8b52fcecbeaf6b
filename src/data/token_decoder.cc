#include "data/token_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/text.h"
#include "data/byte_alphabet.h"
#include "data/growth.h"
#include "data/pattern.h"
#include "data/pre_tokenizer.h"
#include "data/utf8.h"

namespace fivefold {
namespace {

using Tokens = std::vector<std::string>;

// A token outside the alphabet (an added token's text) stands for its own bytes.
class ByteLevelDecoder final : public TokenDecoder {
 public:
  Tokens apply(Tokens tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) bytes += from_byte_alphabet(token).value_or(token);
    return {to_valid_utf8(bytes)};
  }
  double growth() const override { return 3.0; }  // a byte that is not UTF-8 becomes U+FFFD
};

class ReplaceDecoder final : public TokenDecoder {
 public:
  ReplaceDecoder(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  Tokens apply(Tokens tokens) const override {
    for (std::string& token : tokens) token = replace_all(pattern_, token, content_);
    return tokens;
  }
  double growth() const override { return replace_growth(pattern_, content_); }

 private:
  Regex pattern_;
  std::string content_;
};

// "<0x0A>" -> 10.
std::optional<char> parse_byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(static_cast<unsigned char>(value));
}

// Runs of byte tokens become characters, or one U+FFFD per byte when the run is not UTF-8.
class ByteFallbackDecoder final : public TokenDecoder {
 public:
  Tokens apply(Tokens tokens) const override {
    Tokens out;
    std::string run;
    const auto flush = [&] {
      if (run.empty()) return;
      if (to_valid_utf8(run) == run) {
        out.push_back(run);
      } else {
        out.insert(out.end(), run.size(), "\xEF\xBF\xBD");
      }
      run.clear();
    };
    for (std::string& token : tokens) {
      if (const auto byte = parse_byte_token(token)) {
        run.push_back(*byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    return out;
  }
  double growth() const override { return 1.0; }
};

class FuseDecoder final : public TokenDecoder {
 public:
  Tokens apply(Tokens tokens) const override { return {join(tokens, "")}; }
  double growth() const override { return 1.0; }
};

// Up to `start` and `stop` copies of one character off the ends of each string.
class StripDecoder final : public TokenDecoder {
 public:
  StripDecoder(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  Tokens apply(Tokens tokens) const override {
    for (std::string& token : tokens) {
      for (int64_t i = 0; i < start_ && token.starts_with(content_); ++i) token.erase(0, content_.size());
      for (int64_t i = 0; i < stop_ && token.ends_with(content_); ++i) token.erase(token.size() - content_.size());
    }
    return tokens;
  }
  double growth() const override { return 1.0; }

 private:
  std::string content_;
  int64_t start_, stop_;
};

class MetaspaceDecoder final : public TokenDecoder {
 public:
  explicit MetaspaceDecoder(MetaspaceOptions options)
      : replacement_(Regex::literal(options.replacement)), drops_first_(options.prepend != PrependScheme::kNever) {}
  Tokens apply(Tokens tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = replace_all(replacement_, tokens[i], i == 0 && drops_first_ ? "" : " ");
    }
    return tokens;
  }
  double growth() const override { return 1.0; }

 private:
  Regex replacement_;
  bool drops_first_;  // the first token's spaces are those the pre-tokenizer put there
};

class DecoderChain final : public TokenDecoder {
 public:
  explicit DecoderChain(std::vector<std::unique_ptr<TokenDecoder>> parts) : parts_(std::move(parts)) {}
  Tokens apply(Tokens tokens) const override {
    for (const auto& part : parts_) tokens = part->apply(std::move(tokens));
    return tokens;
  }
  double growth() const override { return total_growth(parts_); }

 private:
  std::vector<std::unique_ptr<TokenDecoder>> parts_;
};

using Parsed = Result<std::unique_ptr<TokenDecoder>>;

template <typename Part, typename... Arguments>
std::unique_ptr<TokenDecoder> make(Arguments&&... arguments) {
  return std::make_unique<Part>(std::forward<Arguments>(arguments)...);
}

Parsed parse_strip(const JsonFields& fields) {
  FIVEFOLD_ASSIGN(std::string content, fields.required_string("content"));
  FIVEFOLD_ASSIGN(const int64_t start, fields.integer_or("start", 0));
  FIVEFOLD_ASSIGN(const int64_t stop, fields.integer_or("stop", 0));
  if (content.empty() || content.size() != utf8_length(content.front())) {
    return Error{fields.place("content"), "is not one character", ""};
  }
  if (start < 0 || stop < 0) return Error{fields.where(), "\"start\" or \"stop\" is negative", ""};
  return make<StripDecoder>(std::move(content), start, stop);
}

Parsed parse_decoder_chain(const JsonFields& fields, int nesting) {
  FIVEFOLD_ASSIGN(const nlohmann::json* list, fields.required_array("decoders"));
  std::vector<std::unique_ptr<TokenDecoder>> parts;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}[{}]", fields.place("decoders"), i);
    FIVEFOLD_ASSIGN(auto part, parse_token_decoder((*list)[i], where, nesting + 1));
    parts.push_back(std::move(part));
  }
  return make<DecoderChain>(std::move(parts));
}

}  // namespace

Parsed parse_token_decoder(const nlohmann::json& json, const std::string& where, int nesting) {
  if (nesting > kMaxNesting) return Error{where, "sequences are nested too deeply", ""};
  FIVEFOLD_ASSIGN(const JsonFields fields, JsonFields::of(json, where));
  FIVEFOLD_ASSIGN(const std::string type, fields.required_string("type"));
  if (type == "ByteLevel") return make<ByteLevelDecoder>();
  if (type == "ByteFallback") return make<ByteFallbackDecoder>();
  if (type == "Fuse") return make<FuseDecoder>();
  if (type == "Strip") return parse_strip(fields);
  if (type == "Sequence") return parse_decoder_chain(fields, nesting);
  if (type == "Metaspace") {
    FIVEFOLD_ASSIGN(MetaspaceOptions options, parse_metaspace(fields));
    return make<MetaspaceDecoder>(std::move(options));
  }
  if (type == "Replace") {
    FIVEFOLD_ASSIGN(Regex pattern, parse_pattern(fields));
    FIVEFOLD_ASSIGN(std::string content, fields.required_string("content"));
    return make<ReplaceDecoder>(std::move(pattern), std::move(content));
  }
  return Error{where, fmt::format("unsupported decoder \"{}\"", type),
               "supported: ByteLevel, ByteFallback, Fuse, Strip, Metaspace, Replace, Sequence"};
}

}  // namespace fivefold
