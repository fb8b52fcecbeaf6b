#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <filesystem>

#include "base/mapped_file.h"
#include "base/nesting.h"
#include "data/growth.h"
#include "data/hub_tokenizer.h"
#include "data/pattern.h"

namespace fivefold {
namespace {

Result<int32_t> token_id(const HubTokenizerParts& parts, const std::string& content, const std::string& where) {
  if (const AddedToken* token = parts.added->find(content)) return token->id;
  if (const auto id = parts.model->find(content)) return *id;
  return Error{where, fmt::format("\"{}\" is not a token", content), ""};
}

// What post-processors put around a text. Several nest: a later one is outside.
Status parse_post_processor(const nlohmann::json& json, const std::string& where, int nesting,
                            HubTokenizerParts& parts);

// TemplateProcessing: special tokens by name before and after the one sequence "A" of the template for single texts.
Status parse_template(const JsonFields& fields, HubTokenizerParts& parts) {
  FIVEFOLD_ASSIGN(const nlohmann::json* single, fields.required_array("single"));
  const std::string where = fields.place("single");
  std::vector<int32_t> before, after;
  int sequences = 0;
  for (const nlohmann::json& item : *single) {
    FIVEFOLD_ASSIGN(const JsonFields piece, JsonFields::of(item, where));
    if (piece.find("Sequence") != nullptr) {
      ++sequences;
      continue;
    }
    FIVEFOLD_ASSIGN(const nlohmann::json* value, piece.required("SpecialToken"));
    FIVEFOLD_ASSIGN(const JsonFields special, JsonFields::of(*value, piece.place("SpecialToken")));
    FIVEFOLD_ASSIGN(const std::string name, special.required_string("id"));
    FIVEFOLD_ASSIGN(const int32_t id, token_id(parts, name, where));
    (sequences == 0 ? before : after).push_back(id);
  }
  if (sequences != 1) return Error{where, fmt::format("holds the text {} times, not once", sequences), ""};
  parts.before.insert(parts.before.begin(), before.begin(), before.end());
  parts.after.insert(parts.after.end(), after.begin(), after.end());
  return Ok{};
}

// RobertaProcessing: "cls" and "sep" are [content, id].
Status parse_roberta(const JsonFields& fields, HubTokenizerParts& parts) {
  const auto token = [&](const char* key) -> Result<int32_t> {
    FIVEFOLD_ASSIGN(const nlohmann::json* value, fields.required_array(key));
    if (value->empty() || !(*value)[0].is_string()) return Error{fields.place(key), "is not [content, id]", ""};
    return token_id(parts, (*value)[0].get<std::string>(), fields.place(key));
  };
  FIVEFOLD_ASSIGN(const int32_t before, token("cls"));
  FIVEFOLD_ASSIGN(const int32_t after, token("sep"));
  parts.before.insert(parts.before.begin(), before);
  parts.after.push_back(after);
  return Ok{};
}

Status parse_post_processor(const nlohmann::json& json, const std::string& where, int nesting,
                            HubTokenizerParts& parts) {
  if (nesting > kMaxNesting) return Error{where, "sequences are nested too deeply", ""};
  FIVEFOLD_ASSIGN(const JsonFields fields, JsonFields::of(json, where));
  FIVEFOLD_ASSIGN(const std::string type, fields.required_string("type"));
  if (type == "ByteLevel") return Ok{};  // it only moves offsets
  if (type == "TemplateProcessing") return parse_template(fields, parts);
  if (type == "RobertaProcessing") return parse_roberta(fields, parts);
  if (type == "Sequence") {
    FIVEFOLD_ASSIGN(const nlohmann::json* list, fields.required_array("processors"));
    for (size_t i = 0; i < list->size(); ++i) {
      FIVEFOLD_TRY(
          parse_post_processor((*list)[i], fmt::format("{}[{}]", fields.place("processors"), i), nesting + 1, parts));
    }
    return Ok{};
  }
  return Error{where, fmt::format("unsupported post-processor \"{}\"", type),
               "supported: ByteLevel, TemplateProcessing, RobertaProcessing, Sequence"};
}

Result<std::unique_ptr<BpeModel>> parse_model(const JsonFields& root) {
  FIVEFOLD_ASSIGN(const nlohmann::json* json, root.required("model"));
  FIVEFOLD_ASSIGN(const JsonFields model, JsonFields::of(*json, root.place("model")));
  // Files of 2019 have no type; of the four models only BPE has merges.
  FIVEFOLD_ASSIGN(const std::string type, model.string_or("type", model.find("merges") != nullptr ? "BPE" : ""));
  if (type != "BPE") {
    return Error{model.place("type"), fmt::format("unsupported model type \"{}\"", type), "only BPE is supported"};
  }
  return BpeModel::parse(model);
}

// A role's token: from tokenizer_config.json (a string, or an object with "content"), else the first of `usual` that is
// a special token.
Result<std::optional<int32_t>> find_role(const HubTokenizerParts& parts, const nlohmann::json& config, const char* role,
                                         std::initializer_list<const char*> usual, const std::string& where) {
  if (config.is_object() && config.contains(role) && !config[role].is_null()) {
    const nlohmann::json& value = config[role];
    const nlohmann::json content = value.is_object() ? value.value("content", nlohmann::json()) : value;
    if (!content.is_string()) return Error{where + "." + role, "is not a token", ""};
    FIVEFOLD_ASSIGN(const int32_t id, token_id(parts, content.get<std::string>(), where + "." + role));
    return std::optional(id);
  }
  for (const char* content : usual) {
    const AddedToken* token = parts.added->find(content);
    if (token != nullptr && token->special) return std::optional(token->id);
  }
  return std::optional<int32_t>();
}

// normalizer, pre_tokenizer and decoder: null when the key is missing or null. Errors: those of `parse`, a growth
// beyond kMaxGrowth.
template <typename Part, typename Parse>
Result<std::unique_ptr<Part>> parse_part(const JsonFields& root, const char* key, Parse parse) {
  const nlohmann::json* json = root.find(key);
  if (json == nullptr) return std::unique_ptr<Part>();
  FIVEFOLD_ASSIGN(std::unique_ptr<Part> part, parse(*json, root.place(key), 0));
  if (part->growth() > kMaxGrowth)
    return Error{root.place(key),
                 fmt::format("can make a text {:.3g} times longer, over {}", part->growth(), kMaxGrowth),
                 "use fewer components, or shorter replacements"};
  return part;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> parse_tokenizer_json(std::string_view json, std::string_view config_json,
                                                        const std::string& where) {
  FIVEFOLD_TRY(check_json_nesting(json, where));
  const auto document = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return Error{where, "is not JSON", ""};
  FIVEFOLD_ASSIGN(const JsonFields root, JsonFields::of(document, where));
  HubTokenizerParts parts;
  FIVEFOLD_ASSIGN(parts.model, parse_model(root));
  FIVEFOLD_ASSIGN(parts.normalizer, parse_part<Normalizer>(root, "normalizer", parse_normalizer));
  FIVEFOLD_ASSIGN(parts.pre_tokenizer, parse_part<PreTokenizer>(root, "pre_tokenizer", parse_pre_tokenizer));
  FIVEFOLD_ASSIGN(parts.decoder, parse_part<TokenDecoder>(root, "decoder", parse_token_decoder));
  const nlohmann::json* added = root.find("added_tokens");
  FIVEFOLD_ASSIGN(parts.added, AddedTokens::parse(added != nullptr ? *added : nlohmann::json::array(), *parts.model,
                                                  parts.normalizer.get(), root.place("added_tokens")));
  if (const nlohmann::json* post = root.find("post_processor")) {
    FIVEFOLD_TRY(parse_post_processor(*post, root.place("post_processor"), 0, parts));
  }
  nlohmann::json config;
  const std::string config_where = where + ": tokenizer_config.json";
  if (!config_json.empty()) {
    FIVEFOLD_TRY(check_json_nesting(config_json, config_where));
    config = nlohmann::json::parse(config_json, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) return Error{config_where, "is not a JSON object", ""};
  }
  FIVEFOLD_ASSIGN(parts.eos, find_role(parts, config, "eos_token",
                                       {"</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|eos|>"}, config_where));
  FIVEFOLD_ASSIGN(
      parts.bos, find_role(parts, config, "bos_token", {"<s>", "<|begin_of_text|>", "<bos>", "<|bos|>"}, config_where));
  parts.fingerprint = XXH3_64bits(json.data(), json.size());
  return std::unique_ptr<Tokenizer>(std::make_unique<HubTokenizer>(std::move(parts)));
}

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::string& source) {
  if (source == "bytes") return make_byte_tokenizer();
  std::filesystem::path path = source;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) path /= "tokenizer.json";
  FIVEFOLD_ASSIGN(const MappedFile file, MappedFile::open(path));
  const std::filesystem::path config_path = path.parent_path() / "tokenizer_config.json";
  MappedFile config;
  if (std::filesystem::exists(config_path, ignored)) {
    FIVEFOLD_ASSIGN(config, MappedFile::open(config_path));
  }
  return parse_tokenizer_json(file.text(), config.text(), path.string());
}

}  // namespace fivefold
