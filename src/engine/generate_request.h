// What `generate` asks the engine for, and what it gets: token ids in, token ids out. Text, chat templates and files of
// prompts are the program's. Torch-free plain data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "spec/account_bytes.h"
#include "spec/model.h"

namespace fivefold {

// How the next token is chosen from logits. Temperature 0: the largest. Else a draw from softmax(logits / temperature)
// over the `top_k` largest (0: all), of those the fewest that together have at least `top_p` of the probability.
struct TokenSampling {
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 0;  // the n-th new token is a function of the logits, the seed and n
};

// What a low-rank adapter makes of a matrix W: W + scale x B A, with DoRA its rows at lengths of their own.
struct LowRankUpdate {
  std::string weight;              // Hub name of the matrix
  int64_t rank = 0;                // positive
  double scale = 1;                // alpha / rank
  std::vector<float> a, b;         // [rank, in], [out, rank]
  std::vector<float> magnitude{};  // of DoRA, [out]; empty: none
};

struct GenerateRequest {
  ModelSpec model;
  std::filesystem::path weights;         // folder of safetensors, or checkpoint
  std::vector<LowRankUpdate> updates{};  // of the weights
  DType compute = DType::kBFloat16;
  std::vector<int32_t> prompt;      // at least one id
  int64_t max_tokens = 0;           // new ones
  std::vector<int32_t> stop_ids{};  // generation ends with the first of these; it is the last id of the result
  TokenSampling sampling;
  int threads = 0;  // 0: one a core
  // Called with each new token; false ends the generation.
  std::function<bool(int32_t)> on_token;
};

struct GenerateResult {
  std::vector<int32_t> ids;   // new ones
  bool stopped = false;       // by a stop id
  double load_seconds = 0;    // weights
  double prompt_seconds = 0;  // to the first new token
  double token_seconds = 0;   // of the other new tokens together
  int threads = 0;
  AccountBytes peak_by_account, at_peak_by_account;
  int64_t peak_total = 0;
};

}  // namespace fivefold
