// One row per message: what a user reads when a safetensors file, an index or a manifest is wrong.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "store/hub_folder.h"
#include "store/manifest.h"
#include "store/safetensors.h"
#include "store/test_files.h"

namespace fivefold {
namespace {

using nlohmann::json;

constexpr const char* kTruncated = "the file is truncated, or is not a safetensors file";

struct Row {
  std::string name;
  std::string input;
  std::string where;  // after the file's name
  std::string problem;
  std::string hint = "";
};

void expect_error(const Row& row, const Error& error, const std::string& file) {
  EXPECT_EQ(error.where, file + row.where) << row.name;
  EXPECT_EQ(error.problem, row.problem) << row.name;
  EXPECT_EQ(error.hint, row.hint) << row.name;
}

// A file with one tensor `w` whose entry is `entry`, and 8 bytes of data.
std::string one_tensor(const std::string& entry) { return raw_safetensors(R"({"w":)" + entry + "}", 8); }

TEST(InputErrors, Safetensors) {
  const std::string dtypes = "supported: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL F8_E4M3 F8_E5M2";
  const std::string whole_numbers = " whole numbers from 0 to 2^63 - 1";
  const std::vector<Row> rows = {
      {"empty", "", "", "has 0 bytes; a safetensors file begins with 8 bytes of header length", kTruncated},
      {"short", "1234567", "", "has 7 bytes; a safetensors file begins with 8 bytes of header length", kTruncated},
      {"huge header", std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), "",  // 0x05f5e101 = 100'000'001
       "header length 100000001 exceeds the format's limit of 100000000 bytes",
       "not a safetensors file, or damaged in its first 8 bytes"},
      {"negative header", std::string(8, '\xff') + "{}", "",
       "header length 18446744073709551615 exceeds the format's limit of 100000000 bytes",
       "not a safetensors file, or damaged in its first 8 bytes"},
      {"header past the end", raw_safetensors("{}", 0).substr(0, 9), "",
       "header of 2 bytes runs past the end of the file (9 bytes)", kTruncated},
      {"no header", raw_safetensors("", 2), "", "header does not start with '{'"},
      {"leading space", raw_safetensors(" {}", 0), "", "header does not start with '{'"},
      {"not JSON", raw_safetensors("{\"a\" 1}", 0), "", "header is not UTF-8 JSON: wrong at byte 6"},
      {"not UTF-8", raw_safetensors("{\"\xff\":1}", 0), "", "header is not UTF-8 JSON: wrong at byte 3"},
      {"NUL", raw_safetensors(std::string("{}\0\0", 4), 0), "", "header is not UTF-8 JSON: a NUL at byte 2"},
      {"two values", raw_safetensors("{} {}", 0), "", "header is not UTF-8 JSON: wrong at byte 4"},
      {"huge number", raw_safetensors(R"({"w":1e999})", 0), "", "header has a number that is too large"},
      {"same tensor twice", raw_safetensors(R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{}})", 0), "",
       "header has the key 'w' twice"},
      {"same field twice", one_tensor(R"({"dtype":"U8","dtype":"I8"})"), "", "header has the key 'dtype' twice"},
      {"metadata is a list", raw_safetensors(R"({"__metadata__":[]})", 0), " (__metadata__)", "must be an object"},
      {"metadata with a number", raw_safetensors(R"({"__metadata__":{"k":1}})", 0), " (__metadata__)",
       "value of 'k' must be text"},
      {"entry is a number", one_tensor("1"), " (w)", "must be an object"},
      {"no dtype", one_tensor(R"({"shape":[8],"data_offsets":[0,8]})"), " (w)", "'dtype' is missing"},
      {"dtype is a number", one_tensor(R"({"dtype":8,"shape":[8],"data_offsets":[0,8]})"), " (w)",
       "'dtype' must be text"},
      {"unknown dtype", one_tensor(R"({"dtype":"F4","shape":[16],"data_offsets":[0,8]})"), " (w)",
       "dtype 'F4' is not supported", dtypes},
      {"no shape", one_tensor(R"({"dtype":"U8","data_offsets":[0,8]})"), " (w)", "'shape' is missing"},
      {"shape is text", one_tensor(R"({"dtype":"U8","shape":"8","data_offsets":[0,8]})"), " (w)",
       "'shape' must be a list"},
      {"negative dim", one_tensor(R"({"dtype":"U8","shape":[-8],"data_offsets":[0,8]})"), " (w)",
       "'shape' must be a list of" + whole_numbers},
      {"fractional dim", one_tensor(R"({"dtype":"U8","shape":[8.0],"data_offsets":[0,8]})"), " (w)",
       "'shape' must be a list of" + whole_numbers},
      {"dim of 2^63", one_tensor(R"({"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8]})"), " (w)",
       "'shape' must be a list of" + whole_numbers},
      // 2^32 x 2^32 = 2^64, which is 0 in 64 bits.
      {"overflowing shape", one_tensor(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
       " (w)", "shape [4294967296,4294967296] has more bytes than fit in 63 bits"},
      {"no offsets", one_tensor(R"({"dtype":"U8","shape":[8]})"), " (w)", "'data_offsets' is missing"},
      {"three offsets", one_tensor(R"({"dtype":"U8","shape":[8],"data_offsets":[0,4,8]})"), " (w)",
       "'data_offsets' must be two" + whole_numbers},
      {"negative offset", one_tensor(R"({"dtype":"U8","shape":[8],"data_offsets":[-8,0]})"), " (w)",
       "'data_offsets' must be two" + whole_numbers},
      {"backward offsets", one_tensor(R"({"dtype":"U8","shape":[8],"data_offsets":[8,0]})"), " (w)",
       "'data_offsets' ends before it begins: [8,0]"},
      {"data cut off", one_tensor(R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})"), " (w)",
       "bytes [0, 9) run past the end of the data (8 bytes)", kTruncated},
      {"another size", one_tensor(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), " (w)",
       "has 8 bytes, but F32 [3] needs 12"},
      {"overlap",
       raw_safetensors(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                       R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                       8),
       " (b)", "bytes [4, 8) overlap those of 'a'"},
      {"hole",
       raw_safetensors(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                       R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                       8),
       " (b)", "bytes [3, 4) before it belong to no tensor"},
      {"rest", one_tensor(R"({"dtype":"U8","shape":[5],"data_offsets":[0,5]})"), "",
       "the last 3 bytes belong to no tensor"},
  };
  for (const Row& row : rows) {
    const auto header = parse_safetensors(bytes_of(row.input), "m.safetensors");
    ASSERT_FALSE(header.ok()) << row.name;
    expect_error(row, header.error(), "m.safetensors");
  }
}

TEST(InputErrors, HubIndex) {
  const std::string beside = "shards lie beside the index";
  const std::vector<Row> rows = {
      {"not JSON", "[", "", "index is not UTF-8 JSON: wrong at byte 2"},
      {"empty", "", "", "index is not UTF-8 JSON: wrong at byte 1"},
      {"a list", "[]", "", "index is not a JSON object"},
      {"no weight_map", "{}", "", "'weight_map' is missing"},
      {"weight_map is text", R"({"weight_map":"s"})", "", "'weight_map' must be an object"},
      {"weight_map is empty", R"({"weight_map":{}})", "", "'weight_map' lists no tensors"},
      {"tensor twice", R"({"weight_map":{"w":"s","w":"s"}})", "", "index has the key 'w' twice"},
      {"shard is a number", R"({"weight_map":{"w":3}})", " (w)", "shard must be the name of a file, not 3"},
      {"shard above", R"({"weight_map":{"w":"../s"}})", " (w)", "shard '../s' is not the name of a file in this folder",
       beside},
      {"absolute shard", R"({"weight_map":{"w":"/etc/passwd"}})", " (w)",
       "shard '/etc/passwd' is not the name of a file in this folder", beside},
      {"the folder itself", R"({"weight_map":{"w":".."}})", " (w)",
       "shard '..' is not the name of a file in this folder", beside},
      {"no name", R"({"weight_map":{"w":""}})", " (w)", "shard '' is not the name of a file in this folder", beside},
      {"missing shard", R"({"weight_map":{"v":"s","w":"gone"}})", " (w)", "shard 'gone' is missing",
       "the download is incomplete"},
      {"tensor not in the shard", R"({"weight_map":{"v":"s","w":"s"}})", " (w)", "shard 's' does not hold this tensor",
       "index and shards are of different models"},
  };
  TempFolder folder;
  write_file(folder / "s", raw_safetensors(R"({"v":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  for (const Row& row : rows) {
    write_file(folder / kHubIndexFile, row.input);
    const auto hub = HubFolder::open(folder.path());
    ASSERT_FALSE(hub.ok()) << row.name;
    expect_error(row, hub.error(), (folder / kHubIndexFile).string());
  }
}

TEST(InputErrors, HubFolder) {
  TempFolder folder;
  const std::string place = folder.path().string();
  EXPECT_EQ(HubFolder::open(folder / "gone").error().message(), place + "/gone: no such folder");
  EXPECT_EQ(HubFolder::open(folder.path()).error().message(),
            place +
                ": has neither model.safetensors nor model.safetensors.index.json (other weight formats are not "
                "read; convert them to safetensors)");
  write_file(folder / kHubIndexFile, R"({"weight_map":{"w":"s"}})");
  write_file(folder / "s", "");
  EXPECT_EQ(HubFolder::open(folder.path()).error().where, place + "/s");
  std::filesystem::create_directory(folder / kHubModelFile);
  EXPECT_EQ(HubFolder::open(folder.path()).error().message(), place + "/model.safetensors: not a regular file");
}

// A right manifest: `w` of 6 elements in two files, each with a header of 16 bytes.
json right_content() {
  const auto piece = [](const char* file, int begin, int end, int file_begin, int file_end) -> json {
    return {{"range", json::array({begin, end})},
            {"file", file},
            {"file_range", json::array({file_begin, file_end})},
            {"hash", "xxh3:0123456789abcdef"}};
  };
  const auto file = [](const char* name, int bytes) -> json {
    return {{"name", name}, {"bytes", bytes}, {"header_bytes", 16}, {"header_hash", "xxh3:0123456789abcdef"}};
  };
  return {
      {"format_version", 1},
      {"step", 3},
      {"samples_consumed", 96},
      {"tokens_consumed", 0},
      {"seed", 5},
      {"generator_state", ""},
      {"configuration", ""},
      {"world_size", 2},
      {"files", json::array({file("f0", 32), file("f1", 24)})},
      {"tensors", json::array({{{"kind", "params"},
                                {"tensor", "w"},
                                {"dtype", "fp32"},
                                {"shape", json::array({2, 3})},
                                {"pieces", json::array({piece("f0", 0, 4, 16, 32), piece("f1", 4, 6, 16, 24)})}}})}};
}

// The manifest's text around `content`, with a right checksum.
std::string sealed(const json& content) {
  const std::string plain = content.dump();
  char checksum[32];
  std::snprintf(checksum, sizeof(checksum), "xxh3:%016llx",
                static_cast<unsigned long long>(XXH3_64bits(plain.data(), plain.size())));
  return json{{"checksum", checksum}, {"content", content}}.dump();
}

struct ManifestRow {
  std::string name;
  std::function<void(json&)> change;
  std::string where;
  std::string problem;
  std::string hint = "";
};

// A change of the value at `pointer`, or its removal.
std::function<void(json&)> set(const std::string& pointer, json value) {
  return [=](json& content) { content[json::json_pointer(pointer)] = value; };
}
std::function<void(json&)> drop(const std::string& pointer) {
  return [=](json& content) {
    const json::json_pointer target(pointer);
    json& parent = content[target.parent_pointer()];
    if (parent.is_array()) {
      parent.erase(std::stoul(target.back()));
    } else {
      parent.erase(target.back());
    }
  };
}

TEST(InputErrors, Manifest) {
  const std::string tensor = "/tensors/0";
  const std::string piece = "/tensors/0/pieces/1";
  const std::string number = " must be a whole number from 0 to 2^63 - 1";
  const std::string hash = " must be 'xxh3:' and 16 hexadecimal digits";
  const std::vector<ManifestRow> rows = {
      {"version", set("/format_version", 3), "", "format version 3 is not 1 or 2",
       "written by another version of fivefold"},
      {"no version", drop("/format_version"), "", "'format_version' is missing"},
      {"no step", drop("/step"), "", "'step' is missing"},
      {"step is text", set("/step", "3"), "", "'step'" + number},
      {"negative samples", set("/samples_consumed", -1), "", "'samples_consumed'" + number},
      {"no tokens", drop("/tokens_consumed"), "", "'tokens_consumed' is missing"},
      {"no seed", drop("/seed"), "", "'seed' is missing"},
      {"negative seed", set("/seed", -1), "", "'seed' must be a whole number from 0 to 2^64 - 1"},
      {"generator is a number", set("/generator_state", 1), "", "'generator_state' must be text"},
      {"no configuration", drop("/configuration"), "", "'configuration' is missing"},
      {"loss scale of zero", set("/loss_scale", 0), "", "'loss_scale' must be a positive number that fp32 holds"},
      {"loss scale alone", set("/loss_scale", 2.5), "", "'loss_scale_steps' is missing"},
      {"huge world", set("/world_size", int64_t{1} << 31), "", "'world_size' is too large"},
      {"no files", drop("/files"), "", "'files' is missing"},
      {"file is a number", set("/files/0", 1), "", "a file must be an object"},
      {"file above", set("/files/0/name", "../f0"), "", "file '../f0' is not the name of a file in this folder"},
      {"file twice", set("/files/1/name", "f0"), " (f0)", "is listed twice"},
      {"no size", drop("/files/0/bytes"), " (f0)", "'bytes' is missing"},
      {"long header", set("/files/0/header_bytes", 33), " (f0)", "its header is longer than the file"},
      {"upper-case hash", set("/files/0/header_hash", "xxh3:0123456789ABCDEF"), " (f0)", "'header_hash'" + hash},
      {"tensors is an object", set("/tensors", json::object()), "", "'tensors' must be a list"},
      {"tensor is text", set(tensor, "w"), "", "a tensor must be an object"},
      {"no kind", drop(tensor + "/kind"), "", "'kind' is missing"},
      {"tensor twice", [](json& c) { c["tensors"].push_back(c["tensors"][0]); }, " (params/w)", "is listed twice"},
      {"dtype", set(tensor + "/dtype", "F32"), " (params/w)", "dtype 'F32' is not known"},
      {"huge shape", set(tensor + "/shape", json::array({int64_t{1} << 40, int64_t{1} << 40})), " (params/w)",
       "shape [1099511627776,1099511627776] has more bytes than fit in 63 bits"},
      {"piece is a number", set(piece, 7), " (params/w)", "a piece must be an object"},
      {"backward range", set(piece + "/range", json::array({6, 4})), " (params/w)",
       "'range' ends before it begins: [6,4]"},
      {"range of another size", set(piece + "/range", json::array({3, 6})), " (params/w)",
       "piece [3, 6) has another size than its bytes [16, 24) in f1"},
      {"hash", set(piece + "/hash", "md5:00"), " (params/w)", "'hash'" + hash},
      {"hole", drop(piece), " (params/w)", "elements [4, 6) are in no piece"},
      {"hole at the start", drop(tensor + "/pieces/0"), " (params/w)", "elements [0, 4) are in no piece"},
      {"overlap", set(tensor + "/pieces/1/range", json::array({3, 5})), " (params/w)",
       "piece [3, 5) of f1 overlaps piece [0, 4) of f0"},
      {"too many elements", set(tensor + "/shape", json::array({5})), " (params/w)",
       "piece [4, 6) of f1 reaches past its 5 elements"},
      {"columns are a number", set(piece + "/columns", 2), " (params/w)", "'columns' must be a list"},
      {"negative columns", set(piece + "/columns", json::array({-1, 2})), " (params/w)",
       "'columns' must be two whole numbers from 0 to 2^63 - 1"},
      {"columns of 2^63", set(piece + "/columns", json::array({0, uint64_t{1} << 63})), " (params/w)",
       "'columns' must be two whole numbers from 0 to 2^63 - 1"},
      {"backward columns", set(piece + "/columns", json::array({2, 1})), " (params/w)",
       "'columns' ends before it begins: [2,1]"},
      {"no columns", set(piece + "/columns", json::array({2, 2})), " (params/w)",
       "'columns' of piece [4, 6) holds none: [2,2]"},
      {"columns in version 1", set(piece + "/columns", json::array({0, 3})), " (params/w)",
       "has column blocks, which format version 1 does not have"},
      {"unlisted file", set(piece + "/file", "f2"), " (params/w)", "its file 'f2' is not listed"},
      {"piece in the header", set(piece + "/file_range", json::array({8, 16})), " (params/w)",
       "piece [4, 6) lies outside the data of f1"},
      {"piece past the file", set(piece + "/file_range", json::array({17, 25})), " (params/w)",
       "piece [4, 6) lies outside the data of f1"},
  };
  ASSERT_TRUE(parse_manifest(sealed(right_content()), "manifest.json").ok());
  for (const ManifestRow& row : rows) {
    json content = right_content();
    row.change(content);
    const auto manifest = parse_manifest(sealed(content), "manifest.json");
    ASSERT_FALSE(manifest.ok()) << row.name;
    expect_error({row.name, "", row.where, row.problem, row.hint}, manifest.error(), "manifest.json");
  }
}

TEST(InputErrors, ManifestSeal) {
  const std::string right = sealed(right_content());
  const std::vector<Row> rows = {
      {"empty", "", "", "manifest is not UTF-8 JSON: wrong at byte 1"},
      {"cut off", right.substr(0, right.size() - 1), "",
       "manifest is not UTF-8 JSON: wrong at byte " + std::to_string(right.size())},
      {"no checksum", R"({"content":{}})", "", "'checksum' is missing"},
      {"no content", R"({"checksum":"xxh3:0123456789abcdef"})", "", "'content' is missing"},
      {"other content", R"({"checksum":"xxh3:0123456789abcdef","content":{}})", "",
       "content does not match its checksum", "the manifest was damaged or edited"},
  };
  for (const Row& row : rows) {
    const auto manifest = parse_manifest(row.input, "manifest.json");
    ASSERT_FALSE(manifest.ok()) << row.name;
    expect_error(row, manifest.error(), "manifest.json");
  }
}

TEST(InputErrors, Receipt) {
  EXPECT_EQ(parse_receipt("x").error().message(), "shard receipt: text is not UTF-8 JSON: wrong at byte 1");
  EXPECT_EQ(parse_receipt("{}").error().message(), "shard receipt: 'step' is missing");
  EXPECT_EQ(parse_receipt(R"({"step":1,"nonce":2})").error().message(), "shard receipt: 'nonce' must be text");
}

}  // namespace
}  // namespace fivefold
