// Note [Oniguruma and PCRE2]
// Differences that matter to the patterns in use, and what is done about them:
//  - \s: Oniguruma takes the Unicode property White_Space, PCRE2 adds U+180E. Written out as a class.
//  - \p{Han}: Oniguruma takes the Script property, PCRE2 Script_Extensions. Written as \p{sc:Han}.
//  - ^ and $ match at line ends in Oniguruma's Ruby syntax: PCRE2_MULTILINE.
//  - [a[bc]] and [a&&b] are set operations in Oniguruma, literals in PCRE2: refused.
// Which code points are letters depends on the Unicode version of either library.
#include "data/regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <stdexcept>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace fivefold {
namespace {

constexpr std::string_view kWhiteSpace = R"(\p{Z}\t-\r\x{85})";  // inside a class

// One escape sequence of `pattern` at `at` in PCRE2's words; moves `at` past it.
std::string translate_escape(std::string_view pattern, size_t& at, bool in_class) {
  const char kind = at + 1 < pattern.size() ? pattern[at + 1] : '\0';
  if (kind == 's' || (kind == 'S' && !in_class)) {
    at += 2;
    if (in_class) return std::string(kWhiteSpace);
    return fmt::format("[{}{}]", kind == 'S' ? "^" : "", kWhiteSpace);
  }
  const size_t close = pattern.find('}', at);
  if ((kind == 'p' || kind == 'P') && pattern.substr(at + 2, 1) == "{" && close != std::string_view::npos) {
    const std::string_view name = pattern.substr(at + 3, close - at - 3);
    const std::string_view whole = pattern.substr(at, close + 1 - at);
    at = close + 1;
    // General categories have one or two letters, everything longer is a script.
    const bool script = name.size() > 2 && name != "Any" && name.find_first_of("^:=&") == std::string_view::npos;
    return script ? fmt::format("\\{}{{sc:{}}}", kind, name) : std::string(whole);
  }
  const size_t length = std::min<size_t>(2, pattern.size() - at);
  at += length;
  return std::string(pattern.substr(at - length, length));
}

Result<std::string> translate(std::string_view pattern, const std::string& where) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size();) {
    const char c = pattern[i];
    if (c == '\\') {
      out += translate_escape(pattern, i, in_class);
      continue;
    }
    if (in_class && ((c == '[' && pattern.substr(i, 2) != "[:") || pattern.substr(i, 2) == "&&")) {
      return Error{where, fmt::format("regular expression {}: set operations in classes are not supported", pattern),
                   ""};
    }
    if (in_class && c == '[') {  // [:alpha:]
      const size_t close = pattern.find(":]", i);
      if (close == std::string_view::npos)
        return Error{where, fmt::format("regular expression {}: unclosed [:", pattern), ""};
      out += pattern.substr(i, close + 2 - i);
      i = close + 2;
      continue;
    }
    out += c;
    ++i;
    if (!in_class && c == '[') {
      in_class = true;
      for (const char first : {'^', ']'}) {  // a ']' right after the opening is a member
        if (i < pattern.size() && pattern[i] == first) out += pattern[i++];
      }
    } else if (in_class && c == ']') {
      in_class = false;
    }
  }
  return out;
}

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

std::string describe(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct Regex::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) { pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); }
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* code;
};

Result<Regex> Regex::compile(std::string_view pattern, const std::string& where) {
  FIVEFOLD_ASSIGN(const std::string translated, translate(pattern, where));
  int error = 0;
  PCRE2_SIZE offset = 0;
  // PCRE2's \C would match a part of a character and leave pieces that are not UTF-8; in Oniguruma it begins a control
  // character.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* code = pcre2_compile(units(translated), translated.size(), kOptions, &error, &offset, nullptr);
  if (code == nullptr) {
    return Error{where, fmt::format("regular expression {}: {} at {}", pattern, describe(error), offset), ""};
  }
  return Regex(std::make_shared<const Code>(code));
}

Regex Regex::literal(std::string_view text) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(units(text), text.size(), PCRE2_UTF | PCRE2_LITERAL, &error, &offset, nullptr);
  FIVEFOLD_CHECK(code != nullptr, describe(error));
  return Regex(std::make_shared<const Code>(code));
}

size_t Regex::min_length() const {
  uint32_t length = 0;
  pcre2_pattern_info(code_->code, PCRE2_INFO_MINLENGTH, &length);
  return std::max<size_t>(1, length);
}

std::vector<std::pair<size_t, size_t>> Regex::find_all(std::string_view text) const {
  std::vector<std::pair<size_t, size_t>> found;
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> match(pcre2_match_data_create(1, nullptr));
  if (!match) throw std::bad_alloc();
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
  for (size_t at = 0; at < text.size();) {
    const auto run = [&](uint32_t options) {
      return pcre2_match(code_->code, units(text), text.size(), at, options | PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    };
    int status = run(0);
    if (status == PCRE2_ERROR_JIT_STACKLIMIT) status = run(PCRE2_NO_JIT);  // the interpreter's stack is on the heap
    if (status == PCRE2_ERROR_NOMATCH) break;
    if (status < 0) throw std::runtime_error("a tokenizer's regular expression failed on a text: " + describe(status));
    // \K in a lookaround can end a match before its start; such a match holds no characters.
    if (range[1] <= range[0] || range[0] < at) {
      at = std::max<size_t>(at, range[1]);
      do ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
      continue;
    }
    found.emplace_back(range[0], range[1]);
    at = range[1];
  }
  return found;
}

}  // namespace fivefold
