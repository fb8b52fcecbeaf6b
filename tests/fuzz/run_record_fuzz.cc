// One rank's run record: lines of JSON.
#include <cmath>

#include "fuzz/fuzz_target.h"
#include "record/record_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  const auto record = parse_rank_record(fuzz::as_text(data, size), "rank-0.jsonl");
  if (!record.ok()) {
    fuzz::check_error(record.error());
    return 0;
  }
  FIVEFOLD_CHECK(!record->sessions.empty());
  for (const RecordedSession& session : record->sessions) {
    FIVEFOLD_CHECK(session.start.rank == record->rank && record->rank < session.start.world);
    FIVEFOLD_CHECK(std::isfinite(last_moment_s(session)) && last_moment_s(session) >= 0);
    int64_t step = -1;
    for (const StepRecord& line : session.steps) {
      FIVEFOLD_CHECK(line.step > step);
      step = line.step;
      for (const RecordedTime& time : line.times) FIVEFOLD_CHECK(0 <= time.begin_s && time.begin_s <= time.end_s);
    }
  }
  return 0;
}
