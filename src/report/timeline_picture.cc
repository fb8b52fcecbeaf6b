#include "report/timeline_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/text.h"
#include "reconcile/measured_run.h"
#include "reconcile/recorded_step.h"
#include "schedule/picture.h"
#include "spec/rank_grid.h"
#include "spec/rank_part.h"

namespace fivefold {
namespace {

constexpr size_t kFewestColumns = 20;

// What a line shows an instruction as, with its meaning for the legend.
struct Symbol {
  std::string_view text, meaning;
};
constexpr Symbol kForward{"F", "forward"}, kBackward{"BW", "backward"}, kInput{"B", "backward of inputs"},
    kWeight{"W", "of weights"}, kLoss{"L", "loss"}, kOptimizer{"O", "optimizer"}, kLink{"~", "waiting for a link"},
    kGather{"G", "gather of weights"}, kReduction{"R", "reduction of gradients"};
constexpr Symbol kLegend[] = {kForward, kBackward, kInput, kWeight, kLoss, kOptimizer, kLink, kGather, kReduction};

// Null: waiting, or nothing that takes time.
const Symbol* symbol_of(Opcode op) {
  switch (op) {
    case Opcode::kForward:
      return &kForward;
    case Opcode::kLoss:
      return &kLoss;
    case Opcode::kBackward:
      return &kBackward;
    case Opcode::kBackwardInput:
      return &kInput;
    case Opcode::kBackwardWeight:
      return &kWeight;
    case Opcode::kOptimizerStep:
      return &kOptimizer;
    case Opcode::kWaitCount:
    case Opcode::kWaitParameters:
    case Opcode::kWaitUnshard:
    case Opcode::kWaitReduce:
    case Opcode::kSumPartialGrads:
      return &kLink;
    default:
      return nullptr;
  }
}

const Symbol* network_symbol_of(Opcode op) {
  if (op == Opcode::kUnshard || op == Opcode::kGatherParameters) return &kGather;
  return op == Opcode::kReduceGrads ? &kReduction : nullptr;
}

struct Span {
  const Symbol* symbol;
  int chunk = 0, microbatch = -1;
  double begin_s = 0, end_s = 0;
};

bool alike(const Span& a, const Span& b) {
  return a.symbol == b.symbol && a.microbatch == b.microbatch &&
         (a.chunk == b.chunk || a.microbatch < 0 || a.symbol == &kLoss);
}

int chunk_of(const std::vector<StageUnits>& chunks, int unit) {
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk)
    if (chunks[chunk].contains(unit)) return static_cast<int>(chunk);
  return 0;
}

// Instructions of one chunk and microbatch that follow one another are one span; recomputation belongs to the backward
// that needs it, accumulation to the backward before, which of the head is the loss's.
class SpanBuilder {
 public:
  explicit SpanBuilder(const TimelineLine& line) : line_(line) {}

  std::vector<Span> build() {
    for (size_t i = 0; i < line_.entries.size(); ++i) {
      const TimelineEntry& entry = line_.entries[i];
      if (entry.communication != line_.network || entry.end_s <= entry.begin_s) continue;
      const Symbol* symbol = line_.network ? network_symbol_of(entry.instruction.op) : symbol_at(i);
      if (symbol == nullptr) continue;
      const Instruction& instruction = entry.instruction;
      add({symbol, chunk_of(line_.chunks, instruction.unit), instruction.microbatch, entry.begin_s, entry.end_s});
    }
    return std::move(spans_);
  }

 private:
  const Symbol* symbol_at(size_t i) {
    const Instruction& instruction = line_.entries[i].instruction;
    if (instruction.op == Opcode::kAccumulateGrads) return backward_;
    const Symbol* symbol = symbol_of(instruction.op);
    for (size_t next = i + 1; instruction.op == Opcode::kRecompute && next < line_.entries.size(); ++next) {
      const Instruction& other = line_.entries[next].instruction;
      if (other.unit != instruction.unit || other.microbatch != instruction.microbatch) continue;
      symbol = symbol_of(other.op);
      if (symbol == &kBackward || symbol == &kInput) break;
    }
    // The embedding's backward has no halves: it ends the backward of inputs of its chunk.
    if (symbol == &kBackward && !spans_.empty() && spans_.back().symbol == &kInput) symbol = &kInput;
    if (symbol == &kBackward || symbol == &kInput || symbol == &kWeight || symbol == &kLoss) backward_ = symbol;
    return symbol;
  }
  void add(const Span& span) {
    if (!spans_.empty() && !line_.network && alike(spans_.back(), span))
      spans_.back().end_s = span.end_s;
    else
      spans_.push_back(span);
  }

  const TimelineLine& line_;
  std::vector<Span> spans_;
  const Symbol* backward_ = nullptr;  // the latest, the loss's included: what made the gradients that are accumulated
};

// The label of a span of so many columns: without its number where that has no room.
std::string label_of(const Span& span, size_t num_chunks, size_t columns) {
  if (span.symbol == &kLink) return std::string(columns, '~');
  const std::string name(span.symbol->text);
  const bool numbered = span.symbol != &kLoss && span.symbol != &kGather && span.symbol != &kReduction;
  if (span.microbatch < 0 || !numbered) return name;
  std::string label = chunk_label(name, static_cast<int>(num_chunks), span.chunk, span.microbatch);
  if (label.size() > columns) label.resize(std::min(columns, name.size()));
  return label;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

std::string shares_text(const StepReplay& replay, int rank) {
  const double links = replay.exposed_communication(rank);
  return "bubble " + percent(replay.bubble(rank)) + (links >= 0.0005 ? ", links " + percent(links) : "");
}

double end_of(const std::vector<TimelineBlock>& blocks) {
  double end = 0;
  for (const TimelineBlock& block : blocks)
    for (const TimelineLine& line : block.lines)
      for (const TimelineEntry& entry : line.entries) end = std::max(end, entry.end_s);
  return end;
}

// What separates the names of lines, and their remarks, from the picture.
size_t frame_of(const std::vector<TimelineBlock>& blocks, size_t& name_width) {
  size_t remark_width = 0;
  name_width = 7;
  for (const TimelineBlock& block : blocks)
    for (const TimelineLine& line : block.lines) {
      name_width = std::max(name_width, line.name.size());
      remark_width = std::max(remark_width, line.remark.size());
    }
  return name_width + 3 + (remark_width > 0 ? remark_width + 1 : 0);
}

// Lines on one scale, and the legend of what has been drawn.
class Canvas {
 public:
  Canvas(double end_s, size_t columns) : end_s_(end_s), columns_(columns) {}

  std::string draw(const TimelineLine& line) {
    std::string text(columns_, '.');
    const std::vector<ColumnSpan> spans = columns_of(line);
    for (const ColumnSpan& at : spans) {
      draw_span(text, at.begin, at.end, label_of(*at.span, line.chunks.size(), at.end - at.begin));
      used_.push_back(at.span->symbol->text);
      small_ = small_ || (line.chunks.size() == 2 && at.span->chunk == 1 && at.span->microbatch >= 0);
    }
    return text;
  }
  std::string scale() const {
    const std::string end = format_seconds(end_s_);
    return "0" + std::string(columns_ - std::min(columns_, 1 + end.size()), ' ') + end;
  }
  std::string legend() const {
    std::vector<std::string> texts;
    for (const Symbol& symbol : kLegend)
      if (std::find(used_.begin(), used_.end(), symbol.text) != used_.end())
        texts.push_back(std::string(symbol.text) + " " + std::string(symbol.meaning));
    if (small_) texts.push_back("small letters the second chunk");
    texts.push_back(". waiting");
    return join(texts, ", ") + "; a column is " + format_seconds(end_s_ / static_cast<double>(columns_));
  }

 private:
  struct ColumnSpan {
    const Span* span;
    size_t begin, end;
  };

  size_t column(double time_s) const {
    return static_cast<size_t>(std::llround(std::max(0.0, time_s) / end_s_ * static_cast<double>(columns_)));
  }
  // Without what is too short to be seen; where only that was between two parts of a span they are one.
  std::vector<ColumnSpan> columns_of(const TimelineLine& line) {
    spans_ = SpanBuilder(line).build();
    std::vector<ColumnSpan> result;
    for (const Span& span : spans_) {
      const size_t begin = column(span.begin_s), end = column(span.end_s);
      if (begin == end) continue;
      if (!line.network && !result.empty() && result.back().end == begin && alike(*result.back().span, span))
        result.back().end = end;
      else
        result.push_back({&span, begin, end});
    }
    return result;
  }

  double end_s_;
  size_t columns_;
  std::vector<Span> spans_;  // of the line that is being drawn
  std::vector<std::string_view> used_;
  bool small_ = false;
};

}  // namespace

TimelineBlock replay_block(std::string heading, const StepReplay& replay, const ModelSpec& model,
                           const ResolvedConfig& config) {
  TimelineBlock block{std::move(heading), {}};
  const std::vector<int> ranks = RankGrid::create(config.degrees).value().group(GroupKind::kPp, 0);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int rank = static_cast<int>(i);
    block.lines.push_back({.name = ranks.size() == 1 ? "compute" : "rank " + std::to_string(rank),
                           .entries = replay.timelines[i],
                           .chunks = rank_stages(model, config, ranks[i]).chunks,
                           .remark = shares_text(replay, rank)});
  }
  if (ranks.size() > 1) return block;
  block.lines[0].remark = "waits " + percent(replay.exposed_communication(0));
  block.lines.push_back({.name = "network",
                         .entries = replay.timelines[0],
                         .chunks = block.lines[0].chunks,
                         .remark = "",
                         .network = true});
  return block;
}

TimelineBlock measured_block(const PlannedRun& run) {
  const std::optional<size_t> median = median_steady_step(run.record);
  if (!median || !recorded_as_planned(run)) return {};
  std::vector<double> begins;
  for (const RankRecord& rank : run.record.ranks) {
    const RecordedSession& session = rank.sessions.back();
    begins.push_back(session.start.started_at + session.steps[*median].begin_s);
  }
  const double origin = *std::min_element(begins.begin(), begins.end());
  TimelineBlock block{"measured, step " + std::to_string(run.record.ranks[0].sessions.back().steps[*median].step), {}};
  for (size_t i = 0; i < run.record.ranks.size(); ++i) {
    const int rank = static_cast<int>(i);
    const StepRecord& step = run.record.ranks[i].sessions.back().steps[*median];
    TimelineLine line{.name = "rank " + std::to_string(rank),
                      .entries = {},
                      .chunks = rank_stages(run.plan.model, run.plan.config, rank).chunks,
                      .remark = ""};
    double computing = 0;
    for (size_t k = 0; k < step.times.size(); ++k) {
      const Instruction& instruction = run.plan.program_of(rank).instructions[k];
      const double begin = begins[i] - origin + step.times[k].begin_s, end = begins[i] - origin + step.times[k].end_s;
      line.entries.push_back({instruction, begin, end, false});
      if (instruction.op != Opcode::kGradNorm && computes(part_of(instruction.op))) computing += end - begin;
    }
    line.remark = "waits " + percent(1 - computing / step.seconds);
    block.lines.push_back(std::move(line));
  }
  return block;
}

std::string draw_timelines(const std::vector<TimelineBlock>& blocks, int width) {
  const double end = end_of(blocks);
  if (end <= 0) return "";
  size_t name_width = 0;
  const size_t frame = frame_of(blocks, name_width), wanted = static_cast<size_t>(std::max(width, 0));
  Canvas canvas(end, std::max(kFewestColumns, wanted > frame ? wanted - frame : 0));
  std::string picture;
  for (const TimelineBlock& block : blocks) {
    if (!block.heading.empty()) picture += block.heading + "\n";
    for (const TimelineLine& line : block.lines) {
      std::string name = line.name;
      name.resize(name_width, ' ');
      picture += name + " |" + canvas.draw(line) + "|" + (line.remark.empty() ? "" : " " + line.remark) + "\n";
    }
  }
  return picture + std::string(name_width + 2, ' ') + canvas.scale() + "\n" + canvas.legend() + "\n";
}

}  // namespace fivefold
