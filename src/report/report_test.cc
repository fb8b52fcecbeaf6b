#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "reconcile/reconcile_testing.h"
#include "report/event.pb.h"
#include "report/tensorboard.h"
#include "report/trace.h"

namespace fivefold {
namespace {

using namespace reconcile_testing;

class ReportTest : public testing::Test {
 protected:
  ReportTest() : folder_(std::filesystem::temp_directory_path() / ("fivefold-report-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~ReportTest() override { std::filesystem::remove_all(folder_); }

  static std::string text(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  }

  std::filesystem::path folder_;
};

// ---- TensorBoard ----

// RFC 3720, B.4: 32 bytes of zeros, of ones, and ascending ones; and the usual check value of the digits.
TEST(Crc32c, OfPublishedVectors) {
  std::string ascending;
  for (char i = 0; i < 32; ++i) ascending.push_back(i);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(ascending), 0x46DD794Eu);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
}

// 0xE3069283 rotated right by 15 bits is 0x2507C60D; plus 0xA282EAD8, modulo 2^32.
TEST(Crc32c, IsMaskedAsEventFilesDo) { EXPECT_EQ(masked_crc32c("123456789"), 0xC78AB0E5u); }

uint64_t integer_at(const std::string& bytes, size_t at, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes.at(at + i))) << (8 * i);
  return value;
}

std::vector<tensorboard::Event> events_of(const std::string& bytes) {
  std::vector<tensorboard::Event> events;
  for (size_t at = 0; at < bytes.size();) {
    const uint64_t length = integer_at(bytes, at, 8);
    EXPECT_EQ(integer_at(bytes, at + 8, 4), masked_crc32c(std::string_view(bytes).substr(at, 8)));
    const std::string event = bytes.substr(at + 12, length);
    EXPECT_EQ(integer_at(bytes, at + 12 + length, 4), masked_crc32c(event));
    events.emplace_back();
    EXPECT_TRUE(events.back().ParseFromString(event));
    at += 16 + length;
  }
  return events;
}

TEST_F(ReportTest, EventFilesHoldTheCurvesOfASession) {
  PlannedRun run = example_run();
  run.record.ranks[0].sessions[0].evaluations.push_back({6, 2.75, 128, 2.2, 0.1});
  ASSERT_TRUE(write_tensorboard(run.record.ranks[0], folder_ / "metrics").ok());
  const auto events = events_of(text(folder_ / "metrics" / "events.out.tfevents.1000.fivefold"));
  ASSERT_EQ(events.size(), 8u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  // Step 2 begins 1.2 s after the start at 1000 and takes 0.1 s for 128 tokens; its loss is 5.
  EXPECT_EQ(events[2].step(), 2);
  EXPECT_NEAR(events[2].wall_time(), 1001.3, 1e-9);
  ASSERT_EQ(events[2].summary().value_size(), 4);
  EXPECT_EQ(events[2].summary().value(0).tag(), "loss");
  EXPECT_EQ(events[2].summary().value(0).simple_value(), 5.0f);
  EXPECT_EQ(events[2].summary().value(1).tag(), "grad_norm");
  // A learning rate of zero is a value, not an absent one.
  EXPECT_EQ(events[2].summary().value(2).tag(), "lr");
  EXPECT_TRUE(events[2].summary().value(2).has_simple_value());
  EXPECT_EQ(events[2].summary().value(3).tag(), "tokens_per_s");
  EXPECT_EQ(events[2].summary().value(3).simple_value(), 1280.0f);
  EXPECT_EQ(events[7].summary().value(0).tag(), "validation_loss");
  EXPECT_EQ(events[7].summary().value(0).simple_value(), 2.75f);
}

TEST_F(ReportTest, AFolderThatCannotBeMadeIsAnError) {
  std::ofstream(folder_ / "metrics") << "a file";
  EXPECT_FALSE(write_tensorboard(example_run().record.ranks[0], folder_ / "metrics").ok());
  EXPECT_FALSE(write_trace(example_run(), folder_ / "none").ok());
}

// ---- trace ----

TEST_F(ReportTest, TraceShowsMeasuredBesidePlanned) {
  PlannedRun run = example_run();
  // Rank 1 starts its clock half a second earlier: its steps begin at the same moments.
  run.record.ranks[1].sessions[0].start.started_at -= 0.5;
  for (StepRecord& step : steps_of(run, 1)) step.begin_s += 0.5;
  for (StepRecord& step : steps_of(run, 0))
    step.calls = {{CollectiveKind::kReduceScatter, GroupKind::kShard, Purpose::kGradients, 3000, 0.05, 0.06, 0.004}};
  ASSERT_TRUE(write_trace(run, folder_, {.num_steps = 2}).ok());
  const auto trace = nlohmann::json::parse(text(folder_ / "trace.json"));
  int measured = 0, planned = 0, calls = 0;
  std::set<std::string> names;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "M") {
      names.insert(event["args"]["name"].get<std::string>());
      continue;
    }
    EXPECT_GE(event["ts"].get<double>(), -1e-3);
    (event["pid"] == 1 ? measured : planned) += 1;
    if (event["name"] == "reduce_scatter gradients") {
      ++calls;
      EXPECT_EQ(event["tid"], 1);
    }
    // The forward of the first drawn step, 3: it follows 2 ms of token count and 5 ms of waiting.
    if (event["name"] == "forward layers.0 #0" && event["args"]["step"] == 3) {
      EXPECT_NEAR(event["ts"].get<double>(), 7000, 1);
      EXPECT_NEAR(event["dur"].get<double>(), 20000, 1);
      EXPECT_EQ(event["cat"], "forward");
    }
  }
  // 8 instructions, 2 steps, 2 ranks; and one call per step of rank 0.
  EXPECT_EQ(planned, 32);
  EXPECT_EQ(measured, 34);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(names, (std::set<std::string>{"measured", "planned", "rank 0", "rank 1", "rank 0 collectives",
                                          "rank 1 collectives"}));
}

TEST_F(ReportTest, TraceWithoutHardwareIsOfTheRunAlone) {
  PlannedRun run = example_run();
  run.plan.time.reset();
  const auto trace = nlohmann::json::parse(trace_json(run));
  for (const auto& event : trace["traceEvents"]) EXPECT_EQ(event["pid"], 1);
}

// Two pipeline ranks: the first computes for 2 s, the second from then on for 3 s; 0.5 s of a transfer between them.
StepReplay two_stages() {
  const auto entry = [](Opcode op, double begin, double end, bool communication) {
    TimelineEntry made{{}, begin, end, communication};
    made.instruction.op = op;
    made.instruction.unit = 1;
    made.instruction.microbatch = 0;
    return made;
  };
  StepReplay replay;
  replay.timelines = {{entry(Opcode::kForward, 0, 2, false), entry(Opcode::kSendActivations, 2, 2.5, true)},
                      {entry(Opcode::kRecvActivations, 0, 2.5, false), entry(Opcode::kForward, 2.5, 5.5, false)}};
  return replay;
}

TEST_F(ReportTest, PlannedTraceHasATrackForEachPipelineRank) {
  const PlannedRun run = example_run();
  ASSERT_TRUE(write_planned_trace(two_stages(), run.plan.inventory, folder_ / "plan.json").ok());
  const auto trace = nlohmann::json::parse(text(folder_ / "plan.json"));
  std::map<std::string, std::pair<double, double>> spans;
  for (const auto& event : trace["traceEvents"]) {
    EXPECT_EQ(event["pid"], 2);
    if (event["ph"] == "X")
      spans[event["tid"].dump() + " " + event["cat"].get<std::string>()] = {event["ts"], event["dur"]};
  }
  EXPECT_EQ(spans, (std::map<std::string, std::pair<double, double>>{{"0 forward", {0, 2e6}},
                                                                     {"1 pipeline", {2e6, 0.5e6}},
                                                                     {"2 pipeline", {0, 2.5e6}},
                                                                     {"2 forward", {2.5e6, 3e6}}}));
  EXPECT_FALSE(write_planned_trace(two_stages(), run.plan.inventory, folder_ / "none" / "plan.json").ok());
}

// Of a run with a pipeline each rank has the plan of its own stage beside what it measured.
TEST_F(ReportTest, TraceShowsEachRanksOwnPlan) {
  PlannedRun run = example_run();
  run.plan.config.degrees = {.pp = 2};
  run.plan.time->replay = two_stages();
  const auto trace = nlohmann::json::parse(trace_json(run, {.num_steps = 1}));
  std::map<int, int> forwards;  // planned seconds, by track
  for (const auto& event : trace["traceEvents"])
    if (event["ph"] == "X" && event["pid"] == 2 && event["cat"] == "forward")
      forwards[event["tid"]] = static_cast<int>(std::lround(event["dur"].get<double>() / 1e6));
  EXPECT_EQ(forwards, (std::map<int, int>{{0, 2}, {2, 3}}));
}

}  // namespace
}  // namespace fivefold
