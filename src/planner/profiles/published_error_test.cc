// The bounds against docs/accuracy.md, whose tables `validate` writes.
#include "planner/profiles/published_error.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/text.h"

namespace fivefold {
namespace {

// The 90th percentile of a row of the table after `heading`, in percent: "| source | rows | median / p90 | ...".
double documented(const std::string& heading, std::string_view source) {
  std::ifstream file(FIVEFOLD_SOURCE_DIR "/docs/accuracy.md");
  std::string line;
  bool here = false;
  while (std::getline(file, line)) {
    here = here || line == "<!-- scores: " + heading + " -->";
    if (!here) continue;
    const std::vector<std::string> cells = split(line, '|');
    if (cells.size() < 4 || cells[1] != " " + std::string(source) + " ") continue;
    return std::stod(cells[3].substr(cells[3].find('/') + 1));
  }
  ADD_FAILURE() << "no row " << source << " under " << heading;
  return 0;
}

TEST(PublishedError, IsWhatTheScoresSayRoundedUp) {
  for (const Framework framework :
       {Framework::kMegatron, Framework::kNanotron, Framework::kFsdp2, Framework::kDeepspeed, Framework::kHf})
    for (const bool experts : {false, true}) {
      FrameworkRun run;
      run.framework = framework;
      run.model.layers.resize(1);
      if (experts) run.model.layers[0].mlp.kind = MlpKind::kMoe;
      const PublishedError error = published_error(run);
      const double memory = documented("memory", error.memory_source),
                   throughput = documented("throughput", error.throughput_source);
      EXPECT_GE(100 * error.memory, memory) << to_string(framework);
      EXPECT_GE(100 * error.throughput, throughput) << to_string(framework);
    }
}

}  // namespace
}  // namespace fivefold
