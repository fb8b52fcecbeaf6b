// What is trained: the method and its adapters.
#include "spec/validate_testing.h"

namespace fivefold::test {
namespace {

TEST(ValidateMethod, AdaptersOfLinearsThatThereAre) {
  const ModelSpec dense = dense_model();
  EXPECT_EQ(layout(dense, {"method.kind=lora", "method.targets=q_proj,v_proj"}), Messages{});
  expect_layout_errors({
      {dense,
       {"method.kind=lora", "method.rank=8192"},
       {"method.rank: 8192 is not low: the model is 4096 wide (use rank = 64, or kind = full)"}},
      {dense,
       {"method.kind=qlora", "method.targets=[]"},
       {"method.targets: an adapter needs linears to adapt (use [\"all-linear\"])"}},
      {dense,
       {"method.kind=lora", "method.targets=q_prj"},
       {"method.targets: the model has no linear q_prj (did you mean q_proj?)"}},
  });
}

TEST(ValidateMethod, EngineRunsEveryKindOfAdapter) {
  for (const char* kind : {"method.kind=lora", "method.kind=qlora"})
    EXPECT_EQ(engine(dense_model(), {kind, "method.dora=true", "method.dropout=0.1", "method.rank_stabilized=true"}),
              Messages{});
}

}  // namespace
}  // namespace fivefold::test
