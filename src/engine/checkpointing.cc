#include "engine/checkpointing.h"

#include <algorithm>

#include "base/text.h"
#include "engine/agreement.h"
#include "kernels/elementwise.h"

namespace fivefold {
namespace {

struct StateShard {
  const char* kind;
  at::Tensor tensor;  // fp32 [shard_numel]
};

std::vector<StateShard> state_shards(UnitBuffers& buffers, Restore what) {
  std::vector<StateShard> shards{{"master", buffers.master_shard()}};
  if (what == Restore::kWeights) return shards;
  if (buffers.moment1().defined()) shards.push_back({"moment1", buffers.moment1()});
  if (buffers.moment2().defined()) shards.push_back({"moment2", buffers.moment2()});
  return shards;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor, int64_t begin, int64_t count) {
  return {reinterpret_cast<std::byte*>(elements<float>(tensor) + begin), static_cast<size_t>(count) * sizeof(float)};
}

// Pieces of what a rank's shard holds of a parameter, range by range of its slices: rows in full are a range of the
// whole parameter, columns a range of a column block. Of the holders of a slice the first writes.
void add_pieces(const StateShard& shard, const ParameterEntry& entry, const ShardRange& range,
                std::vector<StatePiece>& pieces) {
  const int64_t width = entry.cols();
  for (const ParameterSlice& slice : entry.slices) {
    if (slice.holder > 0) continue;
    const bool whole_rows = slice.cols == entry.whole_cols();
    // Columns of padding lie between the rows: then a row is a piece. Else the slice is contiguous.
    const bool contiguous = slice.cols == width;
    const int64_t step = contiguous ? slice.rows : 1;
    for (int64_t row = 0; row < slice.rows; row += step) {
      const int64_t first = (slice.row + row) * width, count = step * slice.cols;
      const int64_t begin = std::max(first, range.begin), end = std::min(first + count, range.end);
      if (begin >= end) continue;
      const int64_t offset = (whole_rows ? slice.whole_row + row : row) * slice.cols - first;
      pieces.push_back({.key = {shard.kind, entry.name},
                        .dtype = DType::kFloat32,
                        .shape = entry.whole_shape,
                        .begin = begin + offset,
                        .end = end + offset,
                        .bytes = bytes_of(shard.tensor, range.shard_offset + begin - range.begin, end - begin),
                        .block = whole_rows ? ColumnBlock{} : ColumnBlock{slice.whole_col, slice.cols}});
    }
  }
}

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error().message());
}

// Weights are also needed in full below ZeRO-3: read the whole parameter in portions, keep what this rank holds.
void restore_full_weights(TrainingExecutor& executor, CheckpointReader& reader, int unit) {
  constexpr int64_t kPortion = int64_t{1} << 16;
  const std::vector<ParameterEntry>& parameters = executor.inventory().units[static_cast<size_t>(unit)].parameters;
  std::vector<float> values;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].trained()) continue;
    for (int64_t begin = 0; begin < parameters[p].whole_numel(); begin += kPortion) {
      const int64_t end = std::min(begin + kPortion, parameters[p].whole_numel());
      values.resize(static_cast<size_t>(end - begin));
      require(reader.read({"master", parameters[p].name}, DType::kFloat32, begin, end,
                          std::as_writable_bytes(std::span(values))));
      executor.set_parameter(unit, static_cast<int>(p), values, begin);
    }
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
      UnitBuffers& buffers = executor.buffers(unit);
      for (const StateShard& shard : state_shards(buffers, Restore::kEverything)) {
        for (size_t p = 0; p < buffers.unit().parameters.size(); ++p)
          if (buffers.unit().parameters[p].trained())
            add_pieces(shard, buffers.unit().parameters[p], buffers.range(static_cast<int>(p)), pieces);
      }
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
  for (int unit = 0; unit < executor.inventory().num_units(); ++unit) {
    if (!executor.holds(unit) || !executor.buffers(unit).trained()) continue;
    UnitBuffers& buffers = executor.buffers(unit);
    if (!executor.options().sharding.shards_params()) restore_full_weights(executor, reader, unit);
    for (const StateShard& shard : state_shards(buffers, what)) {
      const bool done = !executor.options().sharding.shards_params() && std::string_view(shard.kind) == "master";
      for (size_t p = 0; p < buffers.unit().parameters.size() && !done; ++p) {
        const ParameterEntry& entry = buffers.unit().parameters[p];
        if (!entry.trained()) continue;
        const ShardRange range = buffers.range(static_cast<int>(p));
        for (const ElementRun& run : element_runs(entry, range.begin, range.end))
          require(reader.read({shard.kind, entry.name}, DType::kFloat32, run.whole, run.whole + run.count,
                              bytes_of(shard.tensor, range.shard_offset + run.local - range.begin, run.count)));
      }
    }
  }
  if (executor.options().sharding.shards_params()) executor.refresh_working_weights();
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
      require(reader.read({"master", parameters[p].name}, DType::kFloat32, 0, parameters[p].whole_numel(),
                          std::as_writable_bytes(std::span(values))));
      executor.set_parameter(unit, static_cast<int>(p), values);
    }
  }
}

Status check_checkpoint(const CheckpointReader& reader, const Inventory& inventory, OptimizerStates states,
                        Restore what) {
  std::vector<std::string> kinds{"master"};
  if (what == Restore::kEverything && states != OptimizerStates::kNone) kinds.push_back("moment1");
  if (what == Restore::kEverything && states == OptimizerStates::kMoment1And2) kinds.push_back("moment2");
  for (const Unit& unit : inventory.units) {
    for (const ParameterEntry& entry : unit.parameters) {
      if (what == Restore::kBase ? entry.adapter : !entry.trained()) continue;
      for (const std::string& kind : kinds) {
        const auto found = reader.tensors().find({kind, entry.name});
        const std::string where = reader.folder().string() + ": " + kind + "/" + entry.name;
        if (found == reader.tensors().end())
          return Error{where, "is not in the checkpoint", "the run that wrote it had another model or optimizer"};
        if (found->second.shape != entry.shape)
          return Error{where, "has another shape than the model's",
                       "use the model that the checkpoint was written with"};
      }
    }
  }
  return Ok{};
}

}  // namespace fivefold
