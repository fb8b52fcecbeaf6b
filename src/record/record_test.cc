#include <sys/resource.h>

#include <cerrno>
#include <cmath>
#include <csignal>

#include "record/record_reader.h"
#include "record/record_testing.h"
#include "record/record_writer.h"

namespace fivefold {
namespace {

using record_testing::example_start;
using record_testing::example_step;
using record_testing::file_text;
using record_testing::TemporaryRun;

RankRecord written_and_read(const TemporaryRun& run) {
  auto record = read_run_record(run.path());
  EXPECT_TRUE(record.ok()) << (record.ok() ? "" : record.error().message());
  return record.ok() ? record->ranks[0] : RankRecord{};
}

// The lines on disk, key by key: other programs read them.
TEST(RecordWriter, WritesTheDocumentedLines) {
  TemporaryRun run;
  RecordWriter writer(run.path(), 0);
  writer.write(example_start(0, 1));
  writer.write(ProgramRecord{{{"forward", "layers.0", 1}, {"grad_norm", "", -1}}});
  StepRecord step = example_step(1);
  step.times = {{0, 0.125, 0.0625}, {0.125, 0.25, 0}};
  step.calls = {{CollectiveKind::kAllReduce, GroupKind::kDpCp, Purpose::kLoss, 8, -0.125, 0.1875, 0.0625}};
  writer.write(step);
  writer.write(EvaluationRecord{1, 5.25, 128, 1.0, 0.5});
  writer.write(CheckpointRecord{1, 2.0, 0.75, 12000, "checkpoints/step-1"});
  writer.write(ProcessRecord{1 << 20, 2 << 20, 3 << 20, 2});
  writer.write(EventRecord{EventKind::kStopRequested, 1, 3.0, "SIGTERM"});
  writer.write(SummaryRecord{1, 64, 3.5, false});
  EXPECT_EQ(
      file_text(run.path() / "record" / "rank-0.jsonl"),
      R"({"line":"run","version":1,"fivefold":"0.1.0","rank":0,"world":1,"coordinates":{"tp":0,"cp":0,"dp":0,"pp":0,)"
      R"("etp":0,"ep":0,"edp":0,"shard":0,"replicate":0},"configuration":"[run]\nname = \"tiny\"\n",)"
      R"("model_config":"{}","parameters":1000,"embedding_parameters":100,"threads":2,"instruction_set":"avx512",)"
      R"("started_at":1700000000.25,"resumed_from":null})"
      "\n"
      R"({"line":"program","instructions":[{"op":"forward","unit":"layers.0","microbatch":1},)"
      R"({"op":"grad_norm","unit":"","microbatch":-1}]})"
      "\n"
      R"({"line":"step","step":1,"loss":5.5,"grad_norm":1.25,"lr":0.0003,"tokens":64,"valid_tokens":60,)"
      R"("samples_consumed":4,"updated":true,"begin":0.5,"seconds":0.25,"live":{"params":2000},)"
      R"("peak":{"params":2000,"workspace":4096},"at_peak":{"params":2000},"peak_total":6000,)"
      R"("traffic":[{"kind":"all_reduce","group":"dp_cp","purpose":"loss","calls":1,"bytes":8}],)"
      R"("collective_seconds":{"all_reduce":0.0125},"times":[[0.0,0.125,0.0625],[0.125,0.25,0.0]],)"
      R"("calls":[{"kind":"all_reduce","group":"dp_cp","purpose":"loss","bytes":8,"begin":-0.125,"end":0.1875,)"
      R"("exposed":0.0625}]})"
      "\n"
      R"({"line":"evaluation","step":1,"loss":5.25,"tokens":128,"begin":1.0,"seconds":0.5})"
      "\n"
      R"({"line":"checkpoint","step":1,"begin":2.0,"seconds":0.75,"bytes":12000,"path":"checkpoints/step-1"})"
      "\n"
      R"({"line":"process","rss_idle":1048576,"rss_before_model":2097152,"rss_peak":3145728,"ranks":2})"
      "\n"
      R"({"line":"event","kind":"stop_requested","step":1,"begin":3.0,"text":"SIGTERM"})"
      "\n"
      R"({"line":"summary","steps":1,"tokens":64,"seconds":3.5,"finished":false})"
      "\n");
}

TEST(RunRecord, EveryLineComesBackAsWritten) {
  TemporaryRun run;
  RunStart start = example_start(0, 1);
  start.resumed_from = 7;
  StepRecord step = example_step(8);
  step.updated = false;
  step.times = {{0, 0.125, 0.0625}, {0.125, 0.25, 0}};
  step.calls = {{CollectiveKind::kAllGather, GroupKind::kShard, Purpose::kParameters, 512, -0.125, 0.1875, 0.0625}};
  const EvaluationRecord evaluation{8, 5.25, 128, 1.0, 0.5};
  const CheckpointRecord checkpoint{8, 2.0, 0.75, 12000, "checkpoints/step-8"};
  const ProcessRecord process{10, 20, 30, 2};
  const EventRecord event{EventKind::kNonFinite, 8, 3.0, "loss is NaN"};
  const ProgramRecord program{{{"forward", "layers.0", 1}, {"grad_norm", "", -1}}};
  {
    RecordWriter writer(run.path(), 0);
    writer.write(start);
    writer.write(program);
    writer.write(step);
    writer.write(evaluation);
    writer.write(checkpoint);
    writer.write(process);
    writer.write(event);
    writer.write(SummaryRecord{8, 64, 3.5, false});
  }
  const RankRecord record = written_and_read(run);
  ASSERT_EQ(record.sessions.size(), 1u);
  const RecordedSession& session = record.sessions[0];
  EXPECT_EQ(session.start.resumed_from, 7);
  EXPECT_EQ(session.start.configuration, start.configuration);
  EXPECT_EQ(session.start.started_at, start.started_at);
  EXPECT_EQ(session.start.instruction_set, "avx512");
  EXPECT_EQ(session.program, program.instructions);
  EXPECT_EQ(session.steps, std::vector{step});
  EXPECT_EQ(session.evaluations, std::vector{evaluation});
  EXPECT_EQ(session.checkpoints, std::vector{checkpoint});
  EXPECT_EQ(session.processes, std::vector{process});
  EXPECT_EQ(session.events, std::vector{event});
  ASSERT_TRUE(session.summary);
  EXPECT_EQ(session.summary->steps, 8);
  EXPECT_FALSE(session.summary->finished);
  EXPECT_FALSE(record.cut);
}

TEST(RunRecord, KeepsNumbersThatJsonDoesNotHave) {
  TemporaryRun run;
  RecordWriter writer(run.path(), 0);
  writer.write(example_start(0, 1));
  StepRecord step = example_step(1);
  step.loss = std::nan("");
  step.grad_norm = -std::numeric_limits<double>::infinity();
  writer.write(step);
  const RankRecord record = written_and_read(run);
  EXPECT_TRUE(std::isnan(record.sessions.at(0).steps.at(0).loss));
  EXPECT_EQ(record.sessions.at(0).steps.at(0).grad_norm, -std::numeric_limits<double>::infinity());
}

TEST(RunRecord, AResumedRunStartsASecondSession) {
  TemporaryRun run;
  {
    RecordWriter writer(run.path(), 0);
    writer.write(example_start(0, 1));
    writer.write(example_step(1));
  }
  // Killed in the middle of a line.
  std::ofstream(run.path() / "record" / "rank-0.jsonl", std::ios::app) << R"({"line":"step","st)";
  EXPECT_TRUE(written_and_read(run).cut);
  EXPECT_EQ(written_and_read(run).sessions.at(0).steps.size(), 1u);
  RunStart again = example_start(0, 1);
  again.resumed_from = 1;
  again.started_at += 60;
  RecordWriter writer(run.path(), 0);
  writer.write(again);
  writer.write(example_step(2));
  const RankRecord record = written_and_read(run);
  ASSERT_EQ(record.sessions.size(), 2u);
  EXPECT_FALSE(record.cut);
  EXPECT_EQ(record.sessions[1].steps.at(0).step, 2);
}

TEST(RunRecord, ReadsTheRanksOfTheLastSession) {
  TemporaryRun run;
  for (int rank = 0; rank < 3; ++rank) RecordWriter(run.path(), rank).write(example_start(rank, 3));
  EXPECT_EQ(read_run_record(run.path())->ranks.size(), 3u);
  // Resumed on two ranks.
  for (int rank = 0; rank < 2; ++rank) {
    RunStart start = example_start(rank, 2);
    start.started_at += 60;
    RecordWriter(run.path(), rank).write(start);
  }
  const auto record = read_run_record(run.path());
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->ranks.size(), 2u);
  EXPECT_EQ(record->ranks[1].sessions.size(), 2u);
}

TEST(RunRecord, IgnoresWhatItDoesNotKnow) {
  TemporaryRun run;
  RecordWriter(run.path(), 0).write(example_start(0, 1));
  std::ofstream(run.path() / "record" / "rank-0.jsonl", std::ios::app)
      << R"({"line":"weather","degrees":21})" << "\n"
      << R"({"line":"summary","steps":3,"tokens":4,"seconds":5,"finished":true,"mood":"good"})" << "\n";
  EXPECT_EQ(written_and_read(run).sessions.at(0).summary->steps, 3);
}

TEST(RecordWriter, AFullDiskNamesTheFile) {
  TemporaryRun run;
  std::filesystem::create_directories(run.path() / "record");
  // /dev/full answers every write with ENOSPC.
  std::filesystem::create_symlink("/dev/full", run.path() / "record" / "rank-0.jsonl");
  RecordWriter writer(run.path(), 0);
  try {
    writer.write(example_start(0, 1));
    FAIL() << "the write succeeded";
  } catch (const RecordError& error) {
    EXPECT_EQ(error.error_number(), ENOSPC);
    EXPECT_EQ(std::string(error.what()),
              "run record " + writer.file().string() + ": cannot write: No space left on device");
  }
}

TEST(RecordWriter, AWriteThatFailsHalfwayLeavesNothing) {
  TemporaryRun run;
  RecordWriter writer(run.path(), 0);
  writer.write(example_start(0, 1));
  const std::string before = file_text(writer.file());
  // The file may grow by 100 bytes: less than the next line.
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{before.size() + 100, limit.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(writer.write(example_step(1)), RecordError);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(file_text(writer.file()), before);
  writer.write(example_step(1));
  EXPECT_EQ(written_and_read(run).sessions.at(0).steps.size(), 1u);
}

TEST(RecordWriter, WritingAfterCloseThrows) {
  TemporaryRun run;
  RecordWriter writer(run.path(), 0);
  writer.write(example_start(0, 1));
  writer.close();
  EXPECT_THROW(writer.write(example_step(1)), RecordError);
  EXPECT_EQ(written_and_read(run).sessions.at(0).steps.size(), 0u);
}

TEST(RecordWriter, AFolderInTheWayThrows) {
  TemporaryRun run;
  std::filesystem::create_directories(run.path() / "record" / "rank-0.jsonl");
  EXPECT_THROW(RecordWriter(run.path(), 0), RecordError);
  std::ofstream(run.path() / "file") << "x";
  EXPECT_THROW(RecordWriter(run.path() / "file", 0), RecordError);
}

}  // namespace
}  // namespace fivefold
