#include "engine/probe.h"

#include <xxhash.h>

#include <cmath>
#include <mutex>
#include <optional>

#include "comm/local_world.h"
#include "engine/rank_recorder.h"
#include "engine/session.h"
#include "engine/weights.h"

namespace fivefold {
namespace {

std::vector<NamedTensor> gather_tensors(RankSession& session, RankSession::State state) {
  std::vector<NamedTensor> tensors;
  const Inventory& inventory = session.whole_inventory();
  for (int unit = 0; unit < inventory.num_units(); ++unit) {
    if (!inventory.units[static_cast<size_t>(unit)].trained()) continue;
    const std::vector<float> flat = session.gather(unit, state);
    if (session.communicator().rank() != 0) continue;
    for (const ParameterEntry& entry : inventory.units[static_cast<size_t>(unit)].parameters) {
      if (!entry.trained()) continue;
      const std::span<const float> values(flat.data() + entry.offset, static_cast<size_t>(entry.numel()));
      for (NamedTensor& tensor : to_hub_tensors(entry, values)) tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

uint64_t hash_parameters(RankSession& session) {
  uint64_t hash = 0;
  for (int unit = 0; unit < session.executor().inventory().num_units(); ++unit) {
    if (!session.whole_inventory().units[static_cast<size_t>(unit)].trained()) continue;
    const std::vector<float> flat = session.gather(unit, RankSession::State::kMaster);
    hash = XXH3_64bits_withSeed(flat.data(), flat.size() * sizeof(float), hash);
    if (session.executor().options().sharding.shards_params() || session.groups().tensor || session.groups().pipeline)
      continue;
    // The replicas themselves, not only what the owners hold; parts of a tensor group or pipeline are not replicas.
    const Buffer working = session.executor().params(unit);
    hash = XXH3_64bits_withSeed(working.pointer, static_cast<size_t>(working.bytes), hash);
  }
  return hash;
}

RankMemory rank_memory(MemoryLedger& ledger) {
  RankMemory memory;
  const AccountBytes peak = ledger.peak(), at_peak = ledger.at_peak_total();
  memory.peak_by_account.assign(peak.bytes.begin(), peak.bytes.end());
  memory.at_peak_by_account.assign(at_peak.bytes.begin(), at_peak.bytes.end());
  memory.peak_total = ledger.peak_total();
  return memory;
}

// One rank's part of a probe; writes its rows of the shared result.
class RankProbe {
 public:
  RankProbe(const ProbeRequest& request, const Inventory& inventory, const HubFolder* weights,
            const PeftFolder* adapter, ProbeResult& result, std::mutex& mutex)
      : request_(request),
        inventory_(inventory),
        weights_(weights),
        adapter_(adapter),
        result_(result),
        mutex_(mutex) {}

  void run(Communicator& communicator, MemoryLedger& ledger) {
    RankSession session(request_.model, inventory_, request_.config, communicator);
    if (weights_ != nullptr) {
      const Status loaded = load_hub_weights(*weights_, inventory_, session.executor());
      if (!loaded.ok()) throw std::runtime_error(loaded.error().message());
    } else {
      session.executor().initialize_weights(static_cast<uint64_t>(request_.config.config.run.seed));
    }
    load_adapter(session);
    const auto microbatches = rank_microbatches(request_.batch, request_.config, session.data_rank());
    const bool root = communicator.rank() == 0;
    const auto rank = static_cast<size_t>(communicator.rank());

    communicator.barrier(communicator.world(), Purpose::kControl);
    if (request_.log_allocations) ledger.start_log();
    StepOutcome first = session.step(microbatches, 0, 0, [](double, double) { return false; });
    // As training would go on: with half the scale until nothing overflows.
    while (session.loss_scaler() != nullptr && !std::isfinite(first.grad_norm) && std::isfinite(first.loss) &&
           session.loss_scaler()->scale() >= 1)
      first = session.step(microbatches, 0, 0, [](double, double) { return false; });
    if (request_.log_allocations)
      for (const AllocationEvent& event : ledger.stop_log())
        result_.memory[rank].log.push_back({event.allocate, {event.account, event.bytes}});
    if (request_.want_gradients) {
      auto gradients = gather_tensors(session, RankSession::State::kGrads);
      if (root) result_.gradients = std::move(gradients);
    }
    if (root) {
      result_.loss = first.loss;
      result_.grad_norm = first.grad_norm;
      result_.valid_tokens = first.valid_tokens;
      result_.step_seconds.push_back(first.seconds);
    }
    session.interpreter().finish_parameter_gathers();
    communicator.barrier(communicator.world(), Purpose::kControl);
    ledger.reset_peak();
    measured_step(session, microbatches, communicator, ledger);
    if (request_.updates > 0) finish(session, microbatches, communicator);
  }

 private:
  void load_adapter(RankSession& session) const {
    if (!request_.model.adapter) return;
    if (adapter_ == nullptr) return session.start_adapter(static_cast<uint64_t>(request_.config.config.run.seed));
    const Status loaded = load_adapter_weights(*adapter_, inventory_, session.executor());
    if (!loaded.ok()) throw std::runtime_error(loaded.error().message());
  }

  // Update 1 (or, without updates, a step that changes nothing): memory and traffic of one whole step.
  void measured_step(RankSession& session, const std::vector<MicrobatchTokens>& microbatches,
                     Communicator& communicator, MemoryLedger& ledger) {
    const auto rank = static_cast<size_t>(communicator.rank());
    const std::vector<RecordedTraffic> before = traffic_rows(communicator.counters());
    const bool update = request_.updates > 0;
    start_calls(communicator);
    const StepOutcome outcome =
        session.step(microbatches, request_.config.config.optimizer.lr, 1, [update](double, double) { return update; });
    end_calls(session);
    session.interpreter().finish_parameter_gathers();
    {
      const std::lock_guard lock(mutex_);
      result_.traffic[rank] = traffic_since(traffic_rows(communicator.counters()), before);
      auto log = std::move(result_.memory[rank].log);
      result_.memory[rank] = rank_memory(ledger);
      result_.memory[rank].log = std::move(log);
    }
    if (communicator.rank() == 0) {
      result_.step_seconds.push_back(outcome.seconds);
      if (update) result_.grad_norms.push_back(outcome.grad_norm);
    }
  }

  void start_calls(Communicator& communicator) const { communicator.call_log().switch_to(request_.want_calls); }
  void end_calls(RankSession& session) {
    if (!request_.want_calls) return;
    std::vector<RecordedCall> calls = take_calls(session);
    const std::lock_guard lock(mutex_);
    result_.calls[static_cast<size_t>(session.communicator().rank())].push_back(std::move(calls));
  }

  void finish(RankSession& session, const std::vector<MicrobatchTokens>& microbatches, Communicator& communicator) {
    const bool root = communicator.rank() == 0;
    for (int update = 2; update <= request_.updates + 1; ++update) {
      const bool last = update > request_.updates;
      start_calls(communicator);
      const StepOutcome outcome = session.step(microbatches, request_.config.config.optimizer.lr, update,
                                               [last](double, double) { return !last; });
      end_calls(session);
      if (!root) continue;
      result_.losses.push_back(outcome.loss);
      if (!last) result_.grad_norms.push_back(outcome.grad_norm);
      result_.step_seconds.push_back(outcome.seconds);
    }
    if (request_.want_hashes)
      result_.parameter_hashes[static_cast<size_t>(communicator.rank())] = hash_parameters(session);
    if (request_.want_parameters) {
      auto parameters = gather_tensors(session, RankSession::State::kMaster);
      if (root) result_.parameters = std::move(parameters);
    }
  }

  const ProbeRequest& request_;
  const Inventory& inventory_;
  const HubFolder* weights_;
  const PeftFolder* adapter_;
  ProbeResult& result_;
  std::mutex& mutex_;
};

}  // namespace

Result<ProbeResult> run_probe(const ProbeRequest& asked) {
  install_counting_allocator();
  ProbeRequest request = asked;
  request.model = with_method(std::move(request.model), request.config.config.method);
  const Inventory inventory = build_inventory(request.model);
  std::optional<HubFolder> weights;
  if (!request.weights.empty()) {
    FIVEFOLD_ASSIGN(weights, HubFolder::open(request.weights));
    FIVEFOLD_TRY(check_hub_weights(*weights, inventory));
  }
  std::optional<PeftFolder> adapter;
  if (const MethodConfig& method = request.config.config.method; request.model.adapter && !method.adapter.empty()) {
    FIVEFOLD_ASSIGN(adapter, open_adapter(method, inventory));
  }
  const int world = request.config.degrees.world();
  ProbeResult result;
  result.memory.resize(static_cast<size_t>(world));
  result.traffic.resize(static_cast<size_t>(world));
  result.parameter_hashes.resize(static_cast<size_t>(world));
  result.calls.resize(static_cast<size_t>(world));
  std::mutex mutex;
  LocalOptions options;
  options.timeout_s = request.config.config.comm.timeout_s;
  options.send_mode = request.config.config.comm.rendezvous ? SendMode::kRendezvous : SendMode::kBuffered;
  options.simulate = request.simulate;
  run_ranks(world, options, [&](int, Communicator& communicator) {
    MemoryLedger ledger(request.config.config.limits.memory);
    const RankThread thread(ledger, threads_per_rank(request.config, available_cores()));
    RankProbe(request, inventory, weights ? &*weights : nullptr, adapter ? &*adapter : nullptr, result, mutex)
        .run(communicator, ledger);
  });
  return result;
}

}  // namespace fivefold
