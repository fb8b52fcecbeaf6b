#include "exporters/launch_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace fivefold {
namespace {

constexpr std::array<std::string_view, 5> kLauncherModules = {"torch.distributed.run", "torch.distributed.launch",
                                                              "accelerate.commands.launch", "deepspeed.launcher.runner",
                                                              "torchrun"};
// Programs without .py, with the words before their arguments.
constexpr std::array<std::string_view, 3> kTrainers = {"axolotl", "trl", "swift"};
constexpr int kMaxShells = 3;  // of bash -c "..." in one another

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_blank_inside(const std::string& word) { return word.find(' ') != std::string::npos; }

std::string launcher_of(const std::vector<std::string>& words, size_t end) {
  for (size_t i = 0; i < end; ++i) {
    const std::string name = base_name(words[i]);
    if (name == "torchrun" || name == "torch.distributed.run" || name == "torch.distributed.launch") return "torchrun";
    if (name == "accelerate" || name == "accelerate.commands.launch") return "accelerate";
    if (name == "deepspeed") return "deepspeed";
  }
  return "";
}

// Where the program is in a command; its number of words is 1, or 2 with -m. Nothing: the command trains nothing.
struct ProgramPlace {
  size_t at = 0, words = 1;
};
std::optional<ProgramPlace> program_place(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string name = base_name(words[i]);
    if (i == 0 && std::find(kTrainers.begin(), kTrainers.end(), name) != kTrainers.end()) return ProgramPlace{i, 1};
    if (name.ends_with(".py") && !words[i].starts_with("-")) return ProgramPlace{i, 1};
    const bool module = words[i] == "-m" || words[i] == "--module";
    if (module && i + 1 < words.size()) {
      if (std::find(kLauncherModules.begin(), kLauncherModules.end(), words[i + 1]) != kLauncherModules.end()) {
        ++i;
        continue;
      }
      return ProgramPlace{i + 1, 1};
    }
  }
  return {};
}

std::optional<LaunchCommand> launch_of(const ShellCommand& command) {
  const std::optional<ProgramPlace> place = program_place(command.words);
  if (!place) return {};
  LaunchCommand launch;
  launch.launcher = launcher_of(command.words, place->at);
  launch.program = base_name(command.words[place->at]);
  launch.where = place->at < command.places.size() ? command.places[place->at] : "";
  const auto slice = [&](const std::vector<std::string>& all, size_t from, size_t to) {
    from = std::min(from, all.size());
    return std::vector<std::string>(all.begin() + static_cast<int64_t>(from),
                                    all.begin() + static_cast<int64_t>(std::min(std::max(from, to), all.size())));
  };
  std::vector<std::string> ignored;
  launch.launcher_settings =
      read_flag_settings(slice(command.words, 0, place->at), slice(command.places, 0, place->at), ignored);
  const size_t after = place->at + place->words;
  launch.arguments = read_flag_settings(slice(command.words, after, command.words.size()),
                                        slice(command.places, after, command.places.size()), launch.positional);
  return launch;
}

// The command, or that of a shell that it starts with the script as one word.
std::optional<LaunchCommand> search(const ShellCommand& command, const ShellScript& script, int depth) {
  for (size_t i = 0; i < command.words.size() && depth < kMaxShells; ++i) {
    if (!is_blank_inside(command.words[i]) || (i > 0 && command.words[i - 1].starts_with("--"))) continue;
    if (command.words[i].find(".py") == std::string::npos && command.words[i].find(" -m ") == std::string::npos)
      continue;
    const Result<ShellScript> inner = read_shell_script(command.words[i], command.places[i], script.variables);
    if (!inner.ok()) continue;
    for (const ShellCommand& shell : inner->commands) {
      std::optional<LaunchCommand> found = search(shell, script, depth + 1);
      if (!found) continue;
      std::vector<std::string> ignored;
      // srun's own flags still say how many ranks there are.
      ForeignSettings outer = read_flag_settings(
          {command.words.begin(), command.words.begin() + static_cast<int64_t>(i)}, command.places, ignored);
      outer.add_all(found->launcher_settings);
      found->launcher_settings = std::move(outer);
      return found;
    }
  }
  return launch_of(command);
}

std::optional<int64_t> whole(const std::string& text) {
  int64_t value = 0;
  // "1:4" is torchrun's range of machines: the least.
  const size_t end = std::min(text.find(':'), text.size());
  const auto [at, error] = std::from_chars(text.data(), text.data() + end, value);
  if (end == 0 || error != std::errc{} || at != text.data() + end || value < 1 || value > (1 << 24)) return {};
  return value;
}

class RankCount {
 public:
  RankCount(LaunchCommand& launch, const ShellScript& script, std::string& missing)
      : launch_(launch), script_(script), missing_(missing) {}

  std::optional<int64_t> count() {
    if (launch_.launcher == "accelerate") {
      if (const auto all = flag({"num_processes", "n"})) return all;
      return {};
    }
    if (launch_.launcher == "torchrun") return times(flag({"nproc_per_node"}), flag({"nnodes"}).value_or(1), "nnodes");
    if (launch_.launcher == "deepspeed") {
      if (const auto listed = included()) return listed;
      return times(flag({"num_gpus"}), flag({"num_nodes"}).value_or(1), "num_nodes");
    }
    return scheduled();
  }

 private:
  // A flag that is set to what is no number leaves the count unknown.
  std::optional<int64_t> flag(std::initializer_list<std::string_view> names) {
    const ForeignSetting* setting = launch_.launcher_settings.find_first(names);
    if (setting == nullptr) return {};
    const std::string text = foreign_value_text(setting->value);
    const std::optional<int64_t> value = whole(text);
    if (!value) missing_ = fmt::format("{}: --{} {}", setting->where, setting->name, text);
    return value;
  }

  std::optional<int64_t> times(std::optional<int64_t> ranks, int64_t machines, std::string_view) const {
    if (!ranks || !missing_.empty()) return {};
    return *ranks * machines;
  }

  // localhost:0,1,2,3
  std::optional<int64_t> included() {
    const std::optional<std::string> text = launch_.launcher_settings.text("include");
    if (!text) return {};
    return 1 + std::count(text->begin(), text->end(), ',') + std::count(text->begin(), text->end(), '@');
  }

  std::optional<int64_t> directive(std::initializer_list<std::string_view> names) {
    if (const auto value = flag(names)) return value;
    for (const std::string_view name : names)
      if (const auto found = script_.scheduler.find(std::string(name)); found != script_.scheduler.end())
        return whole(
            found->second.substr(found->second.rfind(':') == std::string::npos ? 0 : found->second.rfind(':') + 1));
    return {};
  }

  std::optional<int64_t> scheduled() {
    if (const auto tasks = directive({"ntasks", "n", "np"})) return tasks;
    const std::optional<int64_t> each = directive({"ntasks-per-node", "gpus-per-node", "gres"});
    if (each) return *each * directive({"nodes", "N"}).value_or(1);
    const auto set = script_.variables.find("CUDA_VISIBLE_DEVICES");
    if (set != script_.variables.end() && launch_.launcher.empty() && !set->second.empty())
      return 1 + std::count(set->second.begin(), set->second.end(), ',');
    if (const auto world = script_.variables.find("NGPU"); world != script_.variables.end())
      return whole(world->second);
    // A Python program without a launcher is one process.
    if (script_.scheduler.empty() && launch_.program.ends_with(".py")) return 1;
    return {};
  }

  LaunchCommand& launch_;
  const ShellScript& script_;
  std::string& missing_;
};

}  // namespace

Result<LaunchCommand> find_launch(const ShellScript& script, const std::string& where) {
  std::optional<LaunchCommand> best;
  for (const ShellCommand& command : script.commands)
    if (std::optional<LaunchCommand> found = search(command, script, 0))
      // Preparing steps (a tokenizer, a download) have few arguments.
      if (!best || found->arguments.all().size() >= best->arguments.all().size()) best = std::move(found);
  if (best) return *std::move(best);
  return Error{where, "no command starts a training program",
               "a line with torchrun, accelerate launch, deepspeed, srun or python and a program"};
}

std::optional<int64_t> launched_ranks(LaunchCommand& launch, const ShellScript& script, std::string& missing) {
  return RankCount(launch, script, missing).count();
}

}  // namespace fivefold
