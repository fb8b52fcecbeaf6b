// load_engine of engine/engine_api.h: the program's side, without Torch.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/installation.h"
#include "engine/engine_api.h"

namespace fivefold {
namespace {

constexpr const char* kLibrary = "libfivefold_engine.so";
constexpr const char* kEntryPoint = "fivefold_engine_v1";

std::vector<std::filesystem::path> candidates() {
  std::vector<std::filesystem::path> paths;
  if (const char* chosen = std::getenv("FIVEFOLD_ENGINE")) return {chosen};
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    paths.push_back(program.parent_path() / kLibrary);
    paths.push_back(program.parent_path() / ".." / "lib" / kLibrary);
  }
  paths.emplace_back(installation().engine_library);
  return paths;
}

Result<EngineApi*> load() {
  std::string tried;
  for (const std::filesystem::path& path : candidates()) {
    if (!std::filesystem::exists(path)) {
      tried += (tried.empty() ? "" : ", ") + path.string();
      continue;
    }
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) return Error{path.string(), dlerror(), "build the engine again (make build)"};
    using Entry = EngineApi* (*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(library, kEntryPoint));
    if (entry == nullptr) return Error{path.string(), "belongs to another version of fivefold", "build both together"};
    return entry();
  }
  return Error{"engine", "libfivefold_engine.so was not found (looked at " + tried + ")",
               "build with -DFIVEFOLD_ENGINE=ON, or name the file in FIVEFOLD_ENGINE"};
}

}  // namespace

Result<EngineApi*> load_engine() {
  static const Result<EngineApi*> engine = load();
  return engine;
}

}  // namespace fivefold
