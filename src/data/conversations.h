// Conversations out of JSON lines, and their tokens with a mark on each that counts. Thread-safe.
//
// A line is one conversation in one of three forms:
//   {"messages": [{"role": "user", "content": "..."}, ...]}
//   {"prompt": "...", "completion": "..."}               a user's message and the assistant's
//   {"instruction": "...", "input": "...", "output": "..."}   the same; a blank line between instruction and input
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/chat_template.h"
#include "data/tokenizer.h"
#include "spec/run_config.h"

namespace fivefold {

// Errors (where: `where`): not JSON in UTF-8, not an object, none of the three forms or two of them, a missing or empty
// list of messages, a role or content that is not a string.
Result<std::vector<ChatMessage>> parse_conversation(std::string_view line, const std::string& where);

// Calls `each` with every conversation of list_text_files(path), in order, and its "file:line"; stops at an error of
// `each`. Empty lines are left out. Errors: cannot be read; those of parse_conversation.
Status for_each_conversation(const std::filesystem::path& path,
                             const std::function<Status(const std::vector<ChatMessage>&, const std::string&)>& each);

struct ConversationTokens {
  std::vector<int32_t> ids;
  std::vector<int32_t> counted;  // 1 where the loss counts, when the token is a target
};

// The ids are those of the whole rendered text. A token counts when its text begins inside of what the assistant wrote
// or reaches into it from before; under LossOn::kAll every token does. Errors (where: `where`): those of render, no
// message of the assistant under LossOn::kCompletion.
Result<ConversationTokens> tokenize_conversation(const std::vector<ChatMessage>& messages, const ChatTemplate& chat,
                                                 LossOn loss, const Tokenizer& tokenizer, const std::string& where);

// Two token files of the same documents: the ids, and a byte for each token that says whether it counts.
struct ConversationFiles {
  std::filesystem::path tokens, counted;  // common names of the pairs
};

// As tokenize_to_cache. The name is a hash of the content, the template, what counts, and the tokenizer.
Result<ConversationFiles> tokenize_conversations_to_cache(const std::filesystem::path& path, const ChatTemplate& chat,
                                                          LossOn loss, const Tokenizer& tokenizer,
                                                          const std::filesystem::path& cache_folder);

}  // namespace fivefold
