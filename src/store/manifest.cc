#include "store/manifest.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "store/file_io.h"
#include "store/hash.h"
#include "store/json_input.h"
#include "store/piece_coverage.h"
#include "store/safetensors.h"

namespace fivefold {
namespace {

using nlohmann::json;
using TensorMap = std::map<StateKey, StateTensor>;

constexpr int64_t kVersionWithoutBlocks = 1;

std::string range_text(int64_t begin, int64_t end) {
  return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

std::string place(const std::string& where, const StateKey& key) { return where + " (" + key.text() + ")"; }

json file_json(const ShardFile& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"header_bytes", file.header_bytes},
          {"header_hash", hash_text(file.header_hash)}};
}

json tensors_json(const TensorMap& tensors) {
  json list = json::array();
  for (const auto& [key, tensor] : tensors) {
    json pieces = json::array();
    for (const Piece& piece : tensor.pieces) {
      const int64_t bytes = (piece.end - piece.begin) * dtype_bytes(tensor.dtype);
      pieces.push_back({{"range", json::array({piece.begin, piece.end})},
                        {"file", piece.file},
                        {"file_range", json::array({piece.file_begin, piece.file_begin + bytes})},
                        {"hash", hash_text(piece.hash)}});
      if (piece.has_block())
        pieces.back()["columns"] = json::array({piece.block.first, piece.block.first + piece.block.count});
    }
    list.push_back({{"kind", key.kind},
                    {"tensor", key.tensor},
                    {"dtype", to_string(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"pieces", std::move(pieces)}});
  }
  return list;
}

Result<ShardFile> parse_file(const json& value, const std::string& where) {
  if (!value.is_object()) return Error{where, "a file must be an object", ""};
  ShardFile file;
  FIVEFOLD_ASSIGN(file.name, json_string_field(value, "name", where));
  if (!is_plain_file_name(file.name))
    return Error{where, "file '" + file.name + "' is not the name of a file in this folder", ""};
  const std::string file_place = where + " (" + file.name + ")";
  FIVEFOLD_ASSIGN(file.bytes, json_size_field(value, "bytes", file_place));
  FIVEFOLD_ASSIGN(file.header_bytes, json_size_field(value, "header_bytes", file_place));
  FIVEFOLD_ASSIGN(file.header_hash, json_hash_field(value, "header_hash", file_place));
  if (file.header_bytes > file.bytes) return Error{file_place, "its header is longer than the file", ""};
  return file;
}

Result<Piece> parse_piece(const json& value, DType dtype, const std::string& where) {
  if (!value.is_object()) return Error{where, "a piece must be an object", ""};
  Piece piece;
  FIVEFOLD_ASSIGN(const auto range, json_range_field(value, "range", where));
  std::tie(piece.begin, piece.end) = range;
  if (value.contains("columns")) {
    FIVEFOLD_ASSIGN(const auto columns, json_range_field(value, "columns", where));
    // No columns would read as no block.
    if (columns.first == columns.second)
      return Error{where, "'columns' of piece " + piece.text() + " holds none: " + value["columns"].dump(), ""};
    piece.block = {.first = columns.first, .count = columns.second - columns.first};
  }
  FIVEFOLD_ASSIGN(piece.file, json_string_field(value, "file", where));
  FIVEFOLD_ASSIGN(const auto file_range, json_range_field(value, "file_range", where));
  piece.file_begin = file_range.first;
  const auto bytes = checked_tensor_bytes(dtype, std::vector{piece.end - piece.begin});
  if (bytes != file_range.second - file_range.first)
    return Error{where,
                 "piece " + piece.text() + " has another size than its bytes " +
                     range_text(file_range.first, file_range.second) + " in " + piece.file,
                 ""};
  FIVEFOLD_ASSIGN(piece.hash, json_hash_field(value, "hash", where));
  return piece;
}

Result<TensorMap> parse_tensors(const json& list, const std::string& where) {
  TensorMap tensors;
  for (const json& value : list) {
    if (!value.is_object()) return Error{where, "a tensor must be an object", ""};
    StateKey key;
    FIVEFOLD_ASSIGN(key.kind, json_string_field(value, "kind", where));
    FIVEFOLD_ASSIGN(key.tensor, json_string_field(value, "tensor", where));
    const std::string here = place(where, key);
    StateTensor tensor;
    FIVEFOLD_ASSIGN(const std::string dtype_name, json_string_field(value, "dtype", here));
    const auto dtype = parse_dtype(dtype_name);
    if (!dtype) return Error{here, "dtype '" + dtype_name + "' is not known", ""};
    tensor.dtype = *dtype;
    FIVEFOLD_ASSIGN(tensor.shape, json_shape_field(value, "shape", here));
    if (!checked_tensor_bytes(tensor.dtype, tensor.shape))
      return Error{here, "shape " + value["shape"].dump() + " has more bytes than fit in 63 bits", ""};
    FIVEFOLD_ASSIGN(const json* pieces, json_array_field(value, "pieces", here));
    for (const json& piece_value : *pieces) {
      FIVEFOLD_ASSIGN(Piece piece, parse_piece(piece_value, tensor.dtype, here));
      tensor.pieces.push_back(std::move(piece));
    }
    if (!tensors.emplace(key, std::move(tensor)).second) return Error{here, "is listed twice", ""};
  }
  return tensors;
}

// The first tensor that has column blocks.
const StateKey* find_blocks(const TensorMap& tensors) {
  for (const auto& [key, tensor] : tensors)
    if (std::ranges::any_of(tensor.pieces, &Piece::has_block)) return &key;
  return nullptr;
}

// Every piece lies behind the header of a listed file.
Status check_file_ranges(const Manifest& manifest, const std::string& where) {
  std::map<std::string, const ShardFile*> files;
  for (const ShardFile& file : manifest.files)
    if (!files.emplace(file.name, &file).second) return Error{where + " (" + file.name + ")", "is listed twice", ""};
  for (const auto& [key, tensor] : manifest.tensors) {
    for (const Piece& piece : tensor.pieces) {
      const auto found = files.find(piece.file);
      if (found == files.end()) return Error{place(where, key), "its file '" + piece.file + "' is not listed", ""};
      const int64_t bytes = (piece.end - piece.begin) * dtype_bytes(tensor.dtype);
      if (piece.file_begin < found->second->header_bytes || bytes > found->second->bytes - piece.file_begin)
        return Error{place(where, key), "piece " + piece.text() + " lies outside the data of " + piece.file, ""};
    }
  }
  return Ok{};
}

Result<RunState> parse_run(const json& content, const std::string& where) {
  RunState run;
  FIVEFOLD_ASSIGN(run.step, json_size_field(content, "step", where));
  FIVEFOLD_ASSIGN(run.samples_consumed, json_size_field(content, "samples_consumed", where));
  FIVEFOLD_ASSIGN(run.tokens_consumed, json_size_field(content, "tokens_consumed", where));
  const auto seed = content.find("seed");
  if (seed == content.end()) return Error{where, "'seed' is missing", ""};
  if (!seed->is_number_unsigned()) return Error{where, "'seed' must be a whole number from 0 to 2^64 - 1", ""};
  run.seed = seed->get<uint64_t>();
  FIVEFOLD_ASSIGN(run.generator_state, json_string_field(content, "generator_state", where));
  FIVEFOLD_ASSIGN(run.configuration, json_string_field(content, "configuration", where));
  const auto scale = content.find("loss_scale");
  if (scale == content.end()) return run;
  if (!scale->is_number() || !(scale->get<double>() > 0 && scale->get<double>() <= std::numeric_limits<float>::max()))
    return Error{where, "'loss_scale' must be a positive number that fp32 holds", ""};
  run.loss_scale = scale->get<double>();
  FIVEFOLD_ASSIGN(run.loss_scale_steps, json_size_field(content, "loss_scale_steps", where));
  return run;
}

Result<int> parse_int(const json& object, const char* key, const std::string& where) {
  FIVEFOLD_ASSIGN(const int64_t value, json_size_field(object, key, where));
  if (value > std::numeric_limits<int>::max()) return Error{where, "'" + std::string(key) + "' is too large", ""};
  return static_cast<int>(value);
}

bool is_utf8(const std::string& text) {
  try {
    return !json(text).dump().empty();
  } catch (const json::type_error&) {
    return false;
  }
}

// Adds one rank's tensors to the manifest's.
Status merge_tensors(const ShardReceipt& receipt, TensorMap& all, const std::string& where) {
  for (const auto& [key, tensor] : receipt.tensors) {
    const auto [entry, added] = all.emplace(key, tensor);
    if (added) continue;
    StateTensor& known = entry->second;
    if (known.dtype != tensor.dtype || known.shape != tensor.shape)
      return Error{place(where, key),
                   "rank " + std::to_string(receipt.rank) + " holds it as " + std::string(to_string(tensor.dtype)) +
                       " " + json(tensor.shape).dump() + ", another rank as " + std::string(to_string(known.dtype)) +
                       " " + json(known.shape).dump(),
                   ""};
    known.pieces.insert(known.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
  }
  return Ok{};
}

// Errors: a rank outside the world, twice or missing; a step or nonce that is not the save's.
Status check_ranks(int64_t step, int world_size, const std::string& nonce, const std::vector<ShardReceipt>& receipts,
                   const std::string& where) {
  std::set<int> ranks;
  for (const ShardReceipt& receipt : receipts) {
    const std::string who = where + " (rank " + std::to_string(receipt.rank) + ")";
    if (receipt.rank < 0 || receipt.rank >= world_size)
      return Error{who, "is not one of the " + std::to_string(world_size) + " ranks", ""};
    if (receipt.step != step)
      return Error{
          who, "saved step " + std::to_string(receipt.step) + ", but this is the save of step " + std::to_string(step),
          "all ranks must save at the same step"};
    if (receipt.nonce != nonce)
      return Error{who, "wrote for save '" + receipt.nonce + "', but this is save '" + nonce + "'",
                   "all ranks must use the ticket of rank 0"};
    if (!ranks.insert(receipt.rank).second) return Error{who, "handed in two shards", ""};
  }
  for (int rank = 0; rank < world_size; ++rank)
    if (!ranks.contains(rank)) return Error{where + " (rank " + std::to_string(rank) + ")", "handed in no shard", ""};
  return Ok{};
}

}  // namespace

std::string Piece::text() const {
  const std::string range = range_text(begin, end);
  return has_block() ? range + " of columns " + range_text(block.first, block.first + block.count) : range;
}

int64_t StateTensor::numel() const {
  const auto bytes = checked_tensor_bytes(dtype, shape);
  FIVEFOLD_CHECK(bytes.has_value(), "impossible shape");
  return *bytes / dtype_bytes(dtype);
}

std::optional<int64_t> StateTensor::block_numel(const ColumnBlock& block) const {
  const int64_t all = numel();  // also checks the shape, so that the product below fits
  if (block == ColumnBlock{}) return all;
  if (shape.size() != 2 || block.first < 0 || block.count <= 0 || block.count > shape[1] - block.first)
    return std::nullopt;
  return shape[0] * block.count;
}

std::string to_text(const ShardReceipt& receipt) {
  return json{{"step", receipt.step},
              {"nonce", receipt.nonce},
              {"rank", receipt.rank},
              {"file", file_json(receipt.file)},
              {"tensors", tensors_json(receipt.tensors)}}
      .dump();
}

Result<ShardReceipt> parse_receipt(std::string_view text) {
  const std::string where = "shard receipt";
  FIVEFOLD_ASSIGN(const json value, parse_json_object(text, "text", where));
  ShardReceipt receipt;
  FIVEFOLD_ASSIGN(receipt.step, json_size_field(value, "step", where));
  FIVEFOLD_ASSIGN(receipt.nonce, json_string_field(value, "nonce", where));
  FIVEFOLD_ASSIGN(receipt.rank, parse_int(value, "rank", where));
  FIVEFOLD_ASSIGN(const json* file, json_object_field(value, "file", where));
  FIVEFOLD_ASSIGN(receipt.file, parse_file(*file, where));
  FIVEFOLD_ASSIGN(const json* tensors, json_array_field(value, "tensors", where));
  FIVEFOLD_ASSIGN(receipt.tensors, parse_tensors(*tensors, where));
  return receipt;
}

std::string to_text(const Manifest& manifest) {
  json files = json::array();
  for (const ShardFile& file : manifest.files) files.push_back(file_json(file));
  const RunState& run = manifest.run;
  const int64_t version = find_blocks(manifest.tensors) ? kCheckpointFormatVersion : kVersionWithoutBlocks;
  json content = {{"format_version", version},
                  {"step", run.step},
                  {"samples_consumed", run.samples_consumed},
                  {"tokens_consumed", run.tokens_consumed},
                  {"seed", run.seed},
                  {"generator_state", run.generator_state},
                  {"configuration", run.configuration},
                  {"world_size", manifest.world_size},
                  {"files", std::move(files)},
                  {"tensors", tensors_json(manifest.tensors)}};
  if (run.loss_scale > 0) {
    content["loss_scale"] = run.loss_scale;
    content["loss_scale_steps"] = run.loss_scale_steps;
  }
  const std::string plain = content.dump();
  const std::string checksum = hash_text(hash_bytes(std::as_bytes(std::span(plain))));
  return json{{"checksum", checksum}, {"content", std::move(content)}}.dump(1) + "\n";
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& file_name) {
  FIVEFOLD_ASSIGN(const json root, parse_json_object(text, "manifest", file_name));
  FIVEFOLD_ASSIGN(const uint64_t checksum, json_hash_field(root, "checksum", file_name));
  FIVEFOLD_ASSIGN(const json* content, json_object_field(root, "content", file_name));
  const std::string plain = content->dump();
  if (hash_bytes(std::as_bytes(std::span(plain))) != checksum)
    return Error{file_name, "content does not match its checksum", "the manifest was damaged or edited"};
  FIVEFOLD_ASSIGN(const int64_t version, json_size_field(*content, "format_version", file_name));
  if (version != kCheckpointFormatVersion && version != kVersionWithoutBlocks)
    return Error{file_name, "format version " + std::to_string(version) + " is not 1 or 2",
                 "written by another version of fivefold"};
  Manifest manifest;
  FIVEFOLD_ASSIGN(manifest.run, parse_run(*content, file_name));
  FIVEFOLD_ASSIGN(manifest.world_size, parse_int(*content, "world_size", file_name));
  FIVEFOLD_ASSIGN(const json* files, json_array_field(*content, "files", file_name));
  for (const json& value : *files) {
    FIVEFOLD_ASSIGN(ShardFile file, parse_file(value, file_name));
    manifest.files.push_back(std::move(file));
  }
  FIVEFOLD_ASSIGN(const json* tensors, json_array_field(*content, "tensors", file_name));
  FIVEFOLD_ASSIGN(manifest.tensors, parse_tensors(*tensors, file_name));
  if (const StateKey* key = find_blocks(manifest.tensors); key && version == kVersionWithoutBlocks)
    return Error{place(file_name, *key), "has column blocks, which format version 1 does not have", ""};
  for (auto& [key, tensor] : manifest.tensors) FIVEFOLD_TRY(order_and_check_pieces(tensor, place(file_name, key)));
  FIVEFOLD_TRY(check_file_ranges(manifest, file_name));
  return manifest;
}

Result<Manifest> merge_receipts(const RunState& run, int world_size, const std::string& nonce,
                                const std::vector<ShardReceipt>& receipts, const std::string& where) {
  if (!is_utf8(run.generator_state)) return Error{where, "generator state is not UTF-8", ""};
  if (!is_utf8(run.configuration)) return Error{where, "configuration is not UTF-8", ""};
  FIVEFOLD_TRY(check_ranks(run.step, world_size, nonce, receipts, where));
  Manifest manifest{.run = run, .world_size = world_size, .files = {}, .tensors = {}};
  for (const ShardReceipt& receipt : receipts) {
    manifest.files.push_back(receipt.file);
    FIVEFOLD_TRY(merge_tensors(receipt, manifest.tensors, where));
  }
  std::ranges::sort(manifest.files, {}, &ShardFile::name);
  for (auto& [key, tensor] : manifest.tensors) FIVEFOLD_TRY(order_and_check_pieces(tensor, place(where, key)));
  FIVEFOLD_TRY(check_file_ranges(manifest, where));
  return manifest;
}

}  // namespace fivefold
