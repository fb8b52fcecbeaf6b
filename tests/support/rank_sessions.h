// For tests of the engine from inside: ranks as threads with a RankSession each, on a request of the test support.
#pragma once

#include <ATen/Context.h>

#include <functional>

#include "comm/local_world.h"
#include "engine/session.h"
#include "support/tiny_model.h"

namespace fivefold::testing {

// While alive, Torch fills what it allocates without a value with NaN: what is read before it was written shows.
class PoisonedAllocations {
 public:
  PoisonedAllocations() { at::globalContext().setDeterministicAlgorithms(true, false); }
  ~PoisonedAllocations() { at::globalContext().setDeterministicAlgorithms(false, false); }
};

using SessionBody =
    std::function<void(RankSession& session, const std::vector<MicrobatchTokens>& microbatches, MemoryLedger& ledger)>;

// Runs `body` on every rank with initialised weights. `options` may hold a hook; the timeout is the request's.
inline void run_sessions(const ProbeRequest& request, LocalOptions options, const SessionBody& body) {
  install_counting_allocator();
  const Inventory inventory = build_inventory(request.model);
  const CommConfig& comm = request.config.config.comm;
  options.timeout_s = comm.timeout_s;
  options.send_mode = comm.rendezvous ? SendMode::kRendezvous : SendMode::kBuffered;
  run_ranks(request.config.degrees.world(), options, [&](int, Communicator& communicator) {
    MemoryLedger ledger;
    const RankThread thread(ledger, 1);
    RankSession session(request.model, inventory, request.config, communicator);
    const auto seed = static_cast<uint64_t>(request.config.config.run.seed);
    session.executor().initialize_weights(seed);
    if (request.model.adapter) session.start_adapter(seed);
    body(session, rank_microbatches(request.batch, request.config, session.data_rank()), ledger);
  });
}

// All units' state on every rank, gathered; nothing of a unit of which nothing is trained. Collective.
inline std::vector<std::vector<float>> gather_all(RankSession& session, RankSession::State state) {
  std::vector<std::vector<float>> units;
  for (int unit = 0; unit < session.executor().inventory().num_units(); ++unit)
    units.push_back(session.whole_inventory().units[static_cast<size_t>(unit)].trained() ? session.gather(unit, state)
                                                                                         : std::vector<float>());
  return units;
}

}  // namespace fivefold::testing
