// The decoder against the reference cases: logits of another library's whole forward pass, whatever part of the
// sequence is read at once and whatever token by token.
#include "engine/generate/decoder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/generate/generate.h"
#include "engine/session.h"
#include "engine/weights.h"
#include "spec/generation.h"
#include "store/safetensors.h"
#include "support/reference_run.h"

namespace fivefold {
namespace {

using testing::oracle_folder;

// Of logits, against their norm: those of the cases differ from fp64 by about 1e-6 (three layers, widths below 100).
constexpr double kTolerance = 1e-5;

const char* const kCases[] = {
    "01_llama_gqa_untied", "02_llama_mha_tied_vocab131", "03_qwen3_qknorm_headdim", "04_qwen2_qkv_bias", "05_gpt2",
    "08_llama_seq128",     "16_llama_rope_llama3"};

struct Logits {
  int64_t rows = 0, sequence = 0, vocab = 0;
  std::vector<float> values;

  std::span<const float> at(int64_t row, int64_t position) const {
    return std::span(values).subspan(static_cast<size_t>((row * sequence + position) * vocab),
                                     static_cast<size_t>(vocab));
  }
};

Logits read_logits(const std::filesystem::path& folder) {
  const SafetensorsFile file = SafetensorsFile::open(folder / "debug.safetensors").value();
  const TensorInfo& info = *file.find("logits");
  Logits logits{.rows = info.shape[0], .sequence = info.shape[1], .vocab = info.shape[2], .values = {}};
  logits.values.resize(static_cast<size_t>(logits.rows * logits.sequence * logits.vocab));
  std::memcpy(logits.values.data(), file.bytes(info).data(), logits.values.size() * sizeof(float));
  return logits;
}

double difference(std::span<const float> a, std::span<const float> b) {
  return testing::relative_difference({a.begin(), a.end()}, {b.begin(), b.end()});
}

class DecoderTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(oracle_folder() / GetParam()))
      GTEST_SKIP() << "no reference cases at " << oracle_folder();
    install_counting_allocator();
    reference_ = read_reference(oracle_folder() / GetParam()).value();
    inventory_ = build_inventory(reference_.model);
    logits_ = read_logits(reference_.folder);
  }

  std::span<const int32_t> row(int64_t index) const {
    return std::span(reference_.batch.input_ids)
        .subspan(static_cast<size_t>(index * logits_.sequence), static_cast<size_t>(logits_.sequence));
  }
  // Reads `prompt` tokens of a row at once and the others one by one; largest difference of the logits that come out.
  double read_row(int64_t index, int64_t prompt, const DecoderOptions& options) {
    const auto source = open_parameters(reference_.folder, inventory_).value();
    Decoder decoder(reference_.model, inventory_, options);
    EXPECT_TRUE(decoder.load(*source).ok());
    const std::span<const int32_t> ids = row(index);
    double worst = difference(decoder.append(ids.first(static_cast<size_t>(prompt))), logits_.at(index, prompt - 1));
    for (int64_t p = prompt; p < logits_.sequence; ++p)
      worst = std::max(worst, difference(decoder.append(ids.subspan(static_cast<size_t>(p), 1)), logits_.at(index, p)));
    EXPECT_EQ(decoder.length(), logits_.sequence);
    return worst;
  }
  DecoderOptions options() const { return {.compute = DType::kFloat32, .positions = logits_.sequence, .threads = 2}; }

  Reference reference_;
  Inventory inventory_;
  Logits logits_;
  MemoryLedger ledger_;
  RankThread thread_{ledger_, 2};
};

TEST_P(DecoderTest, TokenByTokenAsInOnePass) {
  double worst = 0;
  for (int64_t r = 0; r < logits_.rows; ++r) worst = std::max(worst, read_row(r, 1, options()));
  EXPECT_LT(worst, kTolerance);
  std::printf("largest difference: %.2g of the tolerance\n", worst / kTolerance);
}

TEST_P(DecoderTest, ThePromptMayEndAnywhere) {
  double worst = 0;
  for (int64_t prompt = 2; prompt <= logits_.sequence; ++prompt)
    worst = std::max(worst, read_row(prompt % logits_.rows, prompt, options()));
  EXPECT_LT(worst, kTolerance);
  std::printf("largest difference: %.2g of the tolerance\n", worst / kTolerance);
}

TEST_P(DecoderTest, ALongPromptIsReadInChunks) {
  double worst = 0;
  for (const int64_t chunk : {int64_t{1}, int64_t{2}, int64_t{5}, logits_.sequence - 1}) {
    DecoderOptions in_chunks = options();
    in_chunks.chunk = chunk;
    worst = std::max(worst, read_row(0, logits_.sequence, in_chunks));
  }
  EXPECT_LT(worst, kTolerance);
  std::printf("largest difference: %.2g of the tolerance\n", worst / kTolerance);
}

// Products of one token keep sums in fp32 where those of several round between operations: no worse, up to chance.
TEST_P(DecoderTest, Bf16IsAsGoodTokenByTokenAsInOnePass) {
  DecoderOptions low = options();
  low.compute = DType::kBFloat16;
  double at_once = 0, one_by_one = 0;
  for (int64_t r = 0; r < logits_.rows; ++r) {
    one_by_one = std::max(one_by_one, read_row(r, 1, low));
    for (int64_t prompt = 2; prompt <= logits_.sequence; prompt += 3) {
      const auto source = open_parameters(reference_.folder, inventory_).value();
      Decoder decoder(reference_.model, inventory_, low);
      ASSERT_TRUE(decoder.load(*source).ok());
      at_once = std::max(
          at_once, difference(decoder.append(row(r).first(static_cast<size_t>(prompt))), logits_.at(r, prompt - 1)));
    }
  }
  EXPECT_LT(one_by_one, 2 * at_once);
  std::printf("largest difference from fp32: %.2g one by one, %.2g at once\n", one_by_one, at_once);
}

TEST_P(DecoderTest, ThreadsChangeNoBitOfAToken) {
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 3}) {
    DecoderOptions changed = options();
    changed.threads = threads;
    const auto source = open_parameters(reference_.folder, inventory_).value();
    Decoder decoder(reference_.model, inventory_, changed);
    ASSERT_TRUE(decoder.load(*source).ok());
    std::span<const float> last;
    for (const int32_t id : row(0)) last = decoder.append({&id, 1});
    results.emplace_back(last.begin(), last.end());
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_P(DecoderTest, WeightsAndCacheAreThePredictedBytes) {
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    ledger_.reset_peak();
    GenerateRequest request;
    request.model = reference_.model;
    request.weights = reference_.folder;
    request.compute = compute;
    request.prompt.assign(row(0).begin(), row(0).begin() + 5);
    request.max_tokens = 4;
    const GenerateResult result = run_generation(request).value();
    const GenerationBytes bytes =
        generation_bytes(reference_.model, inventory_, {.prompt = 5, .new_tokens = 4, .compute = compute});
    EXPECT_EQ(result.peak_by_account[Account::kParams], bytes.params);
    EXPECT_EQ(result.peak_by_account[Account::kKvCache], bytes.kv_cache);
    EXPECT_EQ(result.ids.size(), 4u);
  }
}

TEST_P(DecoderTest, GenerationStopsWhereItIsTold) {
  GenerateRequest request;
  request.model = reference_.model;
  request.weights = reference_.folder;
  request.compute = DType::kFloat32;
  request.prompt.assign(row(0).begin(), row(0).begin() + 3);
  request.max_tokens = 8;
  const GenerateResult greedy = run_generation(request).value();
  ASSERT_EQ(greedy.ids.size(), 8u);
  EXPECT_FALSE(greedy.stopped);
  // The largest logit of the whole forward pass is the first new token.
  const std::span<const float> first = logits_.at(0, 2);
  EXPECT_EQ(greedy.ids[0], std::max_element(first.begin(), first.end()) - first.begin());

  request.stop_ids = {-1, greedy.ids[2]};
  const GenerateResult stopped = run_generation(request).value();
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.ids, std::vector<int32_t>(greedy.ids.begin(),
                                              std::find(greedy.ids.begin(), greedy.ids.end(), greedy.ids[2]) + 1));

  request.stop_ids.clear();
  int calls = 0;
  request.on_token = [&](int32_t id) { return id == greedy.ids[static_cast<size_t>(calls++)] && calls < 5; };
  EXPECT_EQ(run_generation(request).value().ids.size(), 5u);
}

TEST_P(DecoderTest, DrawsAreAFunctionOfTheSeed) {
  GenerateRequest request;
  request.model = reference_.model;
  request.weights = reference_.folder;
  request.compute = DType::kFloat32;
  request.prompt.assign(row(0).begin(), row(0).begin() + 3);
  request.max_tokens = 12;
  request.sampling = {.temperature = 2, .seed = 7};
  const std::vector<int32_t> ids = run_generation(request).value().ids;
  EXPECT_EQ(run_generation(request).value().ids, ids);
  request.threads = 1;
  EXPECT_EQ(run_generation(request).value().ids, ids);
  request.sampling.seed = 8;
  EXPECT_NE(run_generation(request).value().ids, ids);
}

INSTANTIATE_TEST_SUITE_P(Cases, DecoderTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string("c") + info.param; });

// A real model of 135 M parameters, from the folder that FIVEFOLD_SMOLLM2 names: config.json and model.safetensors.
TEST(SmolLm2, GreedyTextAndLogits) {
  const std::filesystem::path expected = oracle_folder() / "smollm2" / "model.json";
  const char* folder = std::getenv("FIVEFOLD_SMOLLM2");
  if (folder == nullptr || !std::filesystem::exists(expected)) GTEST_SKIP() << "FIVEFOLD_SMOLLM2 names no folder";
  install_counting_allocator();
  MemoryLedger ledger;
  const RankThread thread(ledger, available_cores());
  std::ifstream file(expected);
  const nlohmann::json cases = nlohmann::json::parse(file)["greedy"];
  const ModelSpec model = read_model_config(folder).value();
  const Inventory inventory = build_inventory(model);
  const auto source = open_parameters(folder, inventory).value();
  for (const nlohmann::json& greedy : cases) {
    SCOPED_TRACE(greedy["prompt"].dump());
    const std::vector<int32_t> prompt = greedy["prompt_ids"];
    Decoder decoder(model, inventory, {.compute = DType::kFloat32, .positions = 64, .threads = available_cores()});
    ASSERT_TRUE(decoder.load(*source).ok());
    const std::span<const float> logits = decoder.append(prompt);
    const std::vector<int32_t> top = greedy["first_position_top5"]["ids"];
    const std::vector<double> top_logits = greedy["first_position_top5"]["logits"];
    for (size_t i = 0; i < top.size(); ++i)
      EXPECT_NEAR(static_cast<double>(logits[static_cast<size_t>(top[i])]), top_logits[i], 1e-3);
    GenerateRequest request;
    request.model = model;
    request.weights = folder;
    request.compute = DType::kFloat32;
    request.prompt = prompt;
    request.max_tokens = 20;
    EXPECT_EQ(run_generation(request).value().ids, greedy["continuation_ids"].get<std::vector<int32_t>>());
  }
}

}  // namespace
}  // namespace fivefold
