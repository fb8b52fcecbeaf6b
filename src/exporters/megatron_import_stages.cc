#include <fmt/format.h>

#include <algorithm>

#include "base/integer.h"
#include "base/text.h"
#include "exporters/megatron_import.h"

namespace fivefold {
namespace {

class StageReader {
 public:
  StageReader(ImportSheet& sheet, ForeignSettings& arguments) : sheet_(sheet), args_(arguments) {}

  void read() {
    ParallelConfig& p = config().parallel;
    const auto layers = static_cast<int64_t>(sheet_.run.model.layers.size());
    const std::optional<int64_t> chunks = args_.integer("num-virtual-stages-per-pipeline-rank", 1, 1 << 10);
    const std::optional<int64_t> per_chunk = args_.integer("num-layers-per-virtual-pipeline-stage", 1, 1 << 16);
    const std::optional<int64_t> first = args_.integer("decoder-first-pipeline-num-layers", 0, 1 << 16);
    const std::optional<int64_t> last = args_.integer("decoder-last-pipeline-num-layers", 0, 1 << 16);
    const std::optional<std::string> layout = args_.text("pipeline-model-parallel-layout");
    if (p.pp == 1) return;
    if (layout) return read_layout(*layout);
    if (chunks) p.vpp = static_cast<int>(*chunks);
    if (per_chunk && layers > 0) {
      if (layers % (p.pp * *per_chunk) != 0)
        args_.fail("num-layers-per-virtual-pipeline-stage",
                   fmt::format("chunks of {} layers on {} stages do not divide {} layers", *per_chunk, p.pp, layers));
      else
        p.vpp = static_cast<int>(layers / (p.pp * *per_chunk));
    }
    if (p.vpp > 1) p.schedule = ScheduleKind::kInterleaved;
    if (first || last) read_ends(first, last, layers);
  }

 private:
  RunConfig& config() { return sheet_.config(); }

  void read_ends(std::optional<int64_t> first, std::optional<int64_t> last, int64_t layers) {
    ParallelConfig& p = config().parallel;
    const int64_t between = p.pp - (first ? 1 : 0) - (last ? 1 : 0);
    const int64_t left = layers - first.value_or(0) - last.value_or(0);
    if (p.vpp > 1 || between < 1 || left < 0 || left % between != 0)
      return args_.fail(first ? "decoder-first-pipeline-num-layers" : "decoder-last-pipeline-num-layers",
                        fmt::format("{} layers between them do not divide over {} stages", left, between));
    p.stages = {.cut = StageCut::kListed, .layers = std::vector<int64_t>(static_cast<size_t>(p.pp), left / between)};
    if (first) p.stages.layers.front() = *first;
    if (last) p.stages.layers.back() = *last;
  }

  // "Et*3|tt|...|tL": t is a layer, E the embedding, L the loss; X*3 is three times X, (...)*2 twice the whole.
  void read_layout(const std::string& layout) {
    ParallelConfig& p = config().parallel;
    size_t at = 0;
    std::vector<int64_t> layers = {0};
    if (!layout_part(layout, at, layers, 0) || at != layout.size())
      return args_.fail("pipeline-model-parallel-layout", fmt::format("`{}` is no layout", layout),
                        "for example Et|t*2|tL");
    if (layers.size() % static_cast<size_t>(p.pp) != 0)
      return args_.fail("pipeline-model-parallel-layout",
                        fmt::format("{} stages are no multiple of pp = {}", layers.size(), p.pp));
    p.vpp = static_cast<int>(layers.size()) / p.pp;
    if (p.vpp > 1) p.schedule = ScheduleKind::kInterleaved;
    const auto total = static_cast<int64_t>(sheet_.run.model.layers.size());
    // The cut that fivefold calls even needs no list.
    std::vector<int64_t> even(layers.size(), total / static_cast<int64_t>(layers.size()));
    for (size_t i = 0; i < static_cast<size_t>(total) % layers.size(); ++i) ++even[i];
    if (layers != even) p.stages = {.cut = StageCut::kListed, .layers = layers};
  }

  static bool layout_part(const std::string& text, size_t& at, std::vector<int64_t>& layers, int depth) {
    while (at < text.size() && text[at] != ')') {
      const std::vector<int64_t> before = layers;
      if (text[at] == '(') {
        ++at;
        if (depth > 8 || !layout_part(text, at, layers, depth + 1) || at >= text.size()) return false;
      } else if (text[at] == 't') {
        ++layers.back();
      } else if (text[at] == '|') {
        layers.push_back(0);
      } else if (std::string_view("ELm, ").find(text[at]) == std::string_view::npos) {
        return false;
      }
      ++at;
      if (at >= text.size() || text[at] != '*') continue;
      int64_t times = 0;
      for (++at; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) && times < 100000; ++at)
        times = 10 * times + (text[at] - '0');
      // What one round added, that many times.
      std::vector<int64_t> round(layers.begin() + static_cast<int64_t>(before.size()) - 1, layers.end());
      round.front() -= before.back();
      layers = before;
      for (int64_t i = 0; i < times; ++i) {
        layers.back() += round.front();
        layers.insert(layers.end(), round.begin() + 1, round.end());
        if (layers.size() > 100000) return false;
      }
    }
    return true;
  }

  ImportSheet& sheet_;
  ForeignSettings& args_;
};

}  // namespace

void read_megatron_stages(ImportSheet& sheet, ForeignSettings& arguments) { StageReader(sheet, arguments).read(); }

}  // namespace fivefold
