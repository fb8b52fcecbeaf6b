#include "store/peft_writer.h"

#include <utility>

#include "base/check.h"
#include "store/file_io.h"
#include "store/peft_folder.h"

namespace fivefold {
namespace {

std::filesystem::path temp_path(const std::filesystem::path& path) { return path.string() + ".tmp"; }

// The tensors as they are, once it is sure that they make an adapter.
std::vector<TensorDeclaration> checked(const PeftConfig& config, std::vector<TensorDeclaration> tensors) {
  std::vector<TensorInfo> infos;
  for (const TensorDeclaration& tensor : tensors) infos.push_back({tensor});
  const auto modules = peft_modules(config, infos, std::string(kPeftModelFile));
  FIVEFOLD_CHECK(modules.ok(), modules.error().message());
  return tensors;
}

std::map<std::string, std::string> metadata(std::map<std::string, std::string> notes) {
  notes["format"] = "pt";  // transformers refuses files without it
  return notes;
}

// For a member that opens a file in the folder.
std::filesystem::path made(const std::filesystem::path& folder) {
  make_folder(folder);
  return folder;
}

}  // namespace

PeftWriter::PeftWriter(std::filesystem::path folder, PeftConfig config, std::vector<TensorDeclaration> tensors,
                       std::map<std::string, std::string> notes)
    : folder_(made(folder)),
      config_(std::move(config)),
      model_(temp_path(folder_ / kPeftModelFile), checked(config_, std::move(tensors)), metadata(std::move(notes))) {}

void PeftWriter::finish() {
  model_.finish(Sync::kYes);
  const std::filesystem::path config_path = folder_ / kPeftConfigFile, model_path = folder_ / kPeftModelFile;
  OutputFile file(temp_path(config_path));
  file.write(write_peft_config(config_));
  file.sync();
  file.close();
  rename_path(temp_path(model_path), model_path);
  rename_path(temp_path(config_path), config_path);
  sync_folder(folder_);
}

}  // namespace fivefold
