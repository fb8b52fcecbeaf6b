#include "store/checkpoint_writer.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <utility>

#include "base/check.h"
#include "store/checkpoint_reader.h"
#include "store/hash.h"
#include "store/safetensors_writer.h"

namespace fivefold {
namespace {

std::string step_name(int64_t step) { return "step-" + std::to_string(step); }

std::string shard_name(int rank) {
  char name[40];
  std::snprintf(name, sizeof(name), "rank-%05d.safetensors", rank);
  return name;
}

std::string random_nonce() {
  std::random_device device;
  char text[17];
  std::snprintf(text, sizeof(text), "%08x%08x", device(), device());
  return text;
}

void write_durably(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.sync();
  file.close();
}

bool is_whole(const std::filesystem::path& folder) { return CheckpointReader::open(folder, Verify::kFiles).ok(); }

void check_piece(const StatePiece& piece) {
  const StateTensor tensor{.dtype = piece.dtype, .shape = piece.shape, .pieces = {}};
  const auto elements = tensor.block_numel(piece.block);
  FIVEFOLD_CHECK(elements.has_value(), piece.key.text() + ": columns that the tensor does not have");
  FIVEFOLD_CHECK(0 <= piece.begin && piece.begin <= piece.end && piece.end <= *elements,
                 piece.key.text() + ": range outside the tensor or block");
  FIVEFOLD_CHECK(static_cast<int64_t>(piece.bytes.size()) == (piece.end - piece.begin) * dtype_bytes(piece.dtype),
                 piece.key.text() + ": bytes do not match the range");
}

// "kind/tensor[begin:end]", of a block "kind/tensor[:,first:last][begin:end]".
std::string piece_name(const StatePiece& piece) {
  const auto slice = [](int64_t begin, int64_t end) { return std::to_string(begin) + ":" + std::to_string(end) + "]"; };
  std::string name = piece.key.text();
  if (piece.block != ColumnBlock{}) name += "[:," + slice(piece.block.first, piece.block.first + piece.block.count);
  return name + "[" + slice(piece.begin, piece.end);
}

// Larger elements first: then every piece lies aligned to its element size.
std::vector<const StatePiece*> in_file_order(std::span<const StatePiece> pieces) {
  std::vector<const StatePiece*> order;
  for (const StatePiece& piece : pieces)
    if (piece.begin < piece.end) order.push_back(&piece);
  std::ranges::stable_sort(order, std::greater{}, [](const StatePiece* piece) { return dtype_bytes(piece->dtype); });
  return order;
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::filesystem::path root, CheckpointWriterOptions options)
    : root_(std::move(root)), options_(std::move(options)) {
  FIVEFOLD_CHECK(options_.keep >= 1, "keep at least one checkpoint");
}

void CheckpointWriter::reached(std::string_view point) const {
  if (options_.observer) options_.observer(point);
}

std::filesystem::path CheckpointWriter::temp_folder(const SaveTicket& ticket) const {
  return root_ / (step_name(ticket.step) + ".tmp-" + ticket.nonce);
}

SaveTicket CheckpointWriter::begin(int64_t step, int world_size) const {
  FIVEFOLD_CHECK(step >= 0 && world_size >= 1);
  make_folder(root_);
  reached("root_created");
  remove_leftovers();
  reached("leftovers_removed");
  SaveTicket ticket{.step = step, .world_size = world_size, .nonce = random_nonce()};
  make_folder(temp_folder(ticket));
  sync_folder(root_);
  reached("temp_created");
  return ticket;
}

void CheckpointWriter::remove_leftovers() const {
  for (const std::filesystem::path& path : list_folder(root_)) {
    const std::string name = path.filename().string();
    const bool of_step = name.starts_with("step-");
    const bool temporary =
        of_step && (name.find(".tmp-") != std::string::npos || name.find(".removed-") != std::string::npos);
    const size_t replaced = of_step ? name.find(".replaced-") : std::string::npos;
    // A folder set aside may go only when its successor took its place.
    const bool superseded = replaced != std::string::npos && is_whole(root_ / name.substr(0, replaced));
    if (temporary || superseded || name.starts_with("latest.tmp-")) remove_path(path);
  }
}

ShardReceipt CheckpointWriter::write_shard(const SaveTicket& ticket, int rank,
                                           std::span<const StatePiece> pieces) const {
  ShardReceipt receipt{.step = ticket.step, .nonce = ticket.nonce, .rank = rank, .file = {}, .tensors = {}};
  receipt.file.name = shard_name(rank);
  for (const StatePiece& piece : pieces) {
    check_piece(piece);
    // Ranks without elements of a tensor still state its dtype and shape: a tensor may have no elements at all.
    const StateTensor tensor{.dtype = piece.dtype, .shape = piece.shape, .pieces = {}};
    const auto& known = receipt.tensors.emplace(piece.key, tensor).first->second;
    FIVEFOLD_CHECK(known.dtype == piece.dtype && known.shape == piece.shape,
                   piece.key.text() + ": two dtypes or shapes");
  }
  const std::vector<const StatePiece*> order = in_file_order(pieces);
  std::vector<TensorDeclaration> declarations;
  for (const StatePiece* piece : order)
    declarations.push_back({piece_name(*piece), piece->dtype, {piece->end - piece->begin}});
  const std::string header = safetensors_header_bytes(declarations, {});
  receipt.file.header_bytes = static_cast<int64_t>(header.size());
  receipt.file.header_hash = hash_bytes(std::as_bytes(std::span(header)));

  SafetensorsWriter writer(temp_folder(ticket) / receipt.file.name, declarations);
  reached("shard_opened");
  int64_t offset = receipt.file.header_bytes;
  for (size_t i = 0; i < order.size(); ++i) {
    const StatePiece& piece = *order[i];
    writer.write(declarations[i].name, piece.bytes);
    receipt.tensors.at(piece.key).pieces.push_back(
        {piece.begin, piece.end, receipt.file.name, offset, hash_bytes(piece.bytes), piece.block});
    offset += static_cast<int64_t>(piece.bytes.size());
  }
  receipt.file.bytes = offset;
  reached("shard_written");
  writer.finish(Sync::kYes);
  reached("shard_synced");
  return receipt;
}

Result<std::filesystem::path> CheckpointWriter::commit(const SaveTicket& ticket, const RunState& run,
                                                       const std::vector<ShardReceipt>& receipts) const {
  const std::filesystem::path temp = temp_folder(ticket);
  if (run.step != ticket.step)
    return Error{temp.string(),
                 "the run is at step " + std::to_string(run.step) + ", but this is the save of step " +
                     std::to_string(ticket.step),
                 ""};
  FIVEFOLD_ASSIGN(const Manifest manifest,
                  merge_receipts(run, ticket.world_size, ticket.nonce, receipts, temp.string()));
  for (const ShardFile& file : manifest.files) {
    std::error_code error;
    if (std::filesystem::file_size(temp / file.name, error) != static_cast<uintmax_t>(file.bytes) || error)
      return Error{(temp / file.name).string(), "is not there as its rank wrote it",
                   "all ranks must save to the same file system"};
  }
  OutputFile file(temp / "manifest.json");
  file.write(to_text(manifest));
  reached("manifest_written");
  file.sync();
  file.close();
  sync_folder(temp);
  reached("manifest_synced");

  const std::filesystem::path folder = root_ / step_name(ticket.step);
  publish(ticket, folder);
  point_latest_at(folder);
  remove_old(ticket);
  return folder;
}

void CheckpointWriter::publish(const SaveTicket& ticket, const std::filesystem::path& folder) const {
  std::error_code error;
  if (std::filesystem::exists(folder, error)) {
    rename_path(folder, folder.string() + ".replaced-" + ticket.nonce);
    reached("set_aside");
  }
  rename_path(temp_folder(ticket), folder);
  reached("renamed");
  sync_folder(root_);
  reached("root_synced");
}

void CheckpointWriter::point_latest_at(const std::filesystem::path& folder) const {
  const std::filesystem::path temp = root_ / ("latest.tmp-" + folder.filename().string());
  write_durably(temp, folder.filename().string() + "\n");
  reached("latest_temp");
  rename_path(temp, root_ / "latest");
  sync_folder(root_);
  reached("latest_renamed");
}

void CheckpointWriter::remove_old(const SaveTicket& ticket) const {
  int kept = 1;  // the one just written
  for (const CheckpointFolder& old : list_checkpoints(root_)) {
    const bool replaced = old.path.filename() != step_name(old.step);
    if (old.step == ticket.step && !replaced) continue;
    const bool of_this_step = old.step == ticket.step;
    // Damaged ones neither count nor go: someone may want to look at them.
    if (!of_this_step && (!is_whole(old.path) || kept++ < options_.keep)) continue;
    const std::filesystem::path hidden = root_ / (step_name(old.step) + ".removed-" + ticket.nonce);
    rename_path(old.path, hidden);
    reached("old_hidden");
    remove_path(hidden);
    reached("old_removed");
  }
}

}  // namespace fivefold
