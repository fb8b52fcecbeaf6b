#include "cli/framework_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/table.h"
#include "base/text.h"
#include "cli/output.h"
#include "planner/profiles/device_need.h"
#include "planner/profiles/host_memory.h"
#include "planner/profiles/host_need.h"

namespace fivefold {
namespace {

int64_t ranks_of_node(const FrameworkRun& run, const HardwareSpec& hardware) {
  return std::min(run.dp * run.tp * run.cp * run.pp, hardware.devices_per_node);
}

int64_t starting_host(const FrameworkPlan& plan, int64_t ranks) {
  return ranks * plan.memory.host.start.bytes() + plan.memory.host.start_of_node;
}

}  // namespace

std::string host_text(const FrameworkPlan& plan, const HardwareSpec& hardware, bool formulas) {
  const int64_t ranks = ranks_of_node(plan.run, hardware);
  const ProfilePhase& step = plan.memory.host.step;
  std::string text = painted(Paint::kHeading, "Start-up and host") + "\n";
  text +=
      fmt::format("  while the model is made (init={}{}): {} of a GPU, {} of a node's host\n",
                  kModelInitNames[static_cast<size_t>(model_init(plan.run))], plan.run.init.assumed ? ", assumed" : "",
                  format_bytes(start_bytes(plan.memory)), format_bytes(starting_host(plan, ranks)));
  text += fmt::format("  training: {} of a node's host, {} ranks\n", format_bytes(ranks * step.bytes()), ranks);
  if (step.lines.size() == 1) return text;
  Table table(formulas ? std::vector<std::string>{"of a rank, on the host", "bytes", "formula"}
                       : std::vector<std::string>{"of a rank, on the host", "bytes"});
  for (const ProfileLine& line : step.lines) {
    std::vector<std::string> cells = {line.name, format_bytes(line.bytes)};
    if (formulas) cells.push_back(line.formula);
    table.add_row(std::move(cells));
  }
  return text + table.to_string(2);
}

nlohmann::ordered_json host_json(const FrameworkPlan& plan, const HardwareSpec& hardware) {
  const int64_t ranks = ranks_of_node(plan.run, hardware);
  auto lines = nlohmann::ordered_json::object();
  for (const ProfileLine& line : plan.memory.host.step.lines) lines[line.name] = line.bytes;
  return {{"init", kModelInitNames[static_cast<size_t>(model_init(plan.run))]},
          {"start_gpu", start_bytes(plan.memory)},
          {"start_node", starting_host(plan, ranks)},
          {"node", ranks * plan.memory.host.step.bytes()},
          {"rank", lines}};
}

}  // namespace fivefold
