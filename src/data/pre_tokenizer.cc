#include "data/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "data/byte_alphabet.h"
#include "data/growth.h"
#include "data/pattern.h"
#include "data/utf8.h"

namespace fivefold {
namespace {

// What happens to the matches of a split.
enum class SplitBehavior : uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct Segment {
  size_t begin, end;
  bool match;
};

// The text as alternating matches and gaps.
std::vector<Segment> segment(const Regex& pattern, std::string_view text, bool invert) {
  std::vector<Segment> segments;
  size_t end = 0;
  for (const auto& [first, second] : pattern.find_all(text)) {
    if (first > end) segments.push_back({end, first, invert});
    segments.push_back({first, second, !invert});
    end = second;
  }
  if (end < text.size()) segments.push_back({end, text.size(), invert});
  return segments;
}

// Joins each match to its neighbour on one side: a match that follows a gap, seen in the order of the iterators, is
// added to it; further matches in a row stay alone.
template <typename Iterator>
std::vector<Segment> join_matches(Iterator first, Iterator last) {
  std::vector<Segment> joined;
  bool previous_match = false;
  for (; first != last; ++first) {
    if (first->match && !previous_match && !joined.empty()) {
      joined.back().begin = std::min(joined.back().begin, first->begin);
      joined.back().end = std::max(joined.back().end, first->end);
    } else {
      joined.push_back(*first);
    }
    previous_match = first->match;
  }
  return joined;
}

std::vector<Segment> arrange(std::vector<Segment> segments, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return segments;
    case SplitBehavior::kRemoved:
      std::erase_if(segments, [](const Segment& s) { return s.match; });
      return segments;
    case SplitBehavior::kContiguous: {
      std::vector<Segment> joined;
      for (const Segment& s : segments) {
        if (!joined.empty() && joined.back().match == s.match) {
          joined.back().end = s.end;
        } else {
          joined.push_back(s);
        }
      }
      return joined;
    }
    case SplitBehavior::kMergedWithPrevious:
      return join_matches(segments.begin(), segments.end());
    case SplitBehavior::kMergedWithNext: {
      std::vector<Segment> joined = join_matches(segments.rbegin(), segments.rend());
      std::reverse(joined.begin(), joined.end());
      return joined;
    }
  }
  FIVEFOLD_CHECK(false);
}

class Split final : public PreTokenizer {
 public:
  Split(Regex pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  std::vector<Piece> apply(std::vector<Piece> pieces) const override {
    std::vector<Piece> out;
    for (const Piece& piece : pieces) {
      for (const Segment& s : arrange(segment(pattern_, piece.text, invert_), behavior_)) {
        out.push_back({piece.text.substr(s.begin, s.end - s.begin), piece.at_start && s.begin == 0});
      }
    }
    return out;
  }
  double growth() const override { return 1.0; }

 private:
  Regex pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool prefix_space, std::unique_ptr<PreTokenizer> split)
      : prefix_space_(prefix_space), split_(std::move(split)) {}

  std::vector<Piece> apply(std::vector<Piece> pieces) const override {
    if (prefix_space_) {
      for (Piece& piece : pieces) {
        if (!piece.text.starts_with(' ')) piece.text.insert(0, 1, ' ');
      }
    }
    if (split_) pieces = split_->apply(std::move(pieces));
    for (Piece& piece : pieces) piece.text = to_byte_alphabet(piece.text);
    return pieces;
  }
  double growth() const override { return prefix_space_ ? 4.0 : 2.0; }  // a space per piece; two bytes for each

 private:
  bool prefix_space_;
  std::unique_ptr<PreTokenizer> split_;  // null when use_regex is false
};

class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(MetaspaceOptions options)
      : options_(std::move(options)),
        space_(Regex::literal(" ")),
        split_(Regex::literal(options_.replacement), SplitBehavior::kMergedWithNext, /*invert=*/false) {}

  std::vector<Piece> apply(std::vector<Piece> pieces) const override {
    for (Piece& piece : pieces) {
      piece.text = replace_all(space_, piece.text, options_.replacement);
      const bool wanted =
          options_.prepend == PrependScheme::kAlways || (options_.prepend == PrependScheme::kFirst && piece.at_start);
      if (wanted && !piece.text.starts_with(options_.replacement)) piece.text.insert(0, options_.replacement);
    }
    return options_.split ? split_.apply(std::move(pieces)) : pieces;
  }
  // For each space, and once per piece.
  double growth() const override { return 2.0 * static_cast<double>(options_.replacement.size()); }

 private:
  MetaspaceOptions options_;
  Regex space_;
  Split split_;
};

class Chain final : public PreTokenizer {
 public:
  explicit Chain(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts_(std::move(parts)) {}
  std::vector<Piece> apply(std::vector<Piece> pieces) const override {
    for (const auto& part : parts_) pieces = part->apply(std::move(pieces));
    return pieces;
  }
  double growth() const override { return total_growth(parts_); }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

using Parsed = Result<std::unique_ptr<PreTokenizer>>;

template <typename Part, typename... Arguments>
std::unique_ptr<PreTokenizer> make(Arguments&&... arguments) {
  return std::make_unique<Part>(std::forward<Arguments>(arguments)...);
}

// The regular expression of OpenAI's GPT-2 encoder, which ByteLevel applies by itself.
constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Parsed parse_split(const JsonFields& fields) {
  FIVEFOLD_ASSIGN(Regex pattern, parse_pattern(fields));
  FIVEFOLD_ASSIGN(const bool invert, fields.boolean_or("invert", false));
  FIVEFOLD_ASSIGN(const std::string name, fields.required_string("behavior"));
  for (const auto& [known, behavior] : {std::pair{"Removed", SplitBehavior::kRemoved},
                                        {"Isolated", SplitBehavior::kIsolated},
                                        {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                                        {"MergedWithNext", SplitBehavior::kMergedWithNext},
                                        {"Contiguous", SplitBehavior::kContiguous}}) {
    if (name == known) return make<Split>(std::move(pattern), behavior, invert);
  }
  return Error{fields.place("behavior"), fmt::format("unknown behavior \"{}\"", name),
               "known: Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous"};
}

Parsed parse_byte_level(const JsonFields& fields) {
  FIVEFOLD_ASSIGN(const bool prefix_space, fields.boolean_or("add_prefix_space", true));
  FIVEFOLD_ASSIGN(const bool use_regex, fields.boolean_or("use_regex", true));
  std::unique_ptr<PreTokenizer> split;
  if (use_regex) {
    FIVEFOLD_ASSIGN(Regex pattern, Regex::compile(kGpt2Pattern, fields.where()));
    split = std::make_unique<Split>(std::move(pattern), SplitBehavior::kIsolated, /*invert=*/false);
  }
  return make<ByteLevel>(prefix_space, std::move(split));
}

Parsed parse_digits(const JsonFields& fields) {
  FIVEFOLD_ASSIGN(const bool individual, fields.boolean_or("individual_digits", false));
  FIVEFOLD_ASSIGN(Regex digit, Regex::compile(R"(\p{N})", fields.where()));
  return make<Split>(std::move(digit), individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                     /*invert=*/false);
}

Parsed parse_chain(const JsonFields& fields, int nesting) {
  FIVEFOLD_ASSIGN(const nlohmann::json* list, fields.required_array("pretokenizers"));
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}[{}]", fields.place("pretokenizers"), i);
    FIVEFOLD_ASSIGN(auto part, parse_pre_tokenizer((*list)[i], where, nesting + 1));
    parts.push_back(std::move(part));
  }
  return make<Chain>(std::move(parts));
}

}  // namespace

Result<MetaspaceOptions> parse_metaspace(const JsonFields& fields) {
  MetaspaceOptions options;
  FIVEFOLD_ASSIGN(options.replacement, fields.string_or("replacement", "\xE2\x96\x81"));  // U+2581
  if (options.replacement.empty() || options.replacement.size() != utf8_length(options.replacement.front())) {
    return Error{fields.place("replacement"), "is not one character", ""};
  }
  FIVEFOLD_ASSIGN(options.split, fields.boolean_or("split", true));
  FIVEFOLD_ASSIGN(const bool prefix_space, fields.boolean_or("add_prefix_space", true));
  FIVEFOLD_ASSIGN(const std::string scheme, fields.string_or("prepend_scheme", prefix_space ? "always" : "never"));
  for (const auto& [known, value] : {std::pair{"always", PrependScheme::kAlways},
                                     {"first", PrependScheme::kFirst},
                                     {"never", PrependScheme::kNever}}) {
    if (scheme != known) continue;
    options.prepend = value;
    return options;
  }
  return Error{fields.place("prepend_scheme"), fmt::format("unknown scheme \"{}\"", scheme),
               "known: always, first, never"};
}

Parsed parse_pre_tokenizer(const nlohmann::json& json, const std::string& where, int nesting) {
  if (nesting > kMaxNesting) return Error{where, "sequences are nested too deeply", ""};
  FIVEFOLD_ASSIGN(const JsonFields fields, JsonFields::of(json, where));
  FIVEFOLD_ASSIGN(const std::string type, fields.required_string("type"));
  if (type == "ByteLevel") return parse_byte_level(fields);
  if (type == "Split") return parse_split(fields);
  if (type == "Digits") return parse_digits(fields);
  if (type == "Sequence") return parse_chain(fields, nesting);
  if (type == "Metaspace") {
    FIVEFOLD_ASSIGN(MetaspaceOptions options, parse_metaspace(fields));
    return make<Metaspace>(std::move(options));
  }
  return Error{where, fmt::format("unsupported pre-tokenizer \"{}\"", type),
               "supported: ByteLevel, Split, Digits, Metaspace, Sequence"};
}

}  // namespace fivefold
