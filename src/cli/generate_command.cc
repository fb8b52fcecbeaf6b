// fivefold generate WEIGHTS --prompt TEXT: continues a text with a trained model.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/log.h"
#include "base/text.h"
#include "cli/adapter_merge.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/weights_folder.h"
#include "data/chat_template.h"
#include "data/text_stream.h"
#include "data/utf8.h"
#include "engine/engine_api.h"
#include "spec/generation.h"

namespace fivefold {
namespace {

constexpr int64_t kDefaultTokens = 256;

struct GenerateOptions {
  std::string weights, adapter, model, tokenizer, prompt, prompt_file;
  std::string dtype = "bf16";
  std::optional<int64_t> max_tokens;
  double temperature = 0;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<uint64_t> seed;
  int threads = 0;
  bool chat = false, json = false, quiet = false;
};

Result<TokenSampling> sampling(const GenerateOptions& options) {
  TokenSampling sampling{.temperature = options.temperature};
  if (!std::isfinite(options.temperature) || options.temperature < 0)
    return Error{"--temperature", fmt::format("is {}", options.temperature), "use 0 (the likeliest token) or more"};
  if (options.temperature == 0) {
    const char* given = options.top_k ? "--top-k" : options.top_p ? "--top-p" : options.seed ? "--seed" : nullptr;
    if (given != nullptr)
      return Error{given, "changes nothing at temperature 0, where the likeliest token is taken",
                   "add --temperature 1"};
  }
  sampling.top_k = options.top_k.value_or(0);
  sampling.top_p = options.top_p.value_or(1);
  sampling.seed = options.seed.value_or(0);
  if (sampling.top_k < 0 || (options.top_k && sampling.top_k == 0))
    return Error{"--top-k", fmt::format("is {}", sampling.top_k), "use 1 or more, or leave it out"};
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    return Error{"--top-p", fmt::format("is {}", sampling.top_p), "use a share above 0 and up to 1"};
  return sampling;
}

Result<std::string> prompt_text(const GenerateOptions& options) {
  if (options.prompt.empty() == options.prompt_file.empty())
    return Error{"--prompt", options.prompt.empty() ? "is missing" : "is given beside --prompt-file",
                 "give --prompt TEXT or --prompt-file FILE"};
  if (!options.prompt.empty()) return options.prompt;
  std::ifstream file(options.prompt_file, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return Error{options.prompt_file, "cannot be read, or is empty", "give a file with the prompt's text"};
  return text.str();
}

// Everything that a generation needs, checked.
struct Prepared {
  WeightsFolder folder;
  std::unique_ptr<Tokenizer> tokenizer;
  GenerateRequest request;
  GenerationBytes bytes;
};

// The prompt as the model was trained on texts: with what the tokenizer puts around one, or with --chat as what a user
// says in a conversation, before the answer.
Status add_prompt(const std::string& text, bool chat, const std::string& tokenizer, Prepared& prepared) {
  if (chat) {
    FIVEFOLD_ASSIGN(const ChatTemplate chat_template, load_chat_template("auto", tokenizer));
    const ChatMessage message{.role = "user", .content = text};
    FIVEFOLD_ASSIGN(const RenderedChat rendered, chat_template.render({&message, 1}, GenerationPrompt::kAdd));
    prepared.request.prompt = prepared.tokenizer->encode(rendered.text, Specials::kOmit);
  } else {
    prepared.request.prompt = prepared.tokenizer->encode(text, Specials::kAdd);
  }
  for (const int32_t id : prepared.request.prompt)
    if (id >= prepared.request.model.vocab)
      return Error{"--tokenizer", fmt::format("gives token {}, the model has {}", id, prepared.request.model.vocab),
                   "use the tokenizer that the model was trained with"};
  return Ok{};
}

// The folder's matrices, to be put into the weights while they are read.
Status add_adapter(const std::string& path, GenerateRequest& request) {
  FIVEFOLD_ASSIGN(const PeftFolder folder, PeftFolder::open(path));
  const AdapterValues values = adapter_values(folder);
  for (const PeftModule& module : folder.modules()) {
    LowRankUpdate update{.weight = module.name + ".weight",
                         .rank = folder.config().rank,
                         .scale = folder.config().scale(),
                         .a = {},
                         .b = {}};
    FIVEFOLD_ASSIGN(update.a, values.read(module, PeftTensor::kA));
    FIVEFOLD_ASSIGN(update.b, values.read(module, PeftTensor::kB));
    if (folder.config().dora) {
      FIVEFOLD_ASSIGN(update.magnitude, values.read(module, PeftTensor::kMagnitude));
    }
    request.updates.push_back(std::move(update));
  }
  return Ok{};
}

Result<Prepared> prepare(const GenerateOptions& options) {
  Prepared prepared;
  GenerateRequest& request = prepared.request;
  if (options.dtype != "bf16" && options.dtype != "fp32")
    return Error{"--dtype", "is \"" + options.dtype + "\"", name_hint(options.dtype, {"bf16", "fp32"})};
  request.compute = options.dtype == "bf16" ? DType::kBFloat16 : DType::kFloat32;
  FIVEFOLD_ASSIGN(request.sampling, sampling(options));
  FIVEFOLD_ASSIGN(const std::string text, prompt_text(options));
  FIVEFOLD_ASSIGN(prepared.folder, find_weights(options.weights, options.model));
  request.model = prepared.folder.model;
  request.weights = prepared.folder.weights;
  if (!options.adapter.empty()) FIVEFOLD_TRY(add_adapter(options.adapter, request));
  request.threads = options.threads;
  const std::string tokenizer = options.tokenizer.empty() ? prepared.folder.tokenizer : options.tokenizer;
  if (tokenizer.empty())
    return Error{options.weights, "has no tokenizer.json", "name one with --tokenizer, or \"bytes\""};
  FIVEFOLD_ASSIGN(prepared.tokenizer, load_tokenizer(tokenizer));
  request.stop_ids = prepared.folder.stop_ids;
  if (const std::optional<int32_t> eos = prepared.tokenizer->eos_id()) request.stop_ids.push_back(*eos);
  FIVEFOLD_TRY(add_prompt(text, options.chat, tokenizer, prepared));
  return prepared;
}

// How many new tokens, and whether the model takes them.
std::vector<Error> set_length(const GenerateOptions& options, Prepared& prepared) {
  GenerateRequest& request = prepared.request;
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t room = std::max<int64_t>(1, request.model.max_positions - prompt);
  request.max_tokens = options.max_tokens.value_or(std::min(kDefaultTokens, room));
  const GenerationShape shape{.prompt = prompt, .new_tokens = request.max_tokens, .compute = request.compute};
  std::vector<Error> errors = validate_generation(request.model, shape);
  if (!errors.empty()) return errors;
  const Inventory inventory = build_inventory(request.model);
  prepared.bytes = generation_bytes(request.model, inventory, shape);
  log_info(fmt::format("{} parameters in {}: {}; keys and values of {} tokens: {}",
                       format_count(inventory.num_parameters()), to_string(request.compute),
                       format_bytes(prepared.bytes.params), shape.positions(), format_bytes(prepared.bytes.kv_cache)));
  return {};
}

// New tokens a second, the first one left out, which waits for the prompt.
double tokens_per_s(const GenerateResult& result) {
  return result.ids.size() > 1 ? static_cast<double>(result.ids.size() - 1) / result.token_seconds : 0;
}

std::string account_list(const AccountBytes& bytes) {
  std::vector<std::string> parts;
  for (int i = 0; i < kNumAccounts; ++i) {
    const auto account = static_cast<Account>(i);
    if (bytes[account] > 0) parts.push_back(fmt::format("{} {}", to_string(account), format_bytes(bytes[account])));
  }
  return join(parts, ", ");
}

nlohmann::ordered_json to_json(const Prepared& prepared, const GenerateResult& result, const std::string& text) {
  nlohmann::ordered_json accounts;
  for (int i = 0; i < kNumAccounts; ++i)
    accounts[std::string(to_string(static_cast<Account>(i)))] = result.peak_by_account[static_cast<Account>(i)];
  return {{"prompt_ids", prepared.request.prompt},
          {"ids", result.ids},
          {"text", text},
          {"stopped", result.stopped},
          {"threads", result.threads},
          {"load_time", result.load_seconds},
          {"prompt_time", result.prompt_seconds},
          {"tokens_per_s", tokens_per_s(result)},
          {"memory",
           {{"peak", result.peak_total},
            {"accounts", accounts},
            {"predicted", {{"params", prepared.bytes.params}, {"kv_cache", prepared.bytes.kv_cache}}}}}};
}

ExitCode bad_input(const std::vector<Error>& errors) {
  print_errors(errors);
  return ExitCode::kBadInput;
}

ExitCode run_generate(const GenerateOptions& options) {
  if (options.quiet) set_log_level(LogLevel::kWarning);
  Result<Prepared> prepared = prepare(options);
  if (!prepared.ok()) return bad_input({prepared.error()});
  if (!prepared->folder.note.empty()) print_note({"", prepared->folder.note, ""});
  if (const std::vector<Error> errors = set_length(options, *prepared); !errors.empty()) return bad_input(errors);
  const Result<EngineApi*> engine = load_engine();
  if (!engine.ok()) return bad_input({engine.error()});

  TextStream stream(*prepared->tokenizer, prepared->request.prompt);
  std::string text;
  const auto show = [&](const std::string& bytes) {
    const std::string piece = to_valid_utf8(bytes);  // the byte tokenizer keeps what is no character
    text += piece;
    if (options.json || piece.empty()) return true;
    print(piece);
    return std::fflush(stdout) == 0;  // a reader that has gone wants no more
  };
  prepared->request.on_token = [&](int32_t id) { return show(stream.push(id)); };
  const Result<GenerateResult> result = (*engine)->generate(prepared->request);
  if (!result.ok()) return bad_input({result.error()});
  show(stream.finish());
  if (options.json) {
    print_json(to_json(*prepared, *result, text));
    return ExitCode::kDone;
  }
  print("\n");
  std::fflush(stdout);
  log_info(fmt::format("{} tokens after a prompt of {}, {}: prompt {}, then {:.1f} tokens/s on {} threads",
                       result->ids.size(), prepared->request.prompt.size(),
                       result->stopped ? "the last one ends the text" : "stopped at --max-tokens",
                       format_seconds(result->prompt_seconds), tokens_per_s(*result), result->threads));
  log_info(fmt::format("peak {}: {}", format_bytes(result->peak_total), account_list(result->at_peak_by_account)));
  return ExitCode::kDone;
}

}  // namespace

RunCommand add_generate_command(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  app.add_option("weights", options->weights, "Hub folder, checkpoint, folder of checkpoints, or run directory")
      ->required()
      ->option_text("WEIGHTS");
  app.add_option("--adapter", options->adapter, "PEFT folder of an adapter (LoRA, DoRA) that is put into the weights")
      ->option_text("FOLDER");
  app.add_option("--prompt", options->prompt, "text to continue")->option_text("TEXT");
  app.add_option("--prompt-file", options->prompt_file, "file with the text to continue")->option_text("FILE");
  app.add_flag("--chat", options->chat, "the prompt is what a user says: put it into the tokenizer's chat template");
  app.add_option("--max-tokens", options->max_tokens,
                 "new tokens at most (default 256, or what the model has room for)")
      ->option_text("N");
  app.add_option("--temperature", options->temperature, "0 (default): the likeliest token; else a draw")
      ->option_text("T");
  app.add_option("--top-k", options->top_k, "draw among the K likeliest tokens")->option_text("K");
  app.add_option("--top-p", options->top_p, "draw among the likeliest tokens that together have this probability")
      ->option_text("P");
  app.add_option("--seed", options->seed, "of the draws (default 0)")->option_text("N");
  app.add_option("--dtype", options->dtype, "of weights, keys and values: bf16 (default) or fp32")
      ->option_text("DTYPE");
  app.add_option("--model", options->model, "name or config.json, instead of what the folder says")
      ->option_text("MODEL");
  app.add_option("--tokenizer", options->tokenizer, "tokenizer.json, its folder, or \"bytes\"")
      ->option_text("TOKENIZER");
  app.add_option("--threads", options->threads, "CPU threads (default: all cores)")
      ->check(CLI::Range(1, 4096))
      ->option_text("N");
  app.add_flag("--json", options->json, "print JSON");
  app.add_flag("--quiet", options->quiet, "print the text and errors only");
  return [options] { return run_generate(*options); };
}

}  // namespace fivefold
