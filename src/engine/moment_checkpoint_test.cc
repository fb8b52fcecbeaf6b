// Optimizer states of every type, and weights without a master copy, into checkpoints and out of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <mutex>

#include "engine/checkpointing.h"
#include "support/rank_sessions.h"

namespace fivefold::testing {
namespace {

ProbeRequest request_of(const ModelSpec& model, const Layout& layout, const std::vector<std::string>& settings) {
  std::vector<std::string> all = {"optimizer.kind=adamw", "optimizer.lr=1e-3", "optimizer.weight_decay=0.1"};
  all.insert(all.end(), settings.begin(), settings.end());
  return tiny_request(model, ragged_batch(model, {16, 3, 0, 7}), layout, all);
}

struct Saved {
  std::vector<std::vector<float>> master, moment1, moment2;
  std::vector<std::string> types;  // of every buffer of a rank
  bool operator==(const Saved&) const = default;
};

Saved states_of(RankSession& session) {
  Saved saved{gather_all(session, RankSession::State::kMaster),
              gather_all(session, RankSession::State::kMoment1),
              gather_all(session, RankSession::State::kMoment2),
              {}};
  for (int unit = 0; unit < session.executor().inventory().num_units(); ++unit) {
    if (!session.executor().holds(unit)) continue;
    UnitBuffers& buffers = session.executor().buffers(unit);
    for (MomentBuffer* moment : {&buffers.moment1(), &buffers.moment2()})
      for (const at::Tensor& tensor : moment->tensors())
        saved.types.push_back(std::string(c10::toString(tensor.scalar_type())));
  }
  return saved;
}

class Checkpoints : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("fivefold-states-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Two updates, a checkpoint, a third update: states at the checkpoint and after it.
  std::pair<Saved, Saved> save(const ProbeRequest& request, const std::string& name) {
    std::mutex mutex;
    std::pair<Saved, Saved> result;
    run_sessions(request, {}, [&](RankSession& session, const auto& microbatches, MemoryLedger&) {
      for (int64_t update = 1; update <= 2; ++update) session.step(microbatches, 1e-3, update);
      const CheckpointWriter writer(folder_ / name);
      save_checkpoint(session, writer, {.step = 2, .seed = 7});
      const Saved at = states_of(session);
      session.step(microbatches, 1e-3, 3);
      const Saved after = states_of(session);
      const std::lock_guard lock(mutex);
      if (session.communicator().rank() == 0) result = {at, after};
    });
    return result;
  }

  // The states after restoring, and after the third update.
  std::pair<Saved, Saved> load(const ProbeRequest& request, const std::string& name) {
    std::mutex mutex;
    std::pair<Saved, Saved> result;
    run_sessions(request, {}, [&](RankSession& session, const auto& microbatches, MemoryLedger&) {
      CheckpointReader reader = CheckpointReader::open(folder_ / name).value();
      const std::vector<std::string> types = states_of(session).types;
      EXPECT_TRUE(
          check_checkpoint(reader, session.whole_inventory(), OptimizerStates::kMoment1And2, Restore::kEverything)
              .ok());
      restore_checkpoint(session, reader, Restore::kEverything);
      const Saved at = states_of(session);
      EXPECT_EQ(at.types, types);
      session.step(microbatches, 1e-3, 3);
      const Saved after = states_of(session);
      const std::lock_guard lock(mutex);
      if (session.communicator().rank() == 0) result = {at, after};
    });
    return result;
  }

  std::filesystem::path folder_;
};

// The parameters' values without the padding behind them, which depends on the number of shards.
std::vector<std::vector<float>> without_padding(const ModelSpec& model, const std::vector<std::vector<float>>& units) {
  const Inventory inventory = build_inventory(model);
  std::vector<std::vector<float>> result;
  for (size_t u = 0; u < units.size(); ++u)
    for (const ParameterEntry& entry : inventory.units[u].parameters)
      result.emplace_back(units[u].begin() + entry.offset, units[u].begin() + entry.offset + entry.numel());
  return result;
}

void expect_equal_states(const ModelSpec& model, const Saved& a, const Saved& b) {
  EXPECT_TRUE(without_padding(model, a.master) == without_padding(model, b.master));
  EXPECT_TRUE(without_padding(model, a.moment1) == without_padding(model, b.moment1));
  EXPECT_TRUE(without_padding(model, a.moment2) == without_padding(model, b.moment2));
}

const std::vector<std::string> kStateSettings[] = {
    {"precision.compute=fp32", "precision.optimizer_state=fp32"},
    {"precision.compute=bf16", "precision.optimizer_state=bf16"},
    {"precision.compute=fp32", "precision.optimizer_state=8bit"},
    {"precision.compute=bf16", "precision.optimizer_state=8bit", "precision.master=none"},
};

TEST_F(Checkpoints, E57E76StatesSurviveSavingAndResharding) {
  const ModelSpec model = tiny_model_of_two_state_kinds();
  int number = 0;
  for (const auto& settings : kStateSettings) {
    SCOPED_TRACE(settings[0] + " " + settings[1]);
    const std::string name = "run" + std::to_string(number++);
    const auto request = [&](const Layout& layout) {
      Layout typed = layout;
      typed.compute = settings[0].substr(settings[0].find('=') + 1);
      return request_of(model, typed, settings);
    };
    const Layout home{.dp = 2, .zero = 2, .micro = 2};
    const auto [at, after] = save(request(home), name);
    const auto [loaded, next] = load(request(home), name);
    EXPECT_EQ(loaded, at);
    EXPECT_EQ(next, after);  // goes on bit for bit
    for (const Layout& other : {Layout{.dp = 1, .zero = 0, .micro = 4}, Layout{.dp = 4, .zero = 3},
                                Layout{.dp = 4, .zero = 1, .shard_size = 2},
                                Layout{.dp = 1, .zero = 0, .micro = 1, .accumulation = 4, .pp = 2}}) {
      SCOPED_TRACE(other.name());
      expect_equal_states(model, load(request(other), name).first, at);
    }
  }
}

// Tensor parallelism cuts blocks: its ranks' own blocks are saved, go on bit for bit at the same degree whatever the
// rest of the layout is, and are rounded anew at another degree.
TEST_F(Checkpoints, E57TensorParallelStatesSurvive) {
  const ModelSpec model = tiny_model_of_two_state_kinds(131);
  const std::vector<std::string> settings = {"precision.compute=fp32", "precision.optimizer_state=8bit"};
  const Layout home{.dp = 2, .zero = 2, .micro = 2, .tp = 2};
  const auto [at, after] = save(request_of(model, home, settings), "tp");
  const auto [loaded, next] = load(request_of(model, home, settings), "tp");
  EXPECT_EQ(loaded, at);
  EXPECT_EQ(next, after);
  expect_equal_states(model, load(request_of(model, {.dp = 1, .zero = 0, .micro = 4, .tp = 2}, settings), "tp").first,
                      at);
  for (const Layout& other :
       {Layout{.dp = 2, .zero = 3, .micro = 2}, Layout{.dp = 1, .zero = 0, .micro = 4, .tp = 4}}) {
    SCOPED_TRACE(other.name());
    const Saved moved = load(request_of(model, other, settings), "tp").first;
    EXPECT_TRUE(without_padding(model, moved.master) == without_padding(model, at.master));
    const auto a = without_padding(model, moved.moment1), b = without_padding(model, at.moment1);
    for (size_t t = 0; t < a.size(); ++t) {
      const float largest = std::abs(
          *std::max_element(b[t].begin(), b[t].end(), [](float x, float y) { return std::abs(x) < std::abs(y); }));
      // Half a part of the map's last decade, of the largest of a block.
      for (size_t i = 0; i < a[t].size(); ++i) ASSERT_NEAR(a[t][i], b[t][i], largest * 0.9 / 128 * 1.01) << t;
    }
  }
}

// A checkpoint with other state types is converted; the run's own types stay.
TEST_F(Checkpoints, E76StatesOfAnotherTypeAreConverted) {
  const ModelSpec model = tiny_model_of_two_state_kinds();
  const Layout layout{.dp = 2, .zero = 1, .micro = 2, .compute = "bf16"};
  const Saved exact = save(request_of(model, layout, {"precision.optimizer_state=fp32"}), "fp32").first;
  for (const char* states : {"bf16", "8bit"}) {
    SCOPED_TRACE(states);
    const std::string setting = std::string("precision.optimizer_state=") + states;
    const Saved rounded = load(request_of(model, layout, {setting}), "fp32").first;
    EXPECT_EQ(rounded.master, exact.master);
    EXPECT_NE(rounded.moment1, exact.moment1);
    const Saved low = save(request_of(model, layout, {setting}), states).first;
    const Saved back = load(request_of(model, layout, {"precision.optimizer_state=fp32"}), states).first;
    EXPECT_EQ(back.moment1, low.moment1);
    EXPECT_EQ(back.moment2, low.moment2);
  }
}

}  // namespace
}  // namespace fivefold::testing
