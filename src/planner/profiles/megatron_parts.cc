#include "planner/profiles/megatron_parts.h"

#include <algorithm>

#include "base/integer.h"

namespace fivefold {
namespace {

double number(int64_t value) { return static_cast<double>(value); }

// Layers of each of the p v virtual stages, in the order of the pipeline. Of stages that are listed whole, chunks
// differ by a layer: the first stage's short one is its first, beside the token table, the last stage's its last.
std::vector<int64_t> virtual_stages(const FrameworkRun& run) {
  const int64_t layers = static_cast<int64_t>(run.model.layers.size()), stages = run.pp * run.vpp;
  if (static_cast<int64_t>(run.stage_layers.size()) == stages) return run.stage_layers;
  std::vector<int64_t> counts(static_cast<size_t>(stages), div_floor(layers, stages));
  for (int64_t i = 0; i < layers % stages; ++i) ++counts[static_cast<size_t>(i)];
  if (run.stage_layers.empty()) return counts;
  for (int64_t i = 0; i < stages; ++i) {
    const int64_t stage = i % run.pp, of_stage = run.stage_layers[static_cast<size_t>(stage)];
    const auto before = [&](int64_t chunks) {
      return stage == run.pp - 1 ? div_ceil(of_stage * chunks, run.vpp) : div_floor(of_stage * chunks, run.vpp);
    };
    counts[static_cast<size_t>(i)] = before(div_floor(i, run.pp) + 1) - before(div_floor(i, run.pp));
  }
  return counts;
}

// Of the chunks whose forward a stage has run, and not their backward, how many are of each chunk: it runs a group of
// microbatches through one chunk, then the same through the next.
std::vector<double> chunks_in_flight(const FrameworkRun& run, int64_t stage) {
  const int64_t p = run.pp, v = run.vpp, m = run.microbatches;
  const int64_t group = run.megatron.chunk_group > 0 ? int64_t{run.megatron.chunk_group} : p;
  const int64_t forwards = std::min(m * v, 2 * (p - stage - 1) + (v - 1) * group + 1);
  std::vector<double> flight(static_cast<size_t>(v));
  for (int64_t forward = 0; forward < forwards; ++forward) {
    // The last group may have fewer microbatches.
    const int64_t in_group = std::min(group, m - div_floor(forward, group * v) * group);
    flight[static_cast<size_t>(div_floor(forward % (group * v), in_group))] += 1;
  }
  return flight;
}

double microbatches_in_flight(const FrameworkRun& run, int64_t stage) {
  const double flight = number(std::min(run.microbatches, run.pp - stage));
  switch (run.vocabulary_stages) {
    case VocabularyStages::kLast:
      return flight;
    case VocabularyStages::kOneMore:
      return flight + 1;
    case VocabularyStages::kTwoMore:
      return flight + 2;
    case VocabularyStages::kInterlaced:
      return flight * 1.5;
  }
  return flight;
}

}  // namespace

int64_t sequence_parts(const FrameworkRun& run) { return run.sp ? run.tp : 1; }

std::vector<MegatronChunk> megatron_chunks(const FrameworkRun& run, int64_t stage) {
  const std::vector<int64_t> counts = virtual_stages(run);
  std::vector<double> flight(1, 1.0);
  if (run.pp > 1 && run.vpp > 1)
    flight = chunks_in_flight(run, stage);
  else if (run.pp > 1)
    flight[0] = microbatches_in_flight(run, stage);
  std::vector<MegatronChunk> chunks;
  for (int64_t at = 0, first = 0; at < static_cast<int64_t>(counts.size()); ++at) {
    const int64_t count = counts[static_cast<size_t>(at)];
    if (at % run.pp == stage) chunks.push_back({first, count, flight[static_cast<size_t>(div_floor(at, run.pp))]});
    first += count;
  }
  return chunks;
}

}  // namespace fivefold
