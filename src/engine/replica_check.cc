#include "engine/replica_check.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <span>

#include "base/text.h"
#include "engine/agreement.h"

namespace fivefold {
namespace {

uint64_t hash_of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t hash_of(const std::vector<at::Tensor>& tensors) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) XXH3_64bits_update(state.get(), tensor.data_ptr(), tensor.nbytes());
  return XXH3_64bits_digest(state.get());
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

// Of the working weights, elements T, that follow from fp32 master weights.
template <class T>
uint64_t hash_rounded(const at::Tensor& master) {
  constexpr int64_t kPortion = int64_t{1} << 14;
  std::array<T, kPortion> rounded;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  const float* values = elements<float>(master);
  for (int64_t begin = 0; begin < master.numel(); begin += kPortion) {
    const int64_t count = std::min(kPortion, master.numel() - begin);
    for (int64_t i = 0; i < count; ++i) rounded[static_cast<size_t>(i)] = kernels::from_float<T>(values[begin + i]);
    XXH3_64bits_update(state.get(), rounded.data(), static_cast<size_t>(count) * sizeof rounded[0]);
  }
  return XXH3_64bits_digest(state.get());
}

// Every member's numbers, by position in the group.
std::vector<std::vector<uint64_t>> gather_numbers(Communicator& communicator, const Group& group,
                                                  std::vector<uint64_t> mine) {
  const auto bytes = static_cast<int64_t>(mine.size() * sizeof(uint64_t));
  std::vector<uint64_t> all(mine.size() * static_cast<size_t>(group.size()));
  communicator.all_gather(group, {mine.data(), bytes, DType::kInt64, {}},
                          {all.data(), bytes * group.size(), DType::kInt64, {}}, Purpose::kHash);
  std::vector<std::vector<uint64_t>> rows;
  for (auto begin = all.begin(); begin != all.end(); begin += static_cast<std::ptrdiff_t>(mine.size()))
    rows.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(mine.size()));
  return rows;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> words;
  for (const int rank : ranks) words.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(words, ", ");
}

// Copies of one thing by rank that are not all equal. `truth`: what they should be, when somebody knows.
std::string describe(const std::string& what, const std::map<int, uint64_t>& copies,
                     const std::optional<uint64_t>& truth) {
  std::map<uint64_t, int> votes;
  for (const auto& [rank, hash] : copies) ++votes[hash];
  const auto most =
      std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::optional<uint64_t> right = truth;
  if (2 * most->second > static_cast<int>(copies.size())) right = most->first;
  std::vector<int> odd, others;
  for (const auto& [rank, hash] : copies) (right && hash == *right ? others : odd).push_back(rank);
  if (others.empty()) return what + " differ between " + ranks_text(odd) + "; which is right is not known";
  return what + " on " + ranks_text(odd) + " differ from those of " + ranks_text(others);
}

class ReplicaCheck {
 public:
  explicit ReplicaCheck(RankSession& session)
      : session_(session), policy_(sharding_policy(session.config())), groups_(session.groups()) {
    for (int unit = 0; unit < session.executor().inventory().num_units(); ++unit)
      if (session.executor().holds(unit) && session.executor().buffers(unit).trained()) units_.push_back(unit);
  }

  // "" when this rank's copies agree with those of its peers.
  std::string run() {
    const std::string weights = policy_.shards_params() ? "" : compare_weights();
    const std::string states = compare_states();
    return weights.empty() ? states : weights;
  }

 private:
  const UnitBuffers& buffers(int unit) { return session_.executor().buffers(unit); }
  std::string name(int unit) const { return session_.executor().inventory().units[static_cast<size_t>(unit)].name; }

  // The full working weights, in the parts that the shards' owners update; every data-parallel rank has a copy. A row:
  // the rank's shard, then for each unit its parts and, from the owner's master weights, what its own part should be.
  std::string compare_weights() {
    const auto parts = static_cast<size_t>(policy_.shards);
    std::vector<uint64_t> mine{static_cast<uint64_t>(groups_.shard.rank())};
    for (const int unit : units_) {
      const auto bytes = bytes_of(buffers(unit).params());
      const size_t size = bytes.size() / parts;
      for (size_t part = 0; part < parts; ++part) mine.push_back(hash_of(bytes.subspan(part * size, size)));
      mine.push_back(policy_.has_master() ? visit_half(buffers(unit).params(),
                                                       [&]<class T>(std::type_identity<T>) {
                                                         return hash_rounded<T>(buffers(unit).master_shard());
                                                       })
                                          : 0);
    }
    const auto rows = gather_numbers(session_.communicator(), groups_.data, std::move(mine));
    for (size_t u = 0; u < units_.size(); ++u) {
      const int unit = units_[u];
      const size_t at = 1 + u * (parts + 1);
      for (size_t part = 0; part < parts; ++part) {
        std::map<int, uint64_t> copies;
        std::optional<uint64_t> truth;
        bool owners_agree = policy_.has_master();
        for (size_t r = 0; r < rows.size(); ++r) {
          copies[groups_.data.members()[r]] = rows[r][at + part];
          if (rows[r][0] != part) continue;
          owners_agree = owners_agree && (!truth || *truth == rows[r][at + parts]);
          truth = rows[r][at + parts];
        }
        if (differ(copies)) return describe("weights of " + name(unit), copies, owners_agree ? truth : std::nullopt);
      }
    }
    return "";
  }

  // What the members of a replica group hold of the same shard.
  std::string compare_states() {
    if (groups_.replicate.size() == 1) return "";
    constexpr const char* kNames[] = {"weights of ", "master weights of ", "first moments of ", "second moments of "};
    std::vector<uint64_t> mine;
    for (const int unit : units_) {
      const UnitBuffers& unit_buffers = buffers(unit);
      using Tensors = std::vector<at::Tensor>;
      mine.push_back(hash_of(policy_.shards_params() ? Tensors{unit_buffers.params_shard()} : Tensors{}));
      mine.push_back(hash_of(policy_.has_master() ? Tensors{unit_buffers.master_shard()} : Tensors{}));
      mine.push_back(hash_of(unit_buffers.moment1().tensors()));
      mine.push_back(hash_of(unit_buffers.moment2().tensors()));
    }
    const auto rows = gather_numbers(session_.communicator(), groups_.replicate, std::move(mine));
    for (size_t i = 0; i < rows[0].size(); ++i) {
      std::map<int, uint64_t> copies;
      for (size_t r = 0; r < rows.size(); ++r) copies[groups_.replicate.members()[r]] = rows[r][i];
      if (differ(copies)) return describe(kNames[i % 4] + name(units_[i / 4]), copies, std::nullopt);
    }
    return "";
  }

  static bool differ(const std::map<int, uint64_t>& copies) {
    return std::any_of(copies.begin(), copies.end(),
                       [&](const auto& copy) { return copy.second != copies.begin()->second; });
  }

  RankSession& session_;
  ShardingPolicy policy_;
  const Interpreter::Groups& groups_;
  std::vector<int> units_;  // that this rank holds
};

}  // namespace

std::optional<std::string> find_replica_difference(RankSession& session) {
  if (session.groups().data.size() == 1) return std::nullopt;
  session.interpreter().finish_parameter_gathers();
  const std::string mine = ReplicaCheck(session).run();
  for (const std::string& text : gather_texts(session.communicator(), session.communicator().world(), mine))
    if (!text.empty()) return text;
  return std::nullopt;
}

}  // namespace fivefold
