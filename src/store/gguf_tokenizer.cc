#include "store/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "base/text.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

// How a text is cut into words.
enum class Cut : uint8_t { kGpt2, kDigitsGpt2, kLlama3, kQwen2 };

struct PreTokenizerName {
  const char* name;
  Cut cut;
  bool adds_bos = false;        // without a word of the file
  bool ignores_merges = false;  // a word that is a token is one, whatever the merges say
};
constexpr PreTokenizerName kNames[] = {
    {"gpt-2", Cut::kGpt2},
    {"mpt", Cut::kGpt2},
    {"olmo", Cut::kGpt2},
    {"phi-2", Cut::kGpt2},
    {"smollm", Cut::kDigitsGpt2},
    {"starcoder", Cut::kDigitsGpt2},
    {"refact", Cut::kDigitsGpt2},
    {"codeshell", Cut::kDigitsGpt2},
    {"minerva-7b", Cut::kDigitsGpt2},
    {"llama-bpe", Cut::kLlama3, true, true},
    {"llama3", Cut::kLlama3, true, true},
    {"llama-v3", Cut::kLlama3, true, true},
    {"qwen2", Cut::kQwen2},
    {"deepseek-r1-qwen", Cut::kQwen2},
};

// The expressions are those of the published tokenizer.json files of Llama 3 and Qwen 2.
constexpr const char* kLlama3Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Json byte_level(bool expression) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", expression}};
}

Json sequence(Json first, Json second) {
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({std::move(first), std::move(second)})}};
}

Json split(const char* expression) {
  return {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}};
}

Json pre_tokenizer(Cut cut) {
  switch (cut) {
    case Cut::kGpt2:
      return byte_level(true);
    case Cut::kDigitsGpt2:
      return sequence({{"type", "Digits"}, {"individual_digits", true}}, byte_level(true));
    case Cut::kLlama3:
      return sequence(split(kLlama3Expression), byte_level(false));
    case Cut::kQwen2:
      return sequence(split(kQwen2Expression), byte_level(false));
  }
  return nullptr;
}

Result<const PreTokenizerName*> find_pre(const GgufFile& file) {
  std::vector<std::string> known;
  for (const PreTokenizerName& entry : kNames) known.emplace_back(entry.name);
  const std::string hint = "known: " + join(known, ", ");
  if (!file.has("tokenizer.ggml.pre"))
    return Error{file.name(), "has no 'tokenizer.ggml.pre': nothing says how a text is cut into words", hint};
  FIVEFOLD_ASSIGN(const std::string pre, file.text("tokenizer.ggml.pre"));
  for (const PreTokenizerName& entry : kNames)
    if (pre == entry.name) return &entry;
  return Error{file.place("tokenizer.ggml.pre"), fmt::format("unknown pre-tokenizer \"{}\"", pre), hint};
}

// Types of tokens that are matched in a text before anything else.
constexpr int64_t kControl = 3, kUserDefined = 4;

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int64_t> types;  // empty: all are normal
};

Result<Vocabulary> read_vocabulary(const GgufFile& file) {
  Vocabulary vocabulary;
  FIVEFOLD_ASSIGN(vocabulary.tokens, file.texts("tokenizer.ggml.tokens"));
  const std::string where = file.place("tokenizer.ggml.tokens");
  if (vocabulary.tokens.empty()) return Error{where, "is empty", ""};
  std::set<std::string_view> seen;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string& token = vocabulary.tokens[i];
    if (token.empty()) return Error{where, fmt::format("token {} is empty", i), ""};
    if (!seen.insert(token).second) return Error{where, fmt::format("token {} stands twice: \"{}\"", i, token), ""};
  }
  if (!file.has("tokenizer.ggml.token_type")) return vocabulary;
  FIVEFOLD_ASSIGN(vocabulary.types, file.integers("tokenizer.ggml.token_type"));
  if (vocabulary.types.size() != vocabulary.tokens.size())
    return Error{file.place("tokenizer.ggml.token_type"),
                 fmt::format("has {} entries for {} tokens", vocabulary.types.size(), vocabulary.tokens.size()), ""};
  return vocabulary;
}

// The id of a special token; nothing when the file has none.
Result<std::optional<int64_t>> role(const GgufFile& file, const char* key, const Vocabulary& vocabulary) {
  if (!file.has(key)) return std::optional<int64_t>();
  FIVEFOLD_ASSIGN(const int64_t id, file.integer(key));
  if (id < 0 || id >= static_cast<int64_t>(vocabulary.tokens.size()))
    return Error{file.place(key), fmt::format("token {} is outside the vocabulary of {}", id, vocabulary.tokens.size()),
                 ""};
  return std::optional(id);
}

Json added_tokens(const Vocabulary& vocabulary, const std::set<int64_t>& roles) {
  Json added = Json::array();
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const int64_t type = vocabulary.types.empty() ? 1 : vocabulary.types[i];
    const bool special = type == kControl || roles.contains(static_cast<int64_t>(i));
    if (!special && type != kUserDefined) continue;
    added.push_back({{"id", i},
                     {"content", vocabulary.tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  return added;
}

// Puts <bos> before a text.
Json template_processing(const std::string& bos, int64_t id) {
  const Json special = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
  const Json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
             second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  Json special_tokens;
  special_tokens[bos] = {{"id", bos}, {"ids", Json::array({id})}, {"tokens", Json::array({bos})}};
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({special, first})},
          {"pair", Json::array({special, first, special, second})},
          {"special_tokens", special_tokens}};
}

// As text: ordered_json finds a key by linear search, which is quadratic in the vocabulary.
std::string bpe_model_text(const Vocabulary& vocabulary, const std::vector<std::string>& merges, bool ignores_merges) {
  const Json settings = {{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"ignore_merges", ignores_merges}};
  std::string text = settings.dump();
  text.back() = ',';
  text += "\"vocab\":{";
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i)
    text += fmt::format("{}{}:{}", i == 0 ? "" : ",", Json(vocabulary.tokens[i]).dump(), i);
  return text + "},\"merges\":" + Json(merges).dump() + "}";
}

Status check_kind(const GgufFile& file) {
  FIVEFOLD_ASSIGN(const std::string model, file.text("tokenizer.ggml.model"));
  if (model != "gpt2")
    return Error{file.place("tokenizer.ggml.model"), fmt::format("tokenizer \"{}\" is not read", model),
                 "read is gpt2 (byte-level BPE); take the tokenizer.json of the model's Hub page"};
  FIVEFOLD_ASSIGN(const bool prefix, file.boolean_or("tokenizer.ggml.add_space_prefix", false));
  if (prefix) return Error{file.place("tokenizer.ggml.add_space_prefix"), "a space before each text is not read", ""};
  FIVEFOLD_ASSIGN(const bool eos, file.boolean_or("tokenizer.ggml.add_eos_token", false));
  if (eos) return Error{file.place("tokenizer.ggml.add_eos_token"), "an end token after each text is not read", ""};
  return Ok{};
}

}  // namespace

Result<GgufTokenizer> read_gguf_tokenizer(const GgufFile& file) {
  FIVEFOLD_TRY(check_kind(file));
  FIVEFOLD_ASSIGN(const PreTokenizerName* pre, find_pre(file));
  FIVEFOLD_ASSIGN(const Vocabulary vocabulary, read_vocabulary(file));
  FIVEFOLD_ASSIGN(const std::vector<std::string> merges, file.texts("tokenizer.ggml.merges"));
  GgufTokenizer tokenizer{.vocab_size = static_cast<int64_t>(vocabulary.tokens.size()), .pre = pre->name};
  std::optional<int64_t> unk;
  std::set<int64_t> roles;
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  for (const auto& [key, name, id] : {std::tuple{"tokenizer.ggml.bos_token_id", "bos_token", &tokenizer.bos},
                                      {"tokenizer.ggml.eos_token_id", "eos_token", &tokenizer.eos},
                                      {"tokenizer.ggml.padding_token_id", "pad_token", &tokenizer.pad},
                                      {"tokenizer.ggml.unknown_token_id", "unk_token", &unk}}) {
    FIVEFOLD_ASSIGN(*id, role(file, key, vocabulary));
    if (!*id) continue;
    config[name] = vocabulary.tokens[static_cast<size_t>(**id)];
    roles.insert(**id);
  }
  FIVEFOLD_ASSIGN(tokenizer.chat_template, file.text_or("tokenizer.chat_template", ""));
  if (!tokenizer.chat_template.empty()) config["chat_template"] = tokenizer.chat_template;
  FIVEFOLD_ASSIGN(const std::string architecture, file.text_or("general.architecture", ""));
  if (const std::string length = architecture + ".context_length"; file.has(length)) {
    FIVEFOLD_ASSIGN(config["model_max_length"], file.integer(length));
  }
  FIVEFOLD_ASSIGN(const bool adds_bos, file.boolean_or("tokenizer.ggml.add_bos_token", pre->adds_bos));
  if (adds_bos && !tokenizer.bos)
    return Error{file.place("tokenizer.ggml.add_bos_token"), "is true without a bos_token_id", ""};
  config["add_bos_token"] = adds_bos;

  Json root = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  root["added_tokens"] = added_tokens(vocabulary, roles);
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = pre_tokenizer(pre->cut);
  root["post_processor"] =
      adds_bos ? template_processing(vocabulary.tokens[static_cast<size_t>(*tokenizer.bos)], *tokenizer.bos)
               : Json(nullptr);
  root["decoder"] = byte_level(true);
  tokenizer.tokenizer_json = root.dump();
  tokenizer.tokenizer_json.back() = ',';
  tokenizer.tokenizer_json += "\"model\":" + bpe_model_text(vocabulary, merges, pre->ignores_merges) + "}\n";
  tokenizer.tokenizer_config_json = config.dump(2) + "\n";
  return tokenizer;
}

}  // namespace fivefold
