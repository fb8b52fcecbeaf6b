// train_text FOLDER TEXT: trains the model of FOLDER/config.json as FOLDER/run.toml says on the bytes of TEXT, then
// holds the run against its plan. The run's files go to ./train_text. Free of Torch: the engine is loaded by
// load_engine().
#include <cstdio>
#include <exception>
#include <filesystem>

#include "engine/engine_api.h"
#include "reconcile/load.h"
#include "spec/run_config_io.h"
#include "spec/validate.h"

using namespace fivefold;

namespace {

// What `fivefold train` would be given, checked.
Result<TrainRequest> make_request(const std::filesystem::path& folder, const std::string& text) {
  const std::string model = (folder / "config.json").string();
  const LoadedConfig loaded = load_config(
      {.file = folder / "run.toml", .set = {"model.config=" + model, "data.train=" + text, "data.validation=" + text}});
  if (!loaded.errors.empty()) return loaded.errors.front();
  TrainRequest request;
  FIVEFOLD_ASSIGN(request.model, read_model_config(model));
  for (const auto& errors : {validate_run(loaded.config), validate_engine(request.model, loaded.config)})
    if (!errors.empty()) return errors.front();
  request.model_config = write_model_config(request.model);
  FIVEFOLD_ASSIGN(request.config, resolve(loaded.config, request.model));
  request.run_directory = loaded.config.run.name;
  std::filesystem::create_directories(request.run_directory);
  return request;
}

// What is bounded: memory and traffic of each rank. Times and the memory of the process need this machine's hardware
// file, which `fivefold calibrate` measures; to_text() would print everything.
Status compare_with_plan(const std::filesystem::path& run_directory) {
  FIVEFOLD_ASSIGN(const PlannedRun run, load_planned_run({.run_directory = run_directory}));
  FIVEFOLD_ASSIGN(const Reconciliation reconciliation, reconcile(run));
  bool pass = true;
  for (const ReconcileRow& row : reconciliation.rows) {
    if (!row.bound) continue;
    std::printf("rank %d: %-44s predicted %9.0f, measured %9.0f: %s\n", row.rank, row.quantity.c_str(), *row.predicted,
                row.measured, row.pass() ? "ok" : "outside its bound");
    pass = pass && row.pass();
  }
  if (!pass) return Error{run_directory.string(), "a figure is outside its bound", ""};
  return Ok{};
}

Status train(const std::filesystem::path& folder, const std::string& text) {
  FIVEFOLD_ASSIGN(TrainRequest request, make_request(folder, text));
  request.on_step = [](const TrainProgress& step) {
    std::printf("step %lld of %lld: loss %.4f, gradient norm %.3f\n", static_cast<long long>(step.step),
                static_cast<long long>(step.total_steps), step.loss, step.grad_norm);
  };
  request.on_evaluation = [](int64_t step, double loss) {
    std::printf("step %lld: validation loss %.4f\n", static_cast<long long>(step), loss);
  };
  request.on_message = [](const std::string& message) { std::fprintf(stderr, "%s\n", message.c_str()); };

  FIVEFOLD_ASSIGN(EngineApi * engine, load_engine());
  FIVEFOLD_ASSIGN(const TrainResult result, engine->train(request));
  std::printf("%lld steps; the checkpoint is %s\n", static_cast<long long>(result.steps), result.checkpoint.c_str());

  return compare_with_plan(request.run_directory);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: train_text FOLDER TEXT\n");
    return 2;
  }
  try {
    const Status status = train(argv[1], argv[2]);
    if (status.ok()) return 0;
    std::fprintf(stderr, "train_text: %s\n", status.error().message().c_str());
    return 2;
  } catch (const std::exception& error) {  // what failed while ranks ran
    std::fprintf(stderr, "train_text: %s\n", error.what());
    return 4;
  }
}
