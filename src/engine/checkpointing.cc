#include "engine/checkpointing.h"

#include <algorithm>

#include "base/text.h"
#include "engine/agreement.h"
#include "engine/checkpoint_moments.h"

namespace fivefold {
namespace {

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error().message());
}

// Reads the whole parameter in portions and keeps what this rank holds: below ZeRO-3 the weights in full.
void restore_weights(TrainingExecutor& executor, CheckpointReader& reader, int unit) {
  constexpr int64_t kPortion = int64_t{1} << 16;
  const std::vector<ParameterEntry>& parameters = executor.inventory().units[static_cast<size_t>(unit)].parameters;
  std::vector<float> values;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].trained()) continue;
    for (int64_t begin = 0; begin < parameters[p].whole_numel(); begin += kPortion) {
      const int64_t end = std::min(begin + kPortion, parameters[p].whole_numel());
      values.resize(static_cast<size_t>(end - begin));
      require(reader.read_floats({"master", parameters[p].name}, begin, end, values));
      executor.set_parameter(unit, static_cast<int>(p), values, begin);
    }
  }
}

// The shard's fp32 weights alone: master weights, whose rounded copy is not written, or an fp32 run's.
void restore_weight_shard(UnitBuffers& buffers, CheckpointReader& reader) {
  float* const shard = elements<float>(buffers.master_shard());
  for (size_t p = 0; p < buffers.unit().parameters.size(); ++p) {
    const ParameterEntry& entry = buffers.unit().parameters[p];
    if (!entry.trained()) continue;
    const ShardRange range = buffers.range(static_cast<int>(p));
    for (const ElementRun& run : element_runs(entry, range.begin, range.end))
      require(
          reader.read_floats({"master", entry.name}, run.whole, run.whole + run.count,
                             {shard + range.shard_offset + run.local - range.begin, static_cast<size_t>(run.count)}));
  }
}

void add_unit_pieces(UnitBuffers& buffers, const TensorSplit& split, std::vector<StatePiece>& pieces) {
  const at::Tensor master = buffers.master_shard();
  const at::Tensor weights = master.defined() ? master : buffers.params_shard();
  const DType dtype = dtype_of(weights);
  for (int p = 0; p < static_cast<int>(buffers.unit().parameters.size()); ++p) {
    const ParameterEntry& entry = buffers.unit().parameters[static_cast<size_t>(p)];
    if (!entry.trained()) continue;
    const ShardRange range = buffers.range(p);
    if (range.begin == range.end) continue;
    add_pieces("master", dtype,
               static_cast<const std::byte*>(weights.data_ptr()) + range.shard_offset * dtype_bytes(dtype), entry,
               range, pieces);
    if (buffers.moment1().exists()) add_moment_pieces("moment1", buffers.moment1(), p, entry, range, split, pieces);
    if (buffers.moment2().exists()) add_moment_pieces("moment2", buffers.moment2(), p, entry, range, split, pieces);
  }
}

void restore_moments(RankSession& session, CheckpointReader& reader, int unit) {
  const MomentRestore from{reader, session.whole_model(), session.whole_inventory(),
                           session.executor().options().split};
  UnitBuffers& buffers = session.executor().buffers(unit);
  for (int p = 0; p < static_cast<int>(buffers.unit().parameters.size()); ++p) {
    const ParameterEntry& entry = buffers.unit().parameters[static_cast<size_t>(p)];
    if (!entry.trained()) continue;
    if (buffers.moment1().exists())
      require(restore_moment(from, "moment1", unit, p, entry, buffers.range(p), buffers.moment1()));
    if (buffers.moment2().exists())
      require(restore_moment(from, "moment2", unit, p, entry, buffers.range(p), buffers.moment2()));
  }
}

}  // namespace

int64_t save_checkpoint(RankSession& session, const CheckpointWriter& writer, const RunState& run) {
  session.interpreter().finish_parameter_gathers();
  TrainingExecutor& executor = session.executor();
  std::vector<StatePiece> pieces;
  // Replicas hold equal shards: the first of them writes.
  if (session.groups().replicate.rank() == 0) {
    for (int unit = 0; unit < executor.inventory().num_units(); ++unit) {
      // Of two copies of a tied embedding the first stage writes its own.
      if (!executor.holds(unit) || executor.options().stages.holds_copy(unit)) continue;
      if (!executor.buffers(unit).trained()) continue;
      add_unit_pieces(executor.buffers(unit), executor.options().split, pieces);
    }
  }
  Communicator& communicator = session.communicator();
  const Group& group = communicator.world();
  const bool root = group.rank() == 0;
  SaveTicket ticket{.step = run.step, .world_size = group.size(), .nonce = {}};
  if (root) ticket = writer.begin(run.step, group.size());
  ticket.nonce = broadcast_text(communicator, group, ticket.nonce);
  const ShardReceipt receipt = writer.write_shard(ticket, group.rank(), pieces);
  const std::vector<std::string> texts = gather_texts(communicator, group, to_text(receipt));
  std::string failure;
  if (root) {
    std::vector<ShardReceipt> receipts;
    for (const std::string& text : texts) receipts.push_back(parse_receipt(text).value());
    const auto committed = writer.commit(ticket, run, receipts);
    if (!committed.ok()) failure = committed.error().message();
  }
  failure = broadcast_text(communicator, group, failure);
  if (!failure.empty()) throw std::runtime_error("checkpoint of step " + std::to_string(run.step) + ": " + failure);
  return receipt.file.bytes;
}

void restore_checkpoint(RankSession& session, CheckpointReader& reader, Restore what) {
  TrainingExecutor& executor = session.executor();
  const ShardingPolicy& policy = executor.options().sharding;
  for (int unit = 0; unit < executor.inventory().num_units(); ++unit) {
    if (!executor.holds(unit) || !executor.buffers(unit).trained()) continue;
    if (policy.shards_params() && policy.has_fp32_weights()) {
      restore_weight_shard(executor.buffers(unit), reader);
    } else {
      restore_weights(executor, reader, unit);
    }
    if (what == Restore::kEverything) restore_moments(session, reader, unit);
  }
  if (policy.shards_params()) executor.refresh_working_weights();
}

void restore_base(RankSession& session, CheckpointReader& reader) {
  TrainingExecutor& executor = session.executor();
  std::vector<float> values;
  for (int unit = 0; unit < executor.inventory().num_units(); ++unit) {
    if (!executor.holds(unit)) continue;
    const std::vector<ParameterEntry>& parameters = executor.inventory().units[static_cast<size_t>(unit)].parameters;
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (parameters[p].adapter) continue;
      values.resize(static_cast<size_t>(parameters[p].whole_numel()));
      require(reader.read_floats({"master", parameters[p].name}, 0, parameters[p].whole_numel(), values));
      executor.set_parameter(unit, static_cast<int>(p), values);
    }
  }
}

Status check_checkpoint(const CheckpointReader& reader, const Inventory& inventory, OptimizerStates states,
                        Restore what) {
  for (const Unit& unit : inventory.units) {
    for (const ParameterEntry& entry : unit.parameters) {
      if (what == Restore::kBase ? entry.adapter : !entry.trained()) continue;
      const std::string where = reader.folder().string() + ": master/" + entry.name;
      const auto found = reader.tensors().find({"master", entry.name});
      if (found == reader.tensors().end())
        return Error{where, "is not in the checkpoint", "the run that wrote it had another model or optimizer"};
      if (found->second.shape != entry.shape)
        return Error{where, "has another shape than the model's", "use the model that the checkpoint was written with"};
      if (what != Restore::kEverything || states == OptimizerStates::kNone) continue;
      FIVEFOLD_TRY(check_moment(reader, "moment1", entry));
      if (states == OptimizerStates::kMoment1And2) FIVEFOLD_TRY(check_moment(reader, "moment2", entry));
    }
  }
  return Ok{};
}

}  // namespace fivefold
