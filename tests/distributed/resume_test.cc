// A run that is stopped and resumed equals the unbroken one, bit for bit, at the same layout; at another layout it goes
// on from the same weights over the same samples.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "record/record_reader.h"
#include "store/checkpoint_reader.h"
#include "support/training_runs.h"

namespace fivefold::testing {
namespace {

using Resume = TrainingRuns;

std::map<std::string, std::vector<float>> tensors(const std::filesystem::path& checkpoints) {
  CheckpointReader reader = CheckpointReader::open(checkpoints).value();
  std::map<std::string, std::vector<float>> all;
  for (const auto& [key, tensor] : reader.tensors()) {
    std::vector<float>& values = all[key.text()];
    values.resize(static_cast<size_t>(tensor.numel()));
    EXPECT_TRUE(reader.read(key, DType::kFloat32, 0, tensor.numel(), std::as_writable_bytes(std::span(values))).ok());
  }
  return all;
}

void expect_same_bits(const std::map<std::string, std::vector<float>>& a,
                      const std::map<std::string, std::vector<float>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) {
    const auto found = b.find(name);
    ASSERT_NE(found, b.end()) << name;
    ASSERT_EQ(values.size(), found->second.size()) << name;
    EXPECT_EQ(std::memcmp(values.data(), found->second.data(), values.size() * sizeof(float)), 0) << name;
  }
}

TEST_F(Resume, EqualsTheUnbrokenRunBitForBit) {
  const std::vector<std::string> layouts[] = {
      {"parallel.dp=1", "parallel.zero=0", "batch.micro=8", "precision.compute=fp32"},
      {"parallel.dp=2", "parallel.zero=3", "batch.micro=2", "precision.compute=bf16"},
      {"parallel.dp=2", "parallel.zero=1", "batch.micro=2", "precision.compute=bf16"},
      {"parallel.dp=4", "parallel.zero=2", "parallel.shard_size=2", "batch.micro=2", "precision.compute=fp32"},
      {"parallel.dp=2", "parallel.zero=3", "batch.micro=2", "precision.compute=bf16", "parallel.tp=2",
       "parallel.sp=true"},
      {"parallel.dp=2", "parallel.zero=2", "batch.micro=2", "precision.compute=fp8", "precision.fp8=delayed",
       "precision.fp8_history=2"},
      {"parallel.dp=2", "parallel.zero=3", "batch.micro=2", "precision.compute=bf16", "method.kind=qlora",
       "method.rank=4"},
      {"parallel.dp=2", "parallel.zero=1", "batch.micro=2", "precision.compute=bf16", "parallel.tp=2",
       "method.kind=lora", "method.dora=true", "method.dropout=0.2", "method.rank=4"},
  };
  int index = 0;
  for (const auto& layout : layouts) {
    SCOPED_TRACE(layout[0] + " " + layout[1]);
    const std::string name = "unbroken" + std::to_string(index), broken = "broken" + std::to_string(index++);
    const TrainResult whole = train(request(name, layout));
    EXPECT_TRUE(whole.finished);
    const TrainResult first = train_until(request(broken, layout), 3);
    EXPECT_FALSE(first.finished);
    EXPECT_EQ(first.steps, 3);
    const TrainResult second = train(request(broken, layout));
    EXPECT_EQ(second.first_step, 3);
    EXPECT_EQ(second.steps, 6);
    EXPECT_EQ(second.loss, whole.loss);
    expect_same_bits(tensors(folder_ / name / "checkpoints"), tensors(folder_ / broken / "checkpoints"));
  }
}

TEST_F(Resume, GoesOnAtAnotherLayout) {
  const TrainResult whole =
      train(request("whole", {"parallel.dp=2", "parallel.zero=2", "batch.micro=2", "precision.compute=fp32"}));
  train_until(request("moved", {"parallel.dp=2", "parallel.zero=2", "batch.micro=2", "precision.compute=fp32"}), 3);
  const TrainResult moved =
      train(request("moved", {"parallel.dp=4", "parallel.zero=3", "batch.micro=1", "precision.compute=fp32"}));
  EXPECT_EQ(moved.first_step, 3);
  EXPECT_NEAR(moved.loss, whole.loss, 1e-5);
  const auto a = tensors(folder_ / "whole" / "checkpoints"), b = tensors(folder_ / "moved" / "checkpoints");
  for (const auto& [name, values] : a) {
    if (name.starts_with("master")) {
      EXPECT_LT(relative_difference(b.at(name), values), 1e-5) << name;
    }
  }
}

// The first scale overflows until it fits the gradients, and four steps later it is tried again: skipped steps lie on
// both sides of the stop. Scale, count towards growth, skipped steps and with them the learning rate go on where they
// were. On another layout the next step has the same scale and rate.
TEST_F(Resume, E61LossScaleGoesOnWhereItWas) {
  const std::vector<std::string> settings = {"precision.compute=fp16", "precision.loss_scale=16777216",
                                             "precision.loss_scale_growth_every=4", "run.steps=16", "batch.micro=2"};
  const auto with = [&](const std::vector<std::string>& layout) {
    std::vector<std::string> all = settings;
    all.insert(all.end(), layout.begin(), layout.end());
    return all;
  };
  const auto steps_of = [&](const std::string& name) {
    const RunRecord record = read_run_record(folder_ / name).value();
    std::vector<StepRecord> steps;
    for (const RecordedSession& session : record.ranks[0].sessions)
      steps.insert(steps.end(), session.steps.begin(), session.steps.end());
    return steps;
  };
  train(request("unbroken", with({"parallel.dp=2", "parallel.zero=2"})));
  const std::vector<StepRecord> whole = steps_of("unbroken");
  ASSERT_EQ(whole.size(), 16u);
  int skipped_before = 0, skipped_after = 0;
  for (const StepRecord& step : whole) (step.step <= 9 ? skipped_before : skipped_after) += !step.updated;
  EXPECT_GT(skipped_before, 0);
  EXPECT_GT(skipped_after, 0);
  const std::vector<std::string> layouts[] = {{"parallel.dp=2", "parallel.zero=2"},
                                              {"parallel.dp=4", "parallel.zero=3"}};
  for (const auto& layout : layouts) {
    const std::string name = "broken" + layout[0].substr(layout[0].size() - 1);
    const bool same_layout = layout == layouts[0];
    SCOPED_TRACE(layout[0]);
    train_until(request(name, with(layouts[0])), 9);
    EXPECT_EQ(train(request(name, with(layout))).first_step, 9);
    const std::vector<StepRecord> broken = steps_of(name);
    ASSERT_EQ(broken.size(), whole.size());
    // Which scales overflow depends on the layout: parts of a sum may where the whole does not.
    for (size_t i = 0; i < (same_layout ? whole.size() : 10); ++i) {
      EXPECT_EQ(broken[i].loss_scale, whole[i].loss_scale) << i;
      EXPECT_EQ(broken[i].lr, whole[i].lr) << i;
      if (same_layout) {
        EXPECT_EQ(broken[i].loss, whole[i].loss) << i;
        EXPECT_EQ(broken[i].updated, whole[i].updated) << i;
      }
    }
    if (same_layout)
      expect_same_bits(tensors(folder_ / "unbroken" / "checkpoints"), tensors(folder_ / name / "checkpoints"));
  }
}

// Saved with heads, columns and rows of the vocabulary over 4 ranks, read by 2, by 1 and by a data-parallel layout:
// each packed matrix (q | k | v, gate | up) and each KV head, which two ranks share, is there once and in order.
TEST_F(Resume, E23E37E68TensorParallelLayoutsReadEachOther) {
  const std::vector<std::string> one = {"parallel.dp=1", "batch.micro=2", "precision.compute=fp32"};
  const auto whole = tensors((train(request("whole", one)), folder_ / "whole" / "checkpoints"));
  const std::vector<std::string> layouts[] = {
      {"parallel.dp=1", "parallel.tp=4", "batch.micro=2"},
      {"parallel.dp=2", "parallel.tp=2", "parallel.sp=true", "parallel.zero=1", "batch.micro=2"},
      {"parallel.dp=2", "parallel.tp=4", "parallel.zero=3", "batch.micro=1", "parallel.sp=true"},
      {"parallel.dp=4", "parallel.zero=2", "parallel.shard_size=2", "batch.micro=1"},
      {"parallel.dp=1", "batch.micro=2"}};
  int index = 0;
  for (std::vector<std::string> first : layouts) {
    for (std::vector<std::string> second : layouts) {
      const std::string name = "moved" + std::to_string(index++);
      SCOPED_TRACE(first[0] + " " + first[1] + " to " + second[0] + " " + second[1]);
      first.push_back("precision.compute=fp32");
      second.push_back("precision.compute=fp32");
      train_until(request(name, first), 3);
      const TrainResult moved = train(request(name, second));
      EXPECT_EQ(moved.first_step, 3);
      const auto values = tensors(folder_ / name / "checkpoints");
      ASSERT_EQ(values.size(), whole.size());
      for (const auto& [tensor, right] : whole) {
        if (tensor.starts_with("master")) {
          EXPECT_LT(relative_difference(values.at(tensor), right), 1e-5) << tensor;
        }
      }
    }
  }
}

// Saved by four ranks of ZeRO-3 and read by every other split, and the other way round. Shards of the
// layouts end at different elements of the odd vocabulary's rows.
TEST_F(Resume, E67EverySplitReadsEveryOther) {
  const std::vector<std::string> sharded = {"parallel.dp=4", "parallel.zero=3", "batch.micro=2",
                                            "precision.compute=fp32"};
  const auto whole = tensors((train(request("whole", sharded)), folder_ / "whole" / "checkpoints"));
  const std::vector<std::string> layouts[] = {
      {"parallel.dp=1", "batch.micro=2"},
      {"parallel.dp=8", "parallel.zero=2", "batch.micro=1"},
      {"parallel.tp=2", "batch.micro=2"},
      {"parallel.cp=2", "parallel.zero=3", "batch.micro=2"},
      {"parallel.pp=2", "batch.micro=2"},
      {"parallel.pp=2", "parallel.vpp=2", "parallel.schedule=zbv", "batch.micro=1"},
      {"parallel.tp=2", "parallel.sp=true", "parallel.pp=2", "parallel.dp=2", "parallel.zero=1", "batch.micro=1"},
  };
  int index = 0;
  for (std::vector<std::string> other : layouts) {
    other.push_back("precision.compute=fp32");
    for (const bool forth : {true, false}) {
      const std::string name = "moved" + std::to_string(index++);
      SCOPED_TRACE((forth ? "to " : "from ") + other[0] + " " + other[1]);
      train_until(request(name, forth ? sharded : other), 3);
      EXPECT_EQ(train(request(name, forth ? other : sharded)).first_step, 3);
      const auto values = tensors(folder_ / name / "checkpoints");
      ASSERT_EQ(values.size(), whole.size());
      for (const auto& [tensor, right] : whole)
        EXPECT_LT(relative_difference(values.at(tensor), right), 1e-5) << tensor;
    }
  }
}

TEST_F(Resume, WeightsOnlyStartAtStepZero) {
  train(request("base", {"parallel.dp=2", "batch.micro=2"}));
  const TrainResult tuned =
      train(request("tuned", {"parallel.dp=2", "batch.micro=2", "optimizer.lr=1e-12", "optimizer.weight_decay=0",
                              "model.weights=" + (folder_ / "base" / "checkpoints").string()}));
  EXPECT_EQ(tuned.first_step, 0);
  const auto a = tensors(folder_ / "base" / "checkpoints"), b = tensors(folder_ / "tuned" / "checkpoints");
  for (const auto& [name, values] : a) {
    if (name.starts_with("master")) {
      EXPECT_LT(relative_difference(b.at(name), values), 1e-6) << name;
    }
  }
}

TEST_F(Resume, DamagedInputIsRefusedBeforeRanksStart) {
  EngineApi* const engine = load_engine().value();
  train(request("run", {"parallel.dp=2", "batch.micro=2"}));
  // Another model than the checkpoint's.
  TrainRequest other = request("run", {"parallel.dp=2", "batch.micro=2", "run.steps=8"});
  other.model.layers[0].mlp.ffn = 48;
  const Result<TrainResult> refused = engine->train(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("has another shape than the model's"), std::string::npos)
      << refused.error().message();
  // A vocabulary that is too small for the tokenizer.
  TrainRequest small = request("small", {});
  small.model.vocab = 100;
  const Result<TrainResult> vocabulary = engine->train(small);
  ASSERT_FALSE(vocabulary.ok());
  EXPECT_EQ(vocabulary.error().where, "data.tokenizer");
  // No data.
  const Result<TrainResult> missing = engine->train(request("missing", {"data.train=/nowhere/text.txt"}));
  ASSERT_FALSE(missing.ok());
}

}  // namespace
}  // namespace fivefold::testing
