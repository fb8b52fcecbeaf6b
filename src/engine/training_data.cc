#include "engine/training_data.h"

#include "base/integer.h"

namespace fivefold {
namespace {

const char* format_name(DataFormat format) {
  switch (format) {
    case DataFormat::kText:
      return "text";
    case DataFormat::kJsonl:
      return "jsonl";
    case DataFormat::kMegatron:
      return "tokens";
    case DataFormat::kChat:
      return "chat";
  }
  FIVEFOLD_CHECK(false);
}

MicrobatchTokens microbatch_of(TokenBatch batch) {
  MicrobatchTokens tokens{.rows = batch.rows,
                          .sequence = batch.sequence,
                          .input_ids = std::move(batch.input_ids),
                          .targets = std::move(batch.targets),
                          .positions = std::move(batch.positions),
                          .cu_seqlens = {0},
                          .numbers = {}};
  for (const auto& row : batch.document_lengths)
    for (const int32_t length : row) tokens.cu_seqlens.push_back(tokens.cu_seqlens.back() + length);
  return tokens;
}

template <typename T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message());
  return std::move(result).value();
}

}  // namespace

Result<TrainingData> TrainingData::open(const ResolvedConfig& config, const ModelSpec& model,
                                        const std::filesystem::path& cache_folder) {
  const DataConfig& data = config.config.data;
  FIVEFOLD_ASSIGN(const auto tokenizer, load_tokenizer(data.tokenizer));
  if (tokenizer->vocab_size() > model.vocab)
    return Error{"data.tokenizer",
                 data.tokenizer + " has " + std::to_string(tokenizer->vocab_size()) +
                     " tokens, the model's vocabulary " + std::to_string(model.vocab),
                 "use the tokenizer that belongs to the model"};
  DatasetOptions options{.source = data.train,
                         .format = format_name(data.format),
                         .sequence = config.config.batch.sequence,
                         .packing = config.config.batch.packing,
                         .cache_folder = cache_folder,
                         .chat_template = data.chat_template,
                         .tokenizer = data.tokenizer,
                         .loss = data.loss,
                         .shuffle_seed = static_cast<uint64_t>(data.seed)};
  FIVEFOLD_ASSIGN(Dataset train, open_dataset(options, *tokenizer));
  const SampleOrder order(train.num_samples(), static_cast<uint64_t>(data.seed));
  TrainingData result(std::move(train), order);
  if (!data.validation.empty()) {
    options.source = data.validation;
    options.shuffle_seed.reset();
    FIVEFOLD_ASSIGN(Dataset validation, open_dataset(options, *tokenizer));
    result.validation_ = std::move(validation);
  }
  return result;
}

std::vector<std::string> TrainingData::remarks(const DataConfig& data) const {
  std::vector<std::string> remarks;
  for (const std::string& remark : train_.remarks()) remarks.push_back(data.train + ": " + remark);
  if (!validation_) return remarks;
  for (const std::string& remark : validation_->remarks()) remarks.push_back(data.validation + ": " + remark);
  return remarks;
}

std::vector<MicrobatchTokens> TrainingData::step(const ResolvedConfig& config, int data_rank, int64_t consumed) const {
  const BatchLayout layout{.global_batch = config.config.batch.global,
                           .micro_batch = config.config.batch.micro,
                           .dp = config.config.parallel.dp,
                           .dp_rank = data_rank};
  std::vector<MicrobatchTokens> microbatches;
  for (int64_t m = 0; m < config.num_microbatches; ++m) {
    const int64_t first = layout.first_position(consumed, m);
    microbatches.push_back(microbatch_of(value_or_throw(train_.batch(order_, first, layout.micro_batch))));
    if (config.config.method.dropout > 0) number_tokens(first, microbatches.back());
  }
  return microbatches;
}

int64_t TrainingData::num_validation_batches(const ResolvedConfig& config) const {
  return div_ceil(validation_->num_samples(), config.config.batch.micro * config.config.parallel.dp);
}

MicrobatchTokens TrainingData::validation_batch(const ResolvedConfig& config, int data_rank, int64_t index) const {
  const int64_t micro = config.config.batch.micro;
  return microbatch_of(
      value_or_throw(validation_->fixed_batch((index * config.config.parallel.dp + data_rank) * micro, micro)));
}

}  // namespace fivefold
