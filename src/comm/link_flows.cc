#include "comm/link_flows.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace fivefold {

LinkFlows::LinkFlows(std::vector<double> bytes_per_s) : bytes_per_s_(std::move(bytes_per_s)) {
  for (const double bandwidth : bytes_per_s_) FIVEFOLD_CHECK(bandwidth > 0);
}

int64_t LinkFlows::start(double now_s, double latency_s, double bytes, std::vector<LinkStage> stages) {
  FIVEFOLD_CHECK(latency_s >= 0 && bytes >= 0 && (bytes == 0 || !stages.empty()));
  for (const LinkStage& stage : stages) FIVEFOLD_CHECK(!stage.empty());
  advance(now_s);
  active_.push_back(
      {num_started_, now_s + latency_s, bytes, std::make_shared<const std::vector<LinkStage>>(std::move(stages))});
  return num_started_++;
}

void LinkFlows::advance(double now_s) {
  FIVEFOLD_CHECK(now_s >= now_s_);
  while (step(now_s)) continue;
}

bool LinkFlows::complete(int64_t transfer) const {
  return std::none_of(active_.begin(), active_.end(), [&](const Transfer& t) { return t.number == transfer; });
}

double LinkFlows::foreseen_end(int64_t transfer) const {
  LinkFlows future = *this;
  while (!future.complete(transfer)) future.step(std::numeric_limits<double>::infinity());
  return future.now_s_;
}

double LinkFlows::rate(const Transfer& transfer, const std::vector<double>& load) const {
  double slowest = std::numeric_limits<double>::infinity();
  for (const LinkStage& stage : *transfer.stages) {
    double sum = 0;
    for (const LinkUse& use : stage) {
      const auto link = static_cast<size_t>(use.link);
      sum += bytes_per_s_[link] * use.weight / load[link];
    }
    slowest = std::min(slowest, sum);
  }
  return slowest;
}

bool LinkFlows::step(double limit_s) {
  const auto moves = [this](const Transfer& transfer) { return transfer.begin_s <= now_s_; };
  std::vector<double> load(bytes_per_s_.size());
  for (const Transfer& transfer : active_) {
    if (!moves(transfer)) continue;
    for (const LinkStage& stage : *transfer.stages)
      for (const LinkUse& use : stage) load[static_cast<size_t>(use.link)] += use.weight;
  }
  double next_s = limit_s;
  std::vector<double> rates;
  auto first_to_end = active_.end();
  for (auto transfer = active_.begin(); transfer != active_.end(); ++transfer) {
    rates.push_back(moves(*transfer) ? rate(*transfer, load) : 0.0);
    const bool moving = moves(*transfer);
    const double event_s =
        !moving ? transfer->begin_s : now_s_ + (transfer->bytes > 0 ? transfer->bytes / rates.back() : 0.0);
    if (event_s > next_s) continue;
    next_s = event_s;
    first_to_end = moving ? transfer : active_.end();
  }
  const bool event = next_s < limit_s || first_to_end != active_.end();
  for (size_t i = 0; next_s > now_s_ && i < active_.size(); ++i)
    if (rates[i] > 0) active_[i].bytes = std::max(0.0, active_[i].bytes - rates[i] * (next_s - now_s_));
  now_s_ = next_s;
  if (first_to_end != active_.end()) {
    active_.erase(first_to_end);
    last_end_s_ = now_s_;
  }
  return event;
}

}  // namespace fivefold
