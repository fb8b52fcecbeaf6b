// Steps on a simulated network against their plan: network_prediction [--hardware FILE] [--only N] [--overlap 1]
//
// Without --overlap: 20 layouts of dp with ZeRO, tensor, sequence and context parallelism and pipelines on slow links,
// predicted as `train` predicts them. Beside step times: what rank 0's thread waited for communication in that step and
// what the plan lets it wait, a pipeline's bubble included. Exit 5 when the median error of the steps is over 15 %.
//
// With it: what overlap gains. Per layout and kind of call, the seconds of rank 0's calls and how many of them
// computation hides, measured and planned; of ZeRO-3 also the steps with and without gathers ahead of use.
//
// Measured: the fastest of 5 steps, as measured_step.h says. Calls take milliseconds, so that threads that wake late on
// a busy machine do not decide; still it must be quiet: more ranks than cores wait for each other.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>

#include "base/text.h"
#include "cli/machine.h"
#include "planner/cost.h"
#include "prediction/bench_case.h"
#include "prediction/measured_step.h"

namespace fivefold::bench {
namespace {

constexpr int kSteps = 5;
constexpr double kMedianBound = 0.15;

// Two ranks are two nodes of one device or one node of two; four are two nodes of two.
constexpr const char* kAcross = " simulate=" FIVEFOLD_BENCH_FOLDER "/nodes-of-one.toml";
constexpr const char* kNodes = " simulate=" FIVEFOLD_BENCH_FOLDER "/nodes-of-two.toml";

constexpr const char* kSmall = "hidden=256 layers=4 heads=4 kv_heads=2 ffn=704 vocab=2048 sequence=256 ";
constexpr const char* kWide = "hidden=384 layers=6 heads=6 kv_heads=2 ffn=1024 vocab=4096 sequence=256 ";
constexpr const char* kLong = "hidden=256 layers=4 heads=4 kv_heads=4 ffn=704 vocab=2048 sequence=1024 ";

struct Case {
  const char *shape, *layout, *network;
};
// On a core of 80 GFLOP/s computing takes 0.15 to 0.8 s of a step, and all calls together a third to nine tenths of
// it.
constexpr Case kCases[] = {
    {kSmall, "micro=4 dp=2 zero=0", kAcross},
    {kSmall, "micro=8 dp=2 zero=1 bf16=1", kAcross},
    {kWide, "micro=4 dp=2 zero=2", kAcross},
    {kSmall, "micro=8 accumulation=2 dp=2 zero=2 bf16=1", kAcross},
    {kWide, "micro=4 dp=2 zero=3", kAcross},
    {kWide, "micro=4 dp=2 zero=3 recompute_every=1", kAcross},
    {kSmall, "micro=2 dp=4 zero=1", kNodes},
    {kSmall, "micro=2 dp=4 zero=3 shard_size=2", kNodes},
    {kSmall, "micro=8 tp=2", kNodes},
    {kSmall, "micro=8 tp=2 sp=1", kNodes},
    {kSmall, "micro=8 tp=2 sp=1 bf16=1 recompute_every=1", kNodes},
    {kSmall, "micro=4 tp=2 sp=1 dp=2 zero=1", kNodes},
    {kLong, "micro=4 cp=2", kAcross},
    {kLong, "micro=4 cp=2 cp_kind=all_gather", kAcross},
    {kLong, "micro=4 cp=2 cp_kind=ulysses", kAcross},
    {kLong, "micro=2 cp=2 dp=2 zero=2", kNodes},
    {kSmall, "micro=2 accumulation=4 pp=2 schedule=1f1b", kAcross},
    {kSmall, "micro=2 accumulation=4 pp=2 vpp=2 schedule=interleaved", kAcross},
    {kSmall, "micro=2 accumulation=4 pp=2 vpp=2 schedule=zbv", kAcross},
    {kSmall, "micro=4 accumulation=4 tp=2 pp=2 schedule=gpipe", kNodes},
};

constexpr Case kOverlapCases[] = {
    {kWide, "micro=4 dp=2 zero=3 prefetch=0", kAcross},
    {kWide, "micro=4 dp=2 zero=3 prefetch=1", kAcross},
    {kWide, "micro=4 dp=2 zero=3 prefetch=2", kAcross},
    {kWide, "micro=4 dp=2 zero=1", kAcross},
    {kWide, "micro=4 dp=2 zero=2", kAcross},
    {kSmall, "micro=8 tp=2", kNodes},
    {kSmall, "micro=8 tp=2 sp=1", kNodes},
    {kLong, "micro=4 cp=2", kAcross},
    {kSmall, "micro=2 accumulation=4 pp=2", kAcross},
};

struct Seconds {
  double all = 0, exposed = 0;
  double hidden() const { return all - exposed; }
};
using ByKind = std::map<std::pair<GroupKind, Purpose>, Seconds>;

struct Outcome {
  BenchCase bench;
  double predicted = 0;
  MeasuredStep measured;
  ByKind planned_calls, measured_calls;
};

Seconds total(const ByKind& calls) {
  Seconds sum;
  for (const auto& [key, seconds] : calls) sum.all += seconds.all, sum.exposed += seconds.exposed;
  return sum;
}

Outcome outcome_of(EngineApi& engine, const Case& c, const std::string& hardware_name) {
  Outcome outcome;
  outcome.bench = parse_case(split(std::string(c.shape) + c.layout + c.network, ' ')).value();
  RunConfig config = run_config(outcome.bench);
  config.hardware.name = hardware_name;
  const HardwareSpec hardware = load_run_hardware(config).value();
  ProbeRequest request = probe_request(outcome.bench, kSteps);
  request.want_calls = true;
  const Inventory inventory = build_inventory(request.model);
  outcome.predicted = predict_cost(request.model, inventory, request.config, hardware).seconds;
  const auto planned = predict_communication(request.model, inventory, request.config, hardware);
  for (const CommunicationTime& time : planned[0])
    outcome.planned_calls[{time.group, time.purpose}] = {time.seconds, time.exposed};
  outcome.measured = measure_step(engine, request);
  for (const RecordedCall& call : outcome.measured.calls) {
    Seconds& sum = outcome.measured_calls[{call.group, call.purpose}];
    sum.all += call.end_s - call.begin_s;
    sum.exposed += call.exposed_s;
  }
  return outcome;
}

double print_step(const Outcome& o) {
  const double error = o.predicted / o.measured.seconds - 1;
  const Seconds planned = total(o.planned_calls);
  fmt::print("{:7.1f} ms {:7.1f} ms {:+6.1f}% {:7.1f} ms {:7.1f} ms {:4.0f}%  {}{}\n", o.measured.seconds * 1e3,
             o.predicted * 1e3, error * 100, total(o.measured_calls).exposed * 1e3, planned.exposed * 1e3,
             100 * planned.all / o.predicted, o.bench.name(), o.measured.disturbed ? " disturbed" : "");
  std::fflush(stdout);
  return std::abs(error);
}

void print_calls(const Outcome& o) {
  ByKind empty = o.planned_calls;
  empty.insert(o.measured_calls.begin(), o.measured_calls.end());
  for (const auto& [key, unused] : empty) {
    const auto of = [&](const ByKind& calls) {
      const auto found = calls.find(key);
      return found == calls.end() ? Seconds{} : found->second;
    };
    const Seconds measured = of(o.measured_calls), planned = of(o.planned_calls);
    fmt::print("    {:>10} {:<21} calls {:7.1f} ms, hidden {:7.1f} ms; planned {:7.1f} ms, hidden {:7.1f} ms\n",
               to_string(key.first), to_string(key.second), measured.all * 1e3, measured.hidden() * 1e3,
               planned.all * 1e3, planned.hidden() * 1e3);
  }
}

int run(const std::string& hardware, int only, bool overlap) {
  EngineApi& engine = *load_engine().value();
  std::vector<double> errors;
  fmt::print(
      "{:>10} {:>10} {:>7} {:>10} {:>10} {:>5}  case (waits: of rank 0 for communication; calls: of the step, "
      "planned)\n",
      "measured", "predicted", "error", "waits", "planned", "calls");
  const Case* begin = overlap ? std::begin(kOverlapCases) : std::begin(kCases);
  const Case* end = overlap ? std::end(kOverlapCases) : std::end(kCases);
  for (const Case* c = begin; c != end; ++c) {
    if (only >= 0 && c - begin != only) continue;
    const Outcome outcome = outcome_of(engine, *c, hardware);
    errors.push_back(print_step(outcome));
    if (overlap) print_calls(outcome);
  }
  std::sort(errors.begin(), errors.end());
  const double median = errors[errors.size() / 2];
  fmt::print("median {:.1f} % (bound {:.0f}), worst {:.1f} %\n", median * 100, kMedianBound * 100, errors.back() * 100);
  return overlap || median <= kMedianBound ? 0 : 5;
}

}  // namespace
}  // namespace fivefold::bench

int main(int argc, char** argv) {
  std::string hardware = "this-machine";
  int only = -1;
  bool overlap = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--hardware") hardware = argv[i + 1];
    if (std::string(argv[i]) == "--only") only = std::atoi(argv[i + 1]);
    if (std::string(argv[i]) == "--overlap") overlap = std::atoi(argv[i + 1]) != 0;
  }
  return fivefold::bench::run(hardware, only, overlap);
}
