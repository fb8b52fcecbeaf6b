// Faults that users of other tools met with adapters, under the names of their cases.
#include <gtest/gtest.h>

#include "support/predicted.h"
#include "support/tiny_model.h"

namespace fivefold::testing {
namespace {

ProbeRequest request(const Layout& layout, int updates, std::vector<std::string> settings = {}) {
  settings.insert(settings.end(), {"method.kind=lora", "method.rank=4", "optimizer.lr=0.05", "comm.timeout_s=60"});
  const ModelSpec model = tiny_model(TinyKind::kLlama);
  ProbeRequest asked = tiny_request(model, ragged_batch(model, {16, 3, 9, 7}), layout, settings);
  asked.model = with_method(model, asked.config.config.method);
  asked.updates = updates;
  asked.want_parameters = updates > 0;
  return asked;
}

// E29: factors that ranks of a tensor group hold alike have gradients in parts. B starts at zero, so that a gradient of
// A that is not summed shows from the second step on only.
TEST(AdapterCases, E29ReplicatedFactorsAreSummedOverTensorRanks) {
  const ProbeResult one = probe(request({.micro = 4}, 3));
  for (const Layout& layout : {Layout{.micro = 4, .tp = 2, .sp = true}, Layout{.micro = 4, .tp = 4, .sp = true},
                               Layout{.dp = 2, .zero = 2, .micro = 2, .tp = 2}}) {
    SCOPED_TRACE(layout.name());
    const ProbeResult many = probe(request(layout, 3));
    EXPECT_LT(largest_difference(many.parameters, one.parameters), 1e-5);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(many.grad_norms[i] / one.grad_norms[i], 1, 1e-5) << i;
      EXPECT_NEAR(many.losses[i], one.losses[i], 1e-5) << i;
    }
    for (const uint64_t hash : many.parameter_hashes) EXPECT_EQ(hash, many.parameter_hashes[0]);
  }
}

// E89: nothing of the first stage is trained (the embedding alone), and only the last has adapters: nobody waits for a
// gradient that is not made, and the numbers are those of one rank.
TEST(AdapterCases, E89StagesWithoutTrainedParameters) {
  const ProbeResult one = probe(request({.micro = 1, .accumulation = 4}, 2));
  for (const char* schedule : {"gpipe", "1f1b", "zb1p"}) {
    for (const int zero : {0, 1, 3}) {
      Layout layout{.dp = 2, .zero = zero, .micro = 1, .accumulation = 2, .pp = 2, .schedule = schedule};
      layout.stages = "[0, 2]";
      SCOPED_TRACE(layout.name());
      const ProbeRequest asked = request(layout, 2);
      const ProbeResult many = probe(asked);
      EXPECT_LT(largest_difference(many.gradients, one.gradients), 1e-5);
      EXPECT_LT(largest_difference(many.parameters, one.parameters), 1e-5);
      expect_predicted(asked.model, build_inventory(asked.model), asked, many);
    }
  }
}

// E47: a mask is drawn again wherever what it was drawn for is computed again, as the same one.
TEST(AdapterCases, E47RecomputeDrawsTheSameDropout) {
  const std::vector<std::string> methods[] = {
      {"method.dropout=0.1"}, {"method.dropout=0.5", "method.dora=true"}, {"method.dropout=0.1", "method.kind=qlora"}};
  for (const std::vector<std::string>& method : methods) {
    for (const char* compute : {"fp32", "bf16"}) {
      const Layout plain{.micro = 2, .accumulation = 2, .compute = compute};
      const ProbeResult kept = probe(request(plain, 2, method));
      for (const auto& [every, drop] :
           {std::pair<int, const char*>{1, ""}, {2, ""}, {0, "attention.qkv"}, {0, "attention.qkv,mlp.gate_up"}}) {
        Layout layout = plain;
        layout.recompute_every = every;
        layout.drop = drop;
        SCOPED_TRACE(layout.name());
        const ProbeResult again = probe(request(layout, 2, method));
        EXPECT_EQ(again.losses, kept.losses);
        EXPECT_TRUE(same_bits(again.gradients, kept.gradients));
        EXPECT_TRUE(same_bits(again.parameters, kept.parameters));
      }
    }
  }
}

// A mask is of the token and the column, not of the rank that has them.
TEST(AdapterCases, DropoutIsTheSameOnEveryLayout) {
  for (const char* dora : {"method.dora=false", "method.dora=true"}) {
    const std::vector<std::string> method = {dora, "method.dropout=0.3"};
    const ProbeResult one = probe(request({.micro = 4}, 2, method));
    EXPECT_GT(largest_difference(one.gradients, probe(request({.micro = 4}, 2, {dora})).gradients), 0.05);
    for (const Layout& layout :
         {Layout{.micro = 1, .accumulation = 4}, Layout{.dp = 2, .zero = 3, .micro = 1, .accumulation = 2},
          Layout{.dp = 4, .zero = 1, .micro = 1}, Layout{.micro = 4, .tp = 2}, Layout{.micro = 4, .tp = 4, .sp = true},
          Layout{.micro = 4, .cp = 2, .cp_kind = "ring"},
          Layout{.micro = 2, .accumulation = 2, .cp = 2, .cp_kind = "ulysses"},
          Layout{.micro = 1, .accumulation = 4, .pp = 2, .schedule = "zb1p"},
          Layout{.dp = 2,
                 .zero = 2,
                 .micro = 1,
                 .accumulation = 2,
                 .tp = 2,
                 .sp = true,
                 .cp = 2,
                 .cp_kind = "all_gather"}}) {
      SCOPED_TRACE(layout.name());
      const ProbeRequest asked = request(layout, 2, method);
      const ProbeResult many = probe(asked);
      EXPECT_LT(largest_difference(many.gradients, one.gradients), 1e-5);
      EXPECT_LT(largest_difference(many.parameters, one.parameters), 1e-5);
      for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(many.grad_norms[i] / one.grad_norms[i], 1, 1e-5) << i;
      expect_predicted(asked.model, build_inventory(asked.model), asked, many);
    }
  }
}

}  // namespace
}  // namespace fivefold::testing
