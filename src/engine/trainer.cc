#include "engine/trainer.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <optional>

#include "base/process_memory.h"
#include "comm/local_world.h"
#include "engine/agreement.h"
#include "engine/checkpointing.h"
#include "engine/non_finite.h"
#include "engine/rank_recorder.h"
#include "engine/replica_check.h"
#include "engine/training_data.h"
#include "engine/weights.h"
#include "spec/lr_schedule.h"
#include "spec/run_config_io.h"

namespace fivefold {
namespace {

// What is found out before ranks start and then only read.
struct Preparation {
  Inventory inventory;
  TrainingData data;
  std::optional<HubFolder> hub_weights;
  std::optional<PeftFolder> adapter;
  std::filesystem::path resume_from, weights_from;  // checkpoint folders; empty: none
  RunState resumed;                                 // of resume_from
  int64_t rss_idle = 0;
};

// Opens a checkpoint, says when it was not the one asked for, and checks that it belongs to the model.
Result<CheckpointReader> open_checkpoint(const TrainRequest& request, const Inventory& inventory,
                                         const std::filesystem::path& path, Restore what) {
  FIVEFOLD_ASSIGN(CheckpointReader reader, CheckpointReader::open(path, Verify::kContents));
  if (!reader.fallback_reason().empty() && request.on_message) request.on_message(reader.fallback_reason());
  FIVEFOLD_TRY(check_checkpoint(reader, inventory, optimizer_states(request.config.config.optimizer), what));
  return reader;
}

Status find_weights(const TrainRequest& request, Preparation& preparation) {
  const RunConfig& config = request.config.config;
  const std::filesystem::path root = request.run_directory / "checkpoints";
  const std::string& resume = config.checkpoint.resume;
  if (resume != "none" && (resume != "auto" || !list_checkpoints(root).empty())) {
    const std::filesystem::path path = resume == "auto" ? root : std::filesystem::path(resume);
    FIVEFOLD_ASSIGN(const CheckpointReader reader,
                    open_checkpoint(request, preparation.inventory, path, Restore::kEverything));
    preparation.resume_from = reader.folder();
    preparation.resumed = reader.run();
    if (!request.model.adapter) return Ok{};
  } else if (request.model.adapter && !config.method.adapter.empty()) {
    FIVEFOLD_ASSIGN(preparation.adapter, open_adapter(config.method, preparation.inventory));
  }
  if (config.model.weights == "random") return Ok{};
  const std::filesystem::path weights = config.model.weights;
  if (!list_checkpoints(weights).empty() || std::filesystem::exists(weights / "manifest.json")) {
    FIVEFOLD_ASSIGN(const CheckpointReader reader,
                    open_checkpoint(request, preparation.inventory, weights,
                                    request.model.adapter ? Restore::kBase : Restore::kWeights));
    preparation.weights_from = reader.folder();
    return Ok{};
  }
  FIVEFOLD_ASSIGN(preparation.hub_weights, HubFolder::open(weights));
  return check_hub_weights(*preparation.hub_weights, preparation.inventory);
}

// Makes the libraries load their code and tables, which are there in an idle process too.
void warm_up_libraries() {
  const c10::InferenceMode inference;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = at::ones({256, 256}, type);
    at::Tensor b = at::empty({256, 256}, type);
    at::mm_out(b, a, a.t());
  }
}

Result<Preparation> prepare(const TrainRequest& request) {
  warm_up_libraries();
  const int64_t idle = resident_bytes();
  FIVEFOLD_ASSIGN(TrainingData data,
                  TrainingData::open(request.config, request.model, request.run_directory.parent_path() / ".tokens"));
  for (const std::string& remark : data.remarks(request.config.config.data))
    if (request.on_message) request.on_message(remark);
  Preparation preparation{build_inventory(request.model), std::move(data), {}, {}, {}, {}, idle};
  FIVEFOLD_TRY(find_weights(request, preparation));
  return preparation;
}

class RankTrainer {
 public:
  RankTrainer(const TrainRequest& request, const Preparation& preparation, Communicator& communicator,
              MemoryLedger& ledger, TrainResult& result)
      : request_(request),
        config_(request.config.config),
        preparation_(preparation),
        ledger_(ledger),
        result_(result),
        rss_before_model_(resident_bytes()),
        session_(request.model, preparation.inventory, request.config, communicator),
        recorder_(session_, ledger, request.run_directory, request.model_config,
                  preparation.resume_from.empty() ? std::nullopt : std::optional(preparation.resumed.step)),
        writer_(request.run_directory / "checkpoints",
                {.keep = static_cast<int>(config_.checkpoint.keep), .observer = {}}) {}

  // Where an exception left run().
  MemoryRefusal refusal(const OutOfMemory& refused) {
    return {.rank = session_.communicator().rank(),
            .account = refused.account(),
            .bytes = refused.bytes(),
            .limit = refused.limit(),
            .live = refused.live(),
            .step = state_.step + 1,
            .instruction = session_.interpreter().left_at()};
  }

  void run() {
    load_weights();
    bool stopped = false;
    while (state_.step < config_.run.steps && !stopped) {
      const StepOutcome outcome = train_one_step();
      stopped = outcome.stop_requested;
      const bool last = state_.step == config_.run.steps || stopped;
      const int64_t compare_every = config_.run.compare_replicas_every;
      if (compare_every > 0 && (state_.step % compare_every == 0 || last)) compare_replicas();
      if (config_.run.validate_every > 0 && (state_.step % config_.run.validate_every == 0 || last)) evaluate();
      if (last || (config_.checkpoint.every > 0 && state_.step % config_.checkpoint.every == 0)) save();
    }
    finish(stopped);
  }

 private:
  bool root() { return session_.communicator().rank() == 0; }

  // The model's own weights, then adapters, then what a checkpoint of this run says of what is trained.
  void load_weights() {
    const bool adapts = request_.model.adapter.has_value(), resumes = !preparation_.resume_from.empty();
    if (adapts || !resumes) load_base();
    if (adapts) load_adapter();
    if (resumes) {
      CheckpointReader reader = open(preparation_.resume_from);
      restore_checkpoint(session_, reader, Restore::kEverything);
      state_ = preparation_.resumed;
      updates_ = std::stoll(state_.generator_state);
      const size_t first_line = state_.generator_state.find('\n');
      if (Fp8History* history = session_.executor().fp8_history();
          history != nullptr && first_line != std::string::npos)
        history->restore(state_.generator_state.substr(first_line + 1));
      if (session_.loss_scaler() != nullptr && state_.loss_scale > 0)
        session_.loss_scaler()->restore(static_cast<float>(state_.loss_scale), state_.loss_scale_steps);
    }
    state_.seed = static_cast<uint64_t>(config_.run.seed);
    if (root()) result_.first_step = state_.step;
  }

  void load_base() {
    if (!preparation_.weights_from.empty()) {
      CheckpointReader reader = open(preparation_.weights_from);
      if (request_.model.adapter)
        restore_base(session_, reader);
      else
        restore_checkpoint(session_, reader, Restore::kWeights);
    } else if (preparation_.hub_weights) {
      require(load_hub_weights(*preparation_.hub_weights, preparation_.inventory, session_.executor()));
    } else {
      session_.executor().initialize_weights(static_cast<uint64_t>(config_.run.seed));
    }
  }

  void load_adapter() {
    if (preparation_.adapter)
      require(load_adapter_weights(*preparation_.adapter, preparation_.inventory, session_.executor()));
    else
      session_.start_adapter(static_cast<uint64_t>(config_.run.seed));
  }

  static void require(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.error().message());
  }

  static CheckpointReader open(const std::filesystem::path& folder) {
    auto reader = CheckpointReader::open(folder, Verify::kFiles);
    if (!reader.ok()) throw std::runtime_error(reader.error().message());
    return std::move(reader).value();
  }

  StepOutcome train_one_step() {
    const double rate = learning_rate(config_.lr, config_.optimizer.lr, updates_, config_.run.steps);
    const auto microbatches = preparation_.data.step(request_.config, session_.data_rank(), state_.samples_consumed);
    const bool stop = request_.stop != nullptr && request_.stop->load(std::memory_order_relaxed);
    recorder_.begin_step();
    const StepOutcome outcome = session_.step(
        microbatches, rate, updates_ + 1,
        [](double loss, double norm) { return std::isfinite(loss) && std::isfinite(norm); }, stop);
    state_.step += 1;
    state_.samples_consumed += config_.batch.global;
    state_.tokens_consumed += config_.batch.global * config_.batch.sequence;
    recorder_.end_step(state_.step, outcome, rate, state_.samples_consumed);
    if (outcome.updated) {
      ++updates_;
      overflows_.after_update();
    } else {
      explain_missing_update(outcome, microbatches);
    }
    if (root()) report_step(outcome, rate);
    return outcome;
  }

  void report_step(const StepOutcome& outcome, double rate) {
    result_.loss = outcome.loss;
    result_.step_seconds.push_back(outcome.seconds);
    if (!request_.on_step) return;
    const double tokens = static_cast<double>(config_.batch.global * config_.batch.sequence);
    request_.on_step({state_.step, config_.run.steps, outcome.loss, outcome.grad_norm, rate, outcome.seconds,
                      tokens / outcome.seconds, outcome.updated, outcome.loss_scale});
  }

  // A batch without valid tokens is skipped, and in fp16 a step that overflowed; elsewhere a loss or gradient that is
  // not finite ends the run, after every rank has written down where it was first seen.
  void explain_missing_update(const StepOutcome& outcome, const std::vector<MicrobatchTokens>& microbatches) {
    const bool finite = std::isfinite(outcome.loss) && std::isfinite(outcome.grad_norm);
    const std::string step = "step " + std::to_string(state_.step);
    if (finite) {
      recorder_.writer().write(EventRecord{EventKind::kSkippedStep, state_.step, recorder_.seconds(),
                                           step + " has no valid token: nothing was updated"});
      return;
    }
    if (skip_overflow(outcome, step)) return;
    const std::string text = step + ": loss " + std::to_string(outcome.loss) + ", gradient norm " +
                             std::to_string(outcome.grad_norm) + ": " + explain_non_finite(session_, microbatches);
    recorder_.writer().write(EventRecord{EventKind::kNonFinite, state_.step, recorder_.seconds(), text});
    throw std::runtime_error(text + "; the weights are those before this step, the last checkpoint is whole");
  }

  // In fp16: whether the run goes on with a smaller loss scale.
  bool skip_overflow(const StepOutcome& outcome, const std::string& step) {
    if (session_.loss_scaler() == nullptr) return false;
    const float used = static_cast<float>(outcome.loss_scale), next = session_.loss_scaler()->scale();
    const OverflowWatch::Verdict verdict = overflows_.after_overflow(std::isfinite(outcome.loss), used, next);
    if (verdict == OverflowWatch::Verdict::kEnd) return false;
    const auto record = [&](EventKind kind, const std::string& text) {
      recorder_.writer().write(EventRecord{kind, state_.step, recorder_.seconds(), text});
      return text;
    };
    record(EventKind::kSkippedStep, fmt::format("{}: loss {}, gradients are not finite at loss scale {:g}: nothing was "
                                                "updated, the scale is {:g} from here on",
                                                step, outcome.loss, used, next));
    if (verdict == OverflowWatch::Verdict::kSkip) return true;
    const std::string warning = record(
        EventKind::kLossScaleLow,
        fmt::format(
            "{}: the loss scale fell to {:g}: gradients overflow fp16 as they are (use precision.compute = bf16)", step,
            next));
    if (root() && request_.on_message) request_.on_message(warning);
    return true;
  }

  // Before a checkpoint is written, so that it holds what all replicas agree on.
  void compare_replicas() {
    const std::optional<std::string> difference = find_replica_difference(session_);
    if (!difference) return;
    const std::string text = "after step " + std::to_string(state_.step) + ": " + *difference;
    recorder_.writer().write(EventRecord{EventKind::kReplicaDifference, state_.step, recorder_.seconds(), text});
    throw std::runtime_error(text + ": a bit was flipped in memory or on the way; the last checkpoint is whole");
  }

  void evaluate() {
    if (!preparation_.data.has_validation()) return;
    const double begin = recorder_.seconds();
    double sums[2] = {0, 0};
    const int64_t batches = preparation_.data.num_validation_batches(request_.config);
    for (int64_t i = 0; i < batches; ++i) {
      const auto part = session_.evaluate(preparation_.data.validation_batch(request_.config, session_.data_rank(), i));
      sums[0] += part.loss_sum;
      sums[1] += static_cast<double>(part.valid_tokens);
    }
    session_.communicator().all_reduce(session_.communicator().world(), {sums, sizeof sums, DType::kFloat64, {}},
                                       Reduction::kSum, Purpose::kControl);
    const double loss = sums[1] > 0 ? sums[0] / sums[1] : 0;
    recorder_.writer().write(
        EvaluationRecord{state_.step, loss, static_cast<int64_t>(sums[1]), begin, recorder_.seconds() - begin});
    if (root() && request_.on_evaluation) request_.on_evaluation(state_.step, loss);
  }

  void save() {
    const double begin = recorder_.seconds();
    // The count of updates, and in further lines what delayed fp8 scales look back on.
    state_.generator_state = std::to_string(updates_);
    if (Fp8History* history = session_.executor().fp8_history(); history != nullptr)
      state_.generator_state += "\n" + history->to_text();
    state_.configuration = to_toml(config_);
    const LossScaler* scaler = session_.loss_scaler();
    state_.loss_scale = scaler == nullptr ? 0 : static_cast<double>(scaler->scale());
    state_.loss_scale_steps = scaler == nullptr ? 0 : scaler->growth_tracker();
    const int64_t bytes = save_checkpoint(session_, writer_, state_);
    const std::filesystem::path path = request_.run_directory / "checkpoints" / ("step-" + std::to_string(state_.step));
    recorder_.writer().write(CheckpointRecord{state_.step, begin, recorder_.seconds() - begin, bytes, path.string()});
    if (root()) result_.checkpoint = path;
  }

  void finish(bool stopped) {
    session_.interpreter().finish_parameter_gathers();
    const bool finished = state_.step >= config_.run.steps;
    if (stopped && !finished)
      recorder_.writer().write(
          EventRecord{EventKind::kStopRequested, state_.step, recorder_.seconds(), "stopped on request"});
    if (root()) {
      recorder_.writer().write(ProcessRecord{preparation_.rss_idle, rss_before_model_, peak_resident_bytes(),
                                             session_.communicator().size()});
      result_.steps = state_.step;
      result_.finished = finished;
    }
    const int64_t steps = state_.step - (preparation_.resume_from.empty() ? 0 : preparation_.resumed.step);
    recorder_.writer().write(SummaryRecord{state_.step, steps * config_.batch.global * config_.batch.sequence,
                                           recorder_.seconds(), finished});
  }

  const TrainRequest& request_;
  const RunConfig& config_;
  const Preparation& preparation_;
  MemoryLedger& ledger_;
  TrainResult& result_;
  int64_t rss_before_model_;
  RankSession session_;
  RankRecorder recorder_;
  CheckpointWriter writer_;
  RunState state_;
  int64_t updates_ = 0;  // optimizer steps applied: skipped ones do not count
  OverflowWatch overflows_;
};

// Of the ranks that are refused memory the first says so in the result.
void train_rank(const TrainRequest& request, const Preparation& preparation, Communicator& communicator,
                TrainResult& result) {
  static std::mutex refusing;
  MemoryLedger ledger(request.config.config.limits.memory);
  const RankThread thread(ledger, threads_per_rank(request.config, available_cores()));
  std::optional<RankTrainer> trainer;
  try {
    trainer.emplace(request, preparation, communicator, ledger, result);
    trainer->run();
  } catch (const OutOfMemory& refused) {
    const std::lock_guard lock(refusing);
    if (!result.refusal)
      result.refusal =
          trainer ? trainer->refusal(refused) : MemoryRefusal{communicator.rank(), refused.account(), refused.bytes(),
                                                              refused.limit(),     refused.live(),    0,
                                                              std::nullopt};
    throw;
  }
}

}  // namespace

Result<TrainResult> run_training(const TrainRequest& asked) {
  install_counting_allocator();
  TrainRequest request = asked;
  request.model = with_method(std::move(request.model), request.config.config.method);
  FIVEFOLD_ASSIGN(const Preparation preparation, prepare(request));
  TrainResult result;
  LocalOptions options;
  options.timeout_s = request.config.config.comm.timeout_s;
  options.send_mode = request.config.config.comm.rendezvous ? SendMode::kRendezvous : SendMode::kBuffered;
  options.simulate = request.simulate;
  try {
    run_ranks(request.config.degrees.world(), options,
              [&](int, Communicator& communicator) { train_rank(request, preparation, communicator, result); });
  } catch (const RankError& error) {
    if (!result.refusal || result.refusal->rank != error.rank()) throw;
  }
  return result;
}

}  // namespace fivefold
