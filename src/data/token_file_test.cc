#include "data/token_file.h"

#include <gtest/gtest.h>

#include <numeric>

#include "data/index_bytes.h"
#include "data/temporary_folder.h"

namespace fivefold {
namespace {

std::vector<int32_t> document(const TokenFile& file, int64_t index) {
  std::vector<int32_t> out(static_cast<size_t>(file.document_length(index)));
  const Status status = file.read(index, 0, out);
  EXPECT_TRUE(status.ok());
  return out;
}

// Documents: sequences 0 and 1; nothing; sequence 2. Sequence 2 lies first in .bin.
TEST(TokenFile, JoinsTheSequencesOfADocumentInIndexOrder) {
  const TemporaryFolder folder;
  const IndexBytes index{.lengths = {2, 1, 3}, .pointers = {6, 10, 0}, .documents = {0, 2, 2, 3}};
  folder.write("x.idx", index.bytes());
  std::string bin;
  for (const int id : {7, 8, 65535, 1, 2, 3}) bin += little_endian(static_cast<uint16_t>(id));
  folder.write("x.bin", bin);
  for (const char* name : {"x", "x.bin", "x.idx"}) {
    const auto file = TokenFile::open(folder.path() / name, 65536);
    ASSERT_TRUE(file.ok()) << file.error().message();
    EXPECT_EQ(file->num_documents(), 3);
    EXPECT_EQ(file->num_tokens(), 6);
    EXPECT_EQ(document(*file, 0), (std::vector{1, 2, 3}));
    EXPECT_EQ(document(*file, 1), std::vector<int32_t>{});
    EXPECT_EQ(document(*file, 2), (std::vector{7, 8, 65535}));
    int32_t across[2];
    ASSERT_TRUE(file->read(0, 1, across).ok());  // last of sequence 0, first of sequence 1
    EXPECT_EQ(across[0], 2);
    EXPECT_EQ(across[1], 3);
    EXPECT_TRUE(file->check_ids().ok());
  }
}

template <typename T>
void expect_type(uint8_t code, std::vector<int32_t> ids) {
  const TemporaryFolder folder;
  const IndexBytes index{
      .type = code, .lengths = {static_cast<int32_t>(ids.size())}, .pointers = {0}, .documents = {0, 1}};
  folder.write("x.idx", index.bytes());
  std::string bin;
  for (const int32_t id : ids) bin += little_endian(static_cast<T>(id));
  folder.write("x.bin", bin);
  const auto file = TokenFile::open(folder.path() / "x", 3'000'000);
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ(document(*file, 0), ids) << "type " << int{code};

  TokenFileWriter writer(folder.path() / "y", static_cast<TokenType>(code));
  writer.add_document(ids);
  writer.finish();
  EXPECT_EQ(TemporaryFolder::read(folder.path() / "y.idx"), index.bytes());
  EXPECT_EQ(TemporaryFolder::read(folder.path() / "y.bin"), bin);
}

// Codes of Megatron's index: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16.
TEST(TokenFile, ReadsAndWritesEveryTokenType) {
  expect_type<uint8_t>(1, {0, 255});
  expect_type<int8_t>(2, {0, 127});
  expect_type<int16_t>(3, {0, 32767});
  expect_type<int32_t>(4, {0, 2'999'999});
  expect_type<int64_t>(5, {0, 2'999'999});
  expect_type<uint16_t>(8, {0, 65535});
}

TEST(TokenFileWriter, WritesOneSequencePerDocumentBackToBack) {
  const TemporaryFolder folder;
  TokenFileWriter writer(folder.path() / "x", TokenType::kInt32);
  writer.add_document(std::vector{5, 6});
  writer.add_document({});
  writer.add_document(std::vector{7});
  EXPECT_EQ(writer.num_tokens(), 3);
  writer.finish();
  const IndexBytes index{.type = 4, .lengths = {2, 0, 1}, .pointers = {0, 8, 8}, .documents = {0, 1, 2, 3}};
  EXPECT_EQ(TemporaryFolder::read(folder.path() / "x.idx"), index.bytes());
  EXPECT_EQ(TemporaryFolder::read(folder.path() / "x.bin"),
            little_endian<int32_t>(5) + little_endian<int32_t>(6) + little_endian<int32_t>(7));
}

TEST(TokenFileWriter, LeavesNothingBehindWithoutFinish) {
  const TemporaryFolder folder;
  {
    TokenFileWriter writer(folder.path() / "x", TokenType::kInt32);
    writer.add_document(std::vector{5, 6});
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "x.bin"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(TokenFile, ReadsLongDocumentsWhole) {
  const TemporaryFolder folder;
  std::vector<int32_t> ids(40000);
  std::iota(ids.begin(), ids.end(), 0);
  TokenFileWriter writer(folder.path() / "x", TokenType::kUint16);
  writer.add_document(ids);
  writer.finish();
  const auto file = TokenFile::open(folder.path() / "x", 40000);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(document(*file, 0), ids);
  EXPECT_TRUE(file->check_ids().ok());
  const auto small = TokenFile::open(folder.path() / "x", 39999);
  ASSERT_TRUE(small.ok());
  const Status status = small->check_ids();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().problem.find("document 0, token 39999: id 39999"), std::string::npos);
}

}  // namespace
}  // namespace fivefold
