// The bubble of a pipeline's schedules with the durations that the engine has, and what their activations take. A run
// is replayed with the CPU time of each instruction (reconcile/recorded_step.h), since wall time on a machine with
// fewer cores than ranks says more about the machine than about the schedule.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

#include "reconcile/load.h"
#include "reconcile/measured_run.h"
#include "reconcile/recorded_step.h"
#include "schedule/replay.h"
#include "spec/rank_part.h"
#include "support/reference_run.h"

namespace fivefold::testing {
namespace {

constexpr int kStages = 4, kMicrobatches = 12, kLayers = 16;

// Layers wide enough that embedding and head, which only the outer stages have, count little: a layer multiplies
// 4 x 256^2 + 3 x 256 x 704 = 802,816 weights, a rank has four, the head 257 x 256 = 65,792, a fiftieth of that.
ModelSpec even_model() {
  ModelSpec model;
  model.name = "even";
  model.architecture = "LlamaForCausalLM";
  model.hidden = 256;
  model.vocab = 257;
  model.max_positions = 64;
  LayerSpec layer;
  layer.mixer.num_heads = 8;
  layer.mixer.num_kv_heads = 8;
  layer.mixer.head_dim = 32;
  layer.mixer.rope.rotary_dim = 32;
  layer.mlp.ffn = 704;
  model.layers.assign(kLayers, layer);
  return model;
}

struct Measured {
  StepReplay replay;             // of the Programs
  double ideal = 0;              // bubble of the schedule itself, in which a computation waits for its own inputs alone
  std::vector<StepTimes> times;  // per rank; all layers take the same
  int64_t activations = 0;       // most bytes of any rank, counted
};

class Bubble : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder() = std::filesystem::temp_directory_path() / ("fivefold-bubble-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder());
    std::ofstream text(folder() / "text.txt");
    for (int i = 0; i < 2000; ++i) text << "line " << i * i % 97 << " of a text that repeats itself in part\n";
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder()); }

  // Runs once for each schedule.
  static const Measured& measured(const std::string& schedule, int vpp) {
    static std::map<std::string, Measured> all;
    const auto found = all.find(schedule);
    return found != all.end() ? found->second : all.emplace(schedule, run(schedule, vpp)).first->second;
  }

 private:
  static std::filesystem::path& folder() {
    static std::filesystem::path path;
    return path;
  }

  static Measured run(const std::string& schedule, int vpp) {
    ConfigSources sources;
    sources.set = {"run.name=" + schedule,
                   "run.steps=5",
                   "data.train=" + (folder() / "text.txt").string(),
                   "batch.global=" + std::to_string(kMicrobatches),
                   "batch.micro=1",
                   "batch.sequence=64",
                   "parallel.threads=1",
                   "parallel.pp=" + std::to_string(kStages),
                   "parallel.vpp=" + std::to_string(vpp),
                   "parallel.schedule=" + schedule,
                   "precision.compute=fp32",
                   "comm.timeout_s=120"};
    const LoadedConfig loaded = load_config(sources);
    FIVEFOLD_CHECK(loaded.errors.empty(), loaded.errors.front().message());
    TrainRequest request;
    request.model = even_model();
    request.model_config = write_model_config(request.model);
    request.config = resolve(loaded.config, request.model).value();
    request.run_directory = folder() / schedule;
    std::filesystem::create_directories(request.run_directory);
    load_engine().value()->train(request).value();
    const PlannedRun planned =
        load_planned_run(
            {.run_directory = request.run_directory, .against = {}, .set = {}, .hardware = {}, .model = {}})
            .value();
    Measured result;
    result.times = recorded_times(planned).value();
    even_layers(planned.plan.inventory, result.times);
    result.replay = replay_step(planned.plan.pipeline_programs(), result.times);
    result.ideal = schedule_bubble(planned.plan, result.times);
    for (const RankRecord& rank : planned.record.ranks)
      for (const StepRecord& step : rank.sessions.back().steps)
        result.activations = std::max(result.activations, step.peak[Account::kActivations]);
    print(schedule, result);
    return result;
  }

  // Layers are alike: each takes the median of all, so that a rank that the machine slowed down moves no bubble.
  static void even_layers(const Inventory& inventory, std::vector<StepTimes>& times) {
    for (double PassSeconds::* field :
         {&UnitSeconds::forward, &UnitSeconds::backward, &UnitSeconds::backward_input, &UnitSeconds::backward_weight}) {
      std::vector<double> layers;
      for (const StepTimes& rank : times)
        for (int unit = 1; unit < inventory.head(); ++unit)
          if (rank[unit].*field > 0) layers.push_back(rank[unit].*field);
      for (StepTimes& rank : times)
        for (int unit = 1; unit < inventory.head() && !layers.empty(); ++unit)
          rank.units[static_cast<size_t>(unit)].*field = median(layers);
    }
  }

  // What each virtual stage's units take, replayed by schedule/replay.h, which knows no Program.
  static double schedule_bubble(const RunPlan& plan, const std::vector<StepTimes>& times) {
    const Schedule schedule = pipeline_schedule(plan.config);
    std::vector<StageTimes> stages(static_cast<size_t>(schedule.num_virtual_stages()));
    for (int rank = 0; rank < kStages; ++rank)
      for (int chunk = 0; chunk < schedule.chunks_per_rank; ++chunk) {
        const StageUnits units = rank_stages(plan.model, plan.config, rank).chunks[static_cast<size_t>(chunk)];
        StageTimes& stage = stages[static_cast<size_t>(virtual_stage(schedule, rank, chunk))];
        stage = {0, 0, 0, 0};
        for (int index = units.first; index < units.last; ++index) {
          const UnitSeconds& unit = times[static_cast<size_t>(rank)][index];
          stage.forward_s += unit.forward;
          // Where the backward is not split its length counts, not how it divides.
          stage.backward_input_s += unit.head + (unit.backward_input > 0 ? unit.backward_input : unit.backward);
          stage.backward_weight_s += unit.backward_weight;
        }
      }
    const Replay replayed = replay(schedule, stages, 0);
    double busy = 0;
    for (const RankTime& rank : replayed.ranks) busy += rank.busy_s;
    return 1 - busy / (kStages * replayed.makespan_s);
  }

  static void print(const std::string& schedule, const Measured& result) {
    std::printf("%-6s bubble %.1f %%, of its schedule %.1f %%; activations %.2f MiB; a layer's F %.2f, ",
                schedule.c_str(), 100 * result.replay.bubble(), 100 * result.ideal,
                static_cast<double>(result.activations) / (1 << 20), 1e3 * result.times[0][2].forward);
    const UnitSeconds& layer = result.times[0][2];
    if (layer.backward > 0)
      std::printf("BW %.2f ms", 1e3 * layer.backward);
    else
      std::printf("B %.2f, W %.2f ms", 1e3 * layer.backward_input, 1e3 * layer.backward_weight);
    std::printf("\n");
  }
};

// The cut that the closed forms suppose.
TEST_F(Bubble, StagesAreEven) {
  for (const Measured* result : {&measured("1f1b", 1), &measured("zbv", 2)}) {
    double least = 1e9, most = 0;
    for (const StepCost& cost : result->replay.ranks) {
      least = std::min(least, cost.busy_s());
      most = std::max(most, cost.busy_s());
    }
    EXPECT_LT(most, 1.2 * least);
  }
}

// (p - 1) / (m + p - 1) = 3 / 15; norm and optimizer, which follow, and the uneven rest move it.
TEST_F(Bubble, Of1F1BIsItsClosedForm) {
  const Measured& result = measured("1f1b", 1);
  EXPECT_NEAR(result.replay.bubble(), 0.2, 0.02);
  EXPECT_NEAR(result.replay.bubble(), result.ideal, 0.01);
}

// Closed forms: ZB1P (p - 1)(F + B - W), ZBV at best (p - 1) F of a chunk; for F = B = W 3 / 39 = 7.7 % and
// 1.5 / 37.5 = 4 %. W is shorter here, which ZB1P pays for; embedding and head add about a point.
TEST_F(Bubble, OfSchedulesFallsWithSplitBackwardsAndAgainWithAV) {
  const double plain = measured("1f1b", 1).ideal, zb1p = measured("zb1p", 1).ideal, zbv = measured("zbv", 2).ideal;
  const UnitSeconds& layer = measured("zb1p", 1).times[0][2];
  const double bubble = (kStages - 1) * (layer.forward + layer.backward_input - layer.backward_weight);
  const double busy = kMicrobatches * (layer.forward + layer.backward_input + layer.backward_weight);
  EXPECT_NEAR(zb1p, bubble / (busy + bubble), 0.025);
  EXPECT_LT(zb1p, 0.7 * plain);
  EXPECT_LT(zbv, 0.7 * zb1p);
}

// The engine's Programs keep it: a receive stands before the computation that reads it, so a Program is what its
// schedule's computations alone would be, but for the norm and the optimizer at the end, which are no bubble.
TEST_F(Bubble, OfProgramsIsThatOfTheirSchedules) {
  EXPECT_LT(measured("zb1p", 1).replay.bubble(), 0.7 * measured("1f1b", 1).replay.bubble());
  EXPECT_LT(measured("zbv", 2).replay.bubble(), 0.7 * measured("zb1p", 1).replay.bubble());
  for (const Measured* result :
       {&measured("1f1b", 1), &measured("zb1p", 1), &measured("zbv", 2), &measured("v-half", 2), &measured("v-min", 2)})
    EXPECT_NEAR(result->replay.bubble(), result->ideal, 0.03);
}

// Chunks held at p = 4 (docs/schedules.md): ZBV 2 p = 8, V-half 2 floor(6 / 2) = 6, V-min 2 floor(8 / 3) = 4.
// 1F1B holds p microbatches of twice as many layers, 8 chunks too, but a chunk that waits for W also keeps the
// gradients of its matrices' outputs, which 1F1B never does.
TEST_F(Bubble, ControlledMemoryIsThatOfTheChunksHeld) {
  const auto bytes = [](const char* schedule, int vpp) {
    return static_cast<double>(measured(schedule, vpp).activations);
  };
  EXPECT_NEAR(bytes("v-half", 2) / bytes("zbv", 2), 6.0 / 8, 0.06);
  EXPECT_NEAR(bytes("v-min", 2) / bytes("zbv", 2), 4.0 / 8, 0.06);
  EXPECT_LT(bytes("v-half", 2), bytes("1f1b", 1));
  EXPECT_LT(bytes("v-min", 2), 0.7 * bytes("1f1b", 1));
}

}  // namespace
}  // namespace fivefold::testing
