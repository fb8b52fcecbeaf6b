#include "engine/rank_recorder.h"

#include "kernels/instruction_set.h"
#include "spec/model_count.h"
#include "spec/run_config_io.h"

namespace fivefold {
namespace {

std::vector<RecordedInstruction> program_lines(const Program& program, const Inventory& inventory) {
  std::vector<RecordedInstruction> lines;
  for (const Instruction& instruction : program.instructions) {
    RecordedInstruction line{std::string(to_string(instruction.op)), "", instruction.microbatch};
    if (instruction.unit >= 0) line.unit = inventory.units[static_cast<size_t>(instruction.unit)].name;
    lines.push_back(std::move(line));
  }
  return lines;
}

std::array<double, kNumCollectiveKinds> collective_seconds(const CommCounters& counters) {
  std::array<double, kNumCollectiveKinds> seconds{};
  for (int kind = 0; kind < kNumCollectiveKinds; ++kind)
    seconds[static_cast<size_t>(kind)] = counters.seconds(static_cast<CollectiveKind>(kind));
  return seconds;
}

}  // namespace

std::vector<RecordedTraffic> traffic_rows(const CommCounters& counters) {
  std::vector<RecordedTraffic> rows;
  for (int kind = 0; kind < kNumCollectiveKinds; ++kind)
    for (int group = 0; group < kNumGroupKinds; ++group)
      for (int purpose = 0; purpose < kNumPurposes; ++purpose) {
        RecordedTraffic row{static_cast<CollectiveKind>(kind), static_cast<GroupKind>(group),
                            static_cast<Purpose>(purpose), 0, 0};
        const CommCount count = counters.count(row.kind, row.group, row.purpose);
        row.calls = count.calls;
        row.bytes = count.bytes;
        if (row.calls > 0 && row.purpose != Purpose::kControl) rows.push_back(row);
      }
  return rows;
}

std::vector<RecordedTraffic> traffic_since(std::vector<RecordedTraffic> after,
                                           const std::vector<RecordedTraffic>& before) {
  for (RecordedTraffic& row : after)
    for (const RecordedTraffic& old : before)
      if (old.kind == row.kind && old.group == row.group && old.purpose == row.purpose) {
        row.calls -= old.calls;
        row.bytes -= old.bytes;
      }
  std::erase_if(after, [](const RecordedTraffic& row) { return row.calls == 0; });
  return after;
}

std::vector<RecordedCall> take_calls(RankSession& session) {
  CallLog& log = session.communicator().call_log();
  log.switch_to(false);
  const Interpreter& interpreter = session.interpreter();
  const double origin = interpreter.origin_s() + interpreter.times().front().begin_s;
  std::vector<RecordedCall> calls;
  for (const LoggedCall& call : log.take())
    calls.push_back(
        {call.kind, call.group, call.purpose, call.bytes, call.begin_s - origin, call.end_s - origin, call.waited_s});
  return calls;
}

RankRecorder::RankRecorder(RankSession& session, MemoryLedger& ledger, const std::filesystem::path& run_directory,
                           const std::string& model_config, std::optional<int64_t> resumed_from)
    : session_(session),
      ledger_(ledger),
      writer_(run_directory, session.communicator().rank()),
      start_(std::chrono::steady_clock::now()) {
  const Inventory& inventory = session.whole_inventory();
  RunStart start;
  start.fivefold_version = FIVEFOLD_VERSION;
  start.rank = session.communicator().rank();
  start.world = session.communicator().size();
  start.coordinates = session.coordinates();
  start.configuration = to_toml(session.config().config);
  start.model_config = model_config;
  start.schedule = session.config().config.parallel.schedule_source.text;
  start.parameters = inventory.num_parameters();
  // A tied table is also the output matrix: it is not only looked up.
  if (!inventory.tied_embeddings) start.embedding_parameters = inventory.units[0].numel;
  start.threads = session.executor().options().threads;
  start.instruction_set = kernels::instruction_set();
  start.started_at = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  start.resumed_from = resumed_from;
  writer_.write(start);
  writer_.write(ProgramRecord{program_lines(session.program(), inventory)});
}

double RankRecorder::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void RankRecorder::begin_step() {
  traffic_before_ = traffic_rows(session_.communicator().counters());
  seconds_before_ = collective_seconds(session_.communicator().counters());
  ledger_.reset_peak();
  session_.communicator().call_log().switch_to(num_steps_++ < kStepsWithCalls);
  step_begin_s_ = seconds();
}

void RankRecorder::end_step(int64_t step, const StepOutcome& outcome, double learning_rate, int64_t samples_consumed) {
  const BatchConfig& batch = session_.config().config.batch;
  StepRecord line;
  line.step = step;
  line.loss = outcome.loss;
  line.grad_norm = outcome.grad_norm;
  line.lr = learning_rate;
  line.loss_scale = outcome.loss_scale;
  line.tokens = batch.global * batch.sequence;
  line.valid_tokens = outcome.valid_tokens;
  line.samples_consumed = samples_consumed;
  line.updated = outcome.updated;
  line.begin_s = step_begin_s_;
  line.seconds = outcome.seconds;
  line.live = ledger_.live();
  line.peak = ledger_.peak();
  line.at_peak = ledger_.at_peak_total();
  line.peak_total = ledger_.peak_total();
  line.traffic = traffic_since(traffic_rows(session_.communicator().counters()), traffic_before_);
  line.collective_seconds = collective_seconds(session_.communicator().counters());
  for (size_t i = 0; i < line.collective_seconds.size(); ++i) line.collective_seconds[i] -= seconds_before_[i];
  const std::vector<InstructionTime>& times = session_.interpreter().times();
  const double origin = times.empty() ? 0 : times.front().begin_s;
  for (const InstructionTime& time : times)
    line.times.push_back({time.begin_s - origin, time.end_s - origin, time.cpu_s});
  line.calls = take_calls(session_);
  writer_.write(line);
}

}  // namespace fivefold
