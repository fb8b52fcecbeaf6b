#include "store/safetensors.h"

#include <gtest/gtest.h>

#include <limits>

#include "store/safetensors_writer.h"
#include "store/test_files.h"

namespace fivefold {
namespace {

// Header by hand: 8-byte length, JSON padded with spaces to a multiple of 8, then bytes 1..6 and 0xAA 0xBB.
TEST(Safetensors, WritesTheFormatByteForByte) {
  TempFolder folder;
  SafetensorsWriter writer(
      folder / "a", {{"w", DType::kBFloat16, {3, 1}}, {"none", DType::kFloat32, {0, 4}}, {"b", DType::kUint8, {2}}},
      {{"format", "pt"}});
  writer.write("w", bytes_of("\x01\x02\x03"));
  writer.write("w", bytes_of("\x04\x05\x06"));
  writer.write("b", bytes_of("\xAA\xBB"));
  writer.finish(Sync::kYes);
  std::string json =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[3,1],"data_offsets":[0,6]},)"
      R"("none":{"dtype":"F32","shape":[0,4],"data_offsets":[6,6]},"b":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})";
  while (json.size() % 8 != 0) json += ' ';
  std::string expected(8, '\0');
  expected[0] = static_cast<char>(json.size());  // below 256
  expected += json + "\x01\x02\x03\x04\x05\x06\xAA\xBB";
  ASSERT_LT(json.size(), 256u);
  EXPECT_EQ(read_file(folder / "a"), expected);
}

TEST(Safetensors, ReadsNamesShapesBytesAndMetadata) {
  TempFolder folder;
  std::string file = raw_safetensors(R"({"b":{"dtype":"I16","shape":[],"data_offsets":[4,6]},"__metadata__":{"k":"v"},)"
                                     R"("a":{"shape":[1,2],"dtype":"F16","data_offsets":[0,4]}}   )",
                                     6);
  file.replace(file.size() - 6, 6, "abcdef");
  write_file(folder / "f", file);
  auto opened = SafetensorsFile::open(folder / "f");
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  const SafetensorsFile moved = std::move(*opened);
  ASSERT_EQ(moved.tensors().size(), 2u);
  EXPECT_EQ(moved.tensors()[0].name, "a");
  EXPECT_EQ(moved.tensors()[0].shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(moved.find("b")->dtype, DType::kInt16);
  EXPECT_TRUE(moved.find("b")->shape.empty());
  EXPECT_EQ(text_of_bytes(moved.bytes(*moved.find("a"))), "abcd");
  EXPECT_EQ(text_of_bytes(moved.bytes(*moved.find("b"))), "ef");
  EXPECT_EQ(moved.find("c"), nullptr);
  EXPECT_EQ(moved.metadata().at("k"), "v");
}

TEST(Safetensors, AFileWithoutTensorsIsValid) {
  const auto header = parse_safetensors(bytes_of(raw_safetensors("{}", 0)), "f");
  ASSERT_TRUE(header.ok());
  EXPECT_TRUE(header->tensors.empty());
  EXPECT_EQ(header->data_begin, 10);
}

// Sizes from the format's own table of dtypes.
TEST(Safetensors, KnowsTwelveDtypes) {
  const std::vector<std::pair<std::string, int64_t>> sizes = {{"F64", 8}, {"F32", 4},  {"F16", 2},     {"BF16", 2},
                                                              {"I64", 8}, {"I32", 4},  {"I16", 2},     {"I8", 1},
                                                              {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const auto& [name, size] : sizes) {
    const auto dtype = parse_safetensors_dtype(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(safetensors_name(*dtype), name);
    EXPECT_EQ(dtype_bytes(*dtype), size) << name;
  }
  EXPECT_FALSE(parse_safetensors_dtype("f32").has_value());
}

TEST(Safetensors, SizesAreMultipliedWithCare) {
  const int64_t max = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(checked_tensor_bytes(DType::kFloat32, std::vector<int64_t>{2, 3}), 24);
  EXPECT_EQ(checked_tensor_bytes(DType::kFloat64, std::vector<int64_t>{}), 8);
  EXPECT_EQ(checked_tensor_bytes(DType::kUint8, std::vector<int64_t>{max}), max);
  EXPECT_FALSE(checked_tensor_bytes(DType::kFloat16, std::vector<int64_t>{max}).has_value());
  EXPECT_FALSE(
      checked_tensor_bytes(DType::kUint8, std::vector<int64_t>{int64_t{1} << 32, int64_t{1} << 32}).has_value());
  EXPECT_FALSE(checked_tensor_bytes(DType::kUint8, std::vector<int64_t>{-1}).has_value());
}

std::string small_file() {
  return raw_safetensors(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                         R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]}})",
                         22);
}

// Whatever happens to the file: an answer, and never a range outside the bytes.
void expect_safe(const std::string& file) {
  const auto header = parse_safetensors(bytes_of(file), "f");
  if (!header.ok()) {
    EXPECT_FALSE(header.error().message().empty());
    return;
  }
  const int64_t data_bytes = static_cast<int64_t>(file.size()) - header->data_begin;
  for (const TensorInfo& tensor : header->tensors) {
    ASSERT_LE(0, tensor.begin);
    ASSERT_LE(tensor.begin, tensor.end);
    ASSERT_LE(tensor.end, data_bytes);
    ASSERT_EQ(tensor.bytes(), tensor.end - tensor.begin);
  }
}

TEST(Safetensors, NoDamageCrashesTheReader) {
  const std::string whole = small_file();
  ASSERT_TRUE(parse_safetensors(bytes_of(whole), "f").ok());
  for (size_t length = 0; length < whole.size(); ++length) {
    expect_safe(whole.substr(0, length));
    EXPECT_FALSE(parse_safetensors(bytes_of(whole.substr(0, length)), "f").ok()) << length;
  }
  for (size_t position = 0; position < whole.size(); ++position) {
    for (int value = 0; value < 256; ++value) {
      std::string damaged = whole;
      damaged[position] = static_cast<char>(value);
      expect_safe(damaged);
    }
  }
  for (size_t from = 8; from < whole.size(); ++from) {
    for (size_t count : {1, 2, 7}) {
      std::string cut = whole;
      cut.erase(from, count);
      expect_safe(cut);
      std::string doubled = whole;
      doubled.insert(from, whole.substr(from, count));
      expect_safe(doubled);
    }
  }
}

TEST(Safetensors, DeepNestingIsRefusedBeforeItCosts) {
  const std::string deep = R"({"a":)" + std::string(1'000'000, '[');
  const auto header = parse_safetensors(bytes_of(raw_safetensors(deep, 0)), "f");
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.error().problem, "header is nested deeper than 16 levels");
}

TEST(SafetensorsDeathTest, TensorsAreWrittenInTheirTurnAndWhole) {
  TempFolder folder;
  const std::vector<TensorDeclaration> tensors = {{"a", DType::kUint8, {2}}, {"b", DType::kUint8, {2}}};
  EXPECT_DEATH(SafetensorsWriter(folder / "f", tensors).write("b", bytes_of("xy")), "'b' written out of turn");
  EXPECT_DEATH(SafetensorsWriter(folder / "f", tensors).write("a", bytes_of("xyz")), "more bytes than declared");
  EXPECT_DEATH(SafetensorsWriter(folder / "f", tensors).finish(Sync::kNo), "not every declared tensor was written");
  EXPECT_DEATH(SafetensorsWriter(folder / "f", {tensors[0], tensors[0]}), "used twice");
}

TEST(Safetensors, AFullDiskIsNamed) {
  // /dev/full answers every write with ENOSPC (28).
  try {
    SafetensorsWriter writer("/dev/full", {{"a", DType::kUint8, {1}}});
    FAIL() << "nothing thrown";
  } catch (const StoreError& error) {
    EXPECT_EQ(error.error_number(), ENOSPC);
    EXPECT_EQ(error.path(), "/dev/full");
    EXPECT_STREQ(error.what(), "/dev/full: cannot write: No space left on device (errno 28)");
  }
}

// The reference library wrote this file: reading it and writing it again gives the same bytes.
TEST(Safetensors, RewritesTheReferenceLibrarysFileBitForBit) {
  const std::filesystem::path original =
      std::filesystem::path(FIVEFOLD_SHARED) / "oracles/01_llama_gqa_untied/model.safetensors";
  if (!std::filesystem::exists(original)) GTEST_SKIP() << original << " is not there";
  const auto file = SafetensorsFile::open(original);
  ASSERT_TRUE(file.ok()) << file.error().message();
  ASSERT_EQ(file->find("lm_head.weight")->shape, (std::vector<int64_t>{128, 48}));
  TempFolder folder;
  SafetensorsWriter writer(folder / "copy", {file->tensors().begin(), file->tensors().end()}, file->metadata());
  for (const TensorInfo& tensor : file->tensors()) writer.write(tensor.name, file->bytes(tensor));
  writer.finish(Sync::kNo);
  EXPECT_EQ(read_file(folder / "copy"), read_file(original));
}

}  // namespace
}  // namespace fivefold
