// The entry point of the engine's shared library; load_engine (engine_loader.cc, in the program) finds it by name.
#include "engine/calibrate.h"
#include "engine/engine_api.h"
#include "engine/generate/generate.h"
#include "engine/probe.h"
#include "engine/trainer.h"

namespace fivefold {
namespace {

class Engine final : public EngineApi {
 public:
  Result<TrainResult> train(const TrainRequest& request) override { return run_training(request); }
  Result<ProbeResult> probe(const ProbeRequest& request) override { return run_probe(request); }
  Measurements measure(const MeasureRequest& request) override { return run_measurements(request); }
  Result<GenerateResult> generate(const GenerateRequest& request) override { return run_generation(request); }
};

}  // namespace
}  // namespace fivefold

extern "C" fivefold::EngineApi* fivefold_engine_v1() {
  static fivefold::Engine engine;
  return &engine;
}
