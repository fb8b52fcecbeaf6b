#include "engine/generate/generate.h"

#include <algorithm>
#include <chrono>

#include "engine/generate/decoder.h"
#include "engine/generate/low_rank_source.h"
#include "engine/generate/token_choice.h"
#include "engine/session.h"

namespace fivefold {
namespace {

class Stopwatch {
 public:
  // Seconds since the last call, or since it was made.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

Result<GenerateResult> run_generation(const GenerateRequest& request) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  FIVEFOLD_CHECK(prompt > 0 && request.max_tokens > 0);
  install_counting_allocator();
  GenerateResult result;
  result.threads = request.threads > 0 ? request.threads : available_cores();
  MemoryLedger ledger;
  const RankThread thread(ledger, result.threads);
  Stopwatch watch;
  const Inventory inventory = build_inventory(request.model);
  FIVEFOLD_ASSIGN(std::unique_ptr<ParameterSource> source, open_parameters(request.weights, inventory));
  if (!request.updates.empty()) {
    FIVEFOLD_ASSIGN(source, add_updates(std::move(source), request.updates, inventory));
  }
  Decoder decoder(request.model, inventory,
                  {.compute = request.compute, .positions = prompt + request.max_tokens, .threads = result.threads});
  FIVEFOLD_TRY(decoder.load(*source));
  result.load_seconds = watch.lap();

  std::span<const float> logits = decoder.append(request.prompt);
  while (true) {
    const int32_t id = choose_token(logits, request.sampling, result.ids.size());
    result.ids.push_back(id);
    (result.ids.size() == 1 ? result.prompt_seconds : result.token_seconds) += watch.lap();
    result.stopped = std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end();
    const bool wanted = !request.on_token || request.on_token(id);
    if (result.stopped || !wanted || static_cast<int64_t>(result.ids.size()) == request.max_tokens) break;
    logits = decoder.append({&id, 1});
  }
  result.peak_by_account = ledger.peak();
  result.at_peak_by_account = ledger.at_peak_total();
  result.peak_total = ledger.peak_total();
  return result;
}

}  // namespace fivefold
