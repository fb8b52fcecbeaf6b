// Damaged records: each is refused with the file, the line and the key.
#include "record/record_reader.h"
#include "record/record_testing.h"
#include "record/record_writer.h"

namespace fivefold {
namespace {

using record_testing::example_start;
using record_testing::example_step;
using record_testing::file_text;
using record_testing::TemporaryRun;

// The text of a good record: run, program of one instruction, step 1, step 2, event, summary (lines 1 to 6).
std::string good_record() {
  TemporaryRun run;
  RecordWriter writer(run.path(), 0);
  writer.write(example_start(0, 1));
  writer.write(ProgramRecord{{{"forward", "layers.0", 0}}});
  for (int step : {1, 2}) {
    StepRecord line = example_step(step);
    line.times = {{0, 0.125, 0.0625}};
    writer.write(line);
  }
  writer.write(EventRecord{EventKind::kSkippedStep, 2, 1, "no valid tokens"});
  writer.write(SummaryRecord{2, 128, 3.5, true});
  return file_text(writer.file());
}

struct Damage {
  std::string find, replace;  // the first occurrence in the good record
  std::string error;
};

void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.find << " -> " << damage.replace; }

class RecordDamage : public testing::TestWithParam<Damage> {};

TEST_P(RecordDamage, IsRefused) {
  std::string text = good_record();
  const size_t at = text.find(GetParam().find);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, GetParam().find.size(), GetParam().replace);
  const auto record = parse_rank_record(text, "r");
  ASSERT_FALSE(record.ok());
  EXPECT_EQ(record.error().message(), GetParam().error);
}

INSTANTIATE_TEST_SUITE_P(
    Table, RecordDamage,
    testing::Values(
        Damage{R"({"line":"program")", R"({"line:"program")", "r: line 2: is not JSON"},
        Damage{R"({"line":"program")", "\n{\"line\":\"program\"", "r: line 2: is not JSON"},
        Damage{R"({"line":"event")", "[1]\n{\"line\":\"event\"", "r: line 5: is not a JSON object"},
        Damage{R"({"line":"run")", R"({"lime":"run")", "r: line 1: line: is missing or not a string"},
        Damage{R"({"line":"run")", R"({"line":"walk")", "r: line 1: a 'walk' line before the first 'run' line"},
        Damage{R"("version":1)", R"("version":2)",
               "r: line 1: run: version: 2 is not a known version (this fivefold reads version 1)"},
        Damage{R"("version":1)", R"("version":)" + std::string(200000, '[') + std::string(200000, ']'),
               "r: line 1: is nested deeper than 64 levels"},
        Damage{R"("version":1,)", "", "r: line 1: run: version: is missing (this fivefold reads version 1)"},
        Damage{R"("rank":0,"world":1)", R"("rank":1,"world":1)", "r: line 1: run: rank: 1 is not a rank of 1"},
        Damage{R"("threads":2)", R"("threads":"two")",
               R"(r: line 1: run: threads: "two" is not a whole number from 0 to 2147483647)"},
        Damage{R"("threads":2)", R"("threads":2147483648)",
               "r: line 1: run: threads: 2147483648 is not a whole number from 0 to 2147483647"},
        Damage{R"("started_at":1700000000.25)", R"("started_at":-1)",
               "r: line 1: run: started_at: -1 is not a time in seconds"},
        Damage{R"("pp":0,)", "", "r: line 1: run: coordinates: pp: is missing"},
        Damage{R"("configuration":")", R"("configuration":7,"c":")", "r: line 1: run: configuration: is not a string"},
        Damage{R"("instructions":[{)", R"("instructions":[3,{)",
               "r: line 2: program: instructions[0]: is not an object"},
        Damage{R"("instructions":[{"op":"forward","unit":"layers.0","microbatch":0}])", R"("instructions":[])",
               "r: line 3: step: times: has 1 entries, the program 0 instructions"},
        Damage{R"("loss":5.5)", R"("loss":null)", "r: line 3: step: loss: is not a number"},
        Damage{R"("valid_tokens":60)", R"("valid_tokens":-60)",
               "r: line 3: step: valid_tokens: -60 is not a whole number from 0 to 1125899906842624"},
        Damage{R"("valid_tokens":60)", R"("valid_tokens":18446744073709551615)",
               "r: line 3: step: valid_tokens: 18446744073709551615 is not a whole number from 0 to 1125899906842624"},
        Damage{R"("seconds":0.25)", R"("seconds":1e300)", "r: line 3: step: seconds: 1e+300 is not a time in seconds"},
        Damage{R"("updated":true)", R"("updated":1)", "r: line 3: step: updated: is not true or false"},
        Damage{R"("live":{"params":2000})", R"("live":{"param":2000})",
               "r: line 3: step: live.param: is unknown (did you mean params?)"},
        Damage{R"("live":{"params":2000})", R"("live":[2000])", "r: line 3: step: live: is not an object"},
        Damage{R"("kind":"all_reduce")", R"("kind":"all_reduced")",
               "r: line 3: step: traffic[0]: kind: 'all_reduced' is unknown (did you mean all_reduce?)"},
        Damage{R"("times":[[0.0,0.125,0.0625]])", R"("times":[[0.0,0.125]])",
               "r: line 3: step: times[0]: is not [begin, end, cpu]"},
        Damage{R"("times":[[0.0,0.125,0.0625]])", R"("times":[[0.5,0.125,0.0625]])",
               "r: line 3: step: times[0]: ends before it begins"},
        Damage{R"("line":"step","step":2)", R"("line":"step","step":1)", "r: line 4: step: step: 1 follows step 1"},
        Damage{R"("kind":"skipped_step")", R"("kind":"skip_step")",
               "r: line 5: event: kind: 'skip_step' is unknown (did you mean skipped_step?)"},
        Damage{R"("finished":true)", R"("finish":true)", "r: line 6: summary: finished: is missing"}));

TEST(RecordDamage, CutAnywhereItNeverCrashes) {
  const std::string text = good_record();
  const size_t first_line = text.find('\n') + 1;
  for (size_t length = 0; length < text.size(); ++length) {
    const auto record = parse_rank_record(std::string_view(text).substr(0, length), "r");
    EXPECT_EQ(record.ok(), length >= first_line) << length;
    if (record.ok()) {
      EXPECT_EQ(record->cut, text[length - 1] != '\n') << length;
    }
  }
}

TEST(RecordDamage, RefusesFilesThatDoNotBelongTogether) {
  TemporaryRun run;
  EXPECT_EQ(read_run_record(run.path()).error().where, (run.path() / "record" / "rank-0.jsonl").string());
  RecordWriter(run.path(), 0).write(example_start(0, 2));
  const std::string second = (run.path() / "record" / "rank-1.jsonl").string();
  EXPECT_EQ(read_run_record(run.path()).error().where, second);
  std::ofstream(second).close();
  EXPECT_EQ(read_run_record(run.path()).error().message(),
            second + ": has no 'run' line (the rank ended before it wrote one)");
  // Rank 0 was resumed after a session that lasted 3.5 s, rank 1 has only the first.
  RecordWriter(run.path(), 1).write(example_start(1, 2));
  RecordWriter(run.path(), 0).write(SummaryRecord{1, 64, 3.5, false});
  RunStart resumed = example_start(0, 2);
  resumed.started_at += 60;
  RecordWriter(run.path(), 0).write(resumed);
  EXPECT_EQ(read_run_record(run.path()).error().problem, "its last session is not that of rank 0");
  // Rank 1 starts a moment before rank 0.
  RunStart also = example_start(1, 2);
  also.started_at += 59.75;
  RecordWriter(run.path(), 1).write(also);
  EXPECT_TRUE(read_run_record(run.path()).ok());
  std::filesystem::copy_file(run.path() / "record" / "rank-0.jsonl", second,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(read_run_record(run.path()).error().problem, "holds the lines of rank 0");
}

}  // namespace
}  // namespace fivefold
