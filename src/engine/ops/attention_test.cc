#include "engine/ops/attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <vector>

#include "engine/ops/attention_testing.h"

namespace fivefold::ops {
namespace {

template <typename Element>
void expect_matches_reference(const AttentionCase& c) {
  SCOPED_TRACE(testing::PrintToString(c));
  AttentionCall<Element> call(c);
  const AttentionReference reference(call);
  call.forward();
  const double o = share_of_bound(call.o, reference.o), lse = share_of_bound(call.lse, reference.lse);
  call.backward();
  const double d_qkv = gradient_share(call, reference);
  EXPECT_LE(o, 1.0);
  EXPECT_LE(lse, 1.0);
  EXPECT_LE(d_qkv, 1.0);
  std::cout << "share of bound: o " << o << ", lse " << lse << ", d_qkv " << d_qkv << " (" << c << ")\n";
}

// Lengths around the tile (64), the strips (256, 512) and the sharing of strips (up to 4 blocks, up to 4 heads).
const AttentionCase kCases[] = {
    {{1}, 1, 1, 8},
    {{2}, 1, 1, 64},
    {{63}, 2, 1, 10},
    {{64}, 2, 2, 12},
    {{65}, 4, 2, 16},
    {{127}, 4, 1, 64},
    {{128}, 3, 1, 80},
    {{129}, 5, 1, 12},
    {{255}, 6, 2, 8},
    {{257}, 8, 1, 10},
    {{300}, 8, 4, 64},
    {{300}, 2, 2, 128},
    {{513}, 2, 1, 16},
    {{700}, 1, 1, 12},
    {{1, 1, 1}, 4, 2, 64},
    {{1, 63, 64, 65}, 4, 4, 8},
    {{300, 1, 127}, 8, 2, 16},
    {{5, 0, 7}, 2, 1, 64},
    {{64, 64, 64, 64}, 4, 2, 80},
    {{17, 100, 31, 2, 90}, 8, 8, 10},
    {{17, 100, 31, 2, 90}, 8, 4, 12},
    {{17, 100, 31, 2, 90}, 8, 2, 80},
    {{17, 100, 31, 2, 90}, 8, 1, 128},
    {{33, 260}, 12, 3, 16},
    {{512, 40}, 4, 2, 32},
    {{191, 193}, 9, 3, 24},
    {{577}, 16, 2, 8},
    {{130}, 2, 1, 288},
    {{66}, 2, 2, 1},
    {{1025}, 2, 1, 8},
};

TEST(Attention, MatchesDefinitionInFp32) {
  for (const AttentionCase& c : kCases) expect_matches_reference<float>(c);
}

TEST(Attention, MatchesDefinitionInBf16) {
  for (const AttentionCase& c : kCases) expect_matches_reference<BFloat16>(c);
}
TEST(Attention, MatchesDefinitionInFp16) {
  for (const AttentionCase& c : kCases) expect_matches_reference<Float16>(c);
}

// 600 keys (768 padded) of width 352 are past what backward keeps of a whole document (2^18 elements), on any number of
// threads.
TEST(Attention, MatchesDefinitionBeyondKeptKeys) {
  const AttentionCase c{{600}, 1, 1, 352};
  ASSERT_FALSE(attention_backward_fits_fused(AttentionCall<float>(c).layout.shape()));
  expect_matches_reference<float>(c);
  expect_matches_reference<BFloat16>(c);
  expect_matches_reference<Float16>(c);
}

// Without oneDNN bf16 runs on fp32 tiles, and fp32 products on the BLAS.
TEST(Attention, MatchesDefinitionWithoutOneDnn) {
  at::globalContext().setUserEnabledMkldnn(false);
  for (const AttentionCase& c : {kCases[6], kCases[10], kCases[16]}) {
    expect_matches_reference<float>(c);
    expect_matches_reference<BFloat16>(c);
  }
  at::globalContext().setUserEnabledMkldnn(true);
}

// Scores of +-60 and more: the softmax must subtract its maximum, in every strip.
TEST(Attention, HoldsForLargeScores) {
  AttentionCall<float> call({{600, 70}, 2, 1, 16});
  for (float& x : call.qkv) x *= 8.0f;
  const AttentionReference reference(call);
  call.forward();
  call.backward();
  EXPECT_LE(share_of_bound(call.o, reference.o), 1.0);
  EXPECT_LE(share_of_bound(call.lse, reference.lse), 1.0);
  EXPECT_LE(gradient_share(call, reference), 1.0);
}

// ATen's own flash attention, one document after the other. Each side is within the bound of the definition.
TEST(Attention, AgreesWithAtenFlashAttention) {
  for (const AttentionCase& c :
       {AttentionCase{{300, 65}, 8, 4, 64}, AttentionCase{{127, 64}, 4, 4, 80}, AttentionCase{{200}, 8, 1, 16}}) {
    SCOPED_TRACE(testing::PrintToString(c));
    AttentionCall<float> call(c);
    const AttentionReference reference(call);
    call.forward();
    call.backward();
    const int64_t a = c.num_heads, k = c.num_kv_heads, d = c.head_dim;
    AttentionReference aten = reference;
    for (size_t i = 0; i < c.lengths.size(); ++i) {
      const int64_t begin = call.offsets[i], length = c.lengths[i];
      const at::Tensor rows = at::from_blob(call.qkv.data() + begin * call.row, {length, a + 2 * k, d});
      const auto heads = [&](int64_t first, int64_t count) {
        return rows.narrow(1, first, count).transpose(0, 1).repeat_interleave(a / count, 0).unsqueeze(0).contiguous();
      };
      const at::Tensor q = heads(0, a), key = heads(a, k), value = heads(a + k, k);
      const at::Tensor d_o = at::from_blob(call.d_o.data() + begin * a * d, {1, length, a, d}).transpose(1, 2);
      const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, key, value, 0.0, true);
      const auto [dq, dk, dv] =
          at::_scaled_dot_product_flash_attention_for_cpu_backward(d_o, q, key, value, out, lse, 0.0, true);
      const auto summed = [&](const at::Tensor& g) { return g.view({k, a / k, length, d}).sum(1).transpose(0, 1); };
      const auto place = [&](const at::Tensor& from, Bounded& to, int64_t heads_of_row) {
        const at::Tensor plain = from.contiguous();
        std::copy_n(plain.data_ptr<float>(), plain.numel(), to.value.begin() + begin * heads_of_row * d);
      };
      place(out[0].transpose(0, 1), aten.o, a);
      place(dq[0].transpose(0, 1), aten.d_q, a);
      place(summed(dk), aten.d_k, k);
      place(summed(dv), aten.d_v, k);
    }
    EXPECT_LE(share_of_bound(call.o, aten.o, 2.0), 1.0);
    EXPECT_LE(gradient_share(call, aten), 2.0);
  }
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// One document with one key head is one fused task on one thread and is split on more.
template <typename Element>
void expect_same_bits_for_every_thread_count() {
  const int threads_before = at::get_num_threads();
  for (const AttentionCase& c : {AttentionCase{{600}, 4, 1, 64}, AttentionCase{{700}, 1, 1, 16},
                                 AttentionCase{{17, 100, 300, 2, 90}, 8, 2, 80}, AttentionCase{{320}, 6, 1, 10}}) {
    SCOPED_TRACE(testing::PrintToString(c));
    at::set_num_threads(1);
    AttentionCall<Element> one(c);
    one.forward();
    one.backward();
    for (const int threads : {1, 2, 3, 7}) {
      at::set_num_threads(threads);
      AttentionCall<Element> many(c);
      many.forward();
      many.backward();
      EXPECT_TRUE(same_bits(one.o, many.o)) << threads << " threads";
      EXPECT_TRUE(same_bits(one.lse, many.lse)) << threads << " threads";
      EXPECT_TRUE(same_bits(one.d_qkv, many.d_qkv)) << threads << " threads";
    }
  }
  at::set_num_threads(threads_before);
}

TEST(Attention, BitsDoNotDependOnTheNumberOfThreads) {
  expect_same_bits_for_every_thread_count<float>();
  expect_same_bits_for_every_thread_count<BFloat16>();
  expect_same_bits_for_every_thread_count<Float16>();
}

// Between documents nothing passes, be it NaN: B between neighbours of NaN has the bits of B alone.
template <typename Element>
void expect_documents_do_not_see_each_other(int32_t length) {
  const int64_t a = 4, k = 2, d = 16;
  AttentionCall<Element> alone({{length}, a, k, d});
  AttentionCall<Element> packed({{70, length, 5}, a, k, d});
  std::fill(packed.qkv.begin(), packed.qkv.end(), from_float<Element>(NAN));
  std::fill(packed.d_o.begin(), packed.d_o.end(), from_float<Element>(NAN));
  std::copy(alone.qkv.begin(), alone.qkv.end(), packed.qkv.begin() + 70 * alone.row);
  std::copy(alone.d_o.begin(), alone.d_o.end(), packed.d_o.begin() + 70 * a * d);
  for (AttentionCall<Element>* call : {&alone, &packed}) {
    call->forward();
    call->backward();
  }
  const auto is_at = [](const auto& part, const auto& whole, int64_t first) {
    return std::memcmp(part.data(), whole.data() + first, part.size() * sizeof(part[0])) == 0;
  };
  EXPECT_TRUE(is_at(alone.o, packed.o, 70 * a * d)) << length;
  EXPECT_TRUE(is_at(alone.d_qkv, packed.d_qkv, 70 * alone.row)) << length;
  for (int64_t head = 0; head < a; ++head) {
    EXPECT_EQ(0, std::memcmp(&alone.lse[head * length], &packed.lse[head * packed.tokens + 70], length * 4)) << length;
  }
}

TEST(Attention, DocumentsDoNotSeeEachOther) {
  for (const int32_t length : {1, 63, 64, 100, 300}) {
    expect_documents_do_not_see_each_other<float>(length);
    expect_documents_do_not_see_each_other<BFloat16>(length);
  }
}

// A later token of the same document, NaN included, changes nothing before it.
TEST(Attention, EarlierTokensDoNotSeeLaterOnes) {
  AttentionCall<float> whole({{150}, 2, 1, 16}), cut({{100}, 2, 1, 16});
  std::copy(cut.qkv.begin(), cut.qkv.end(), whole.qkv.begin());
  for (float& x : whole.qkv) x = &x - whole.qkv.data() < 100 * whole.row ? x : 1e30f;
  whole.forward();
  cut.forward();
  EXPECT_EQ(0, std::memcmp(whole.o.data(), cut.o.data(), cut.o.size() * sizeof(float)));
}

// A row of one token: the only probability is 1, so o = v, and lse = scale q.k.
TEST(Attention, OneTokenReturnsItsValue) {
  AttentionCall<float> call({{1}, 1, 1, 2});
  call.qkv = {3.0f, 4.0f, 0.5f, 0.25f, 7.0f, -9.0f};  // q, k, v
  call.layout.scale = 2.0f;
  call.forward();
  EXPECT_FLOAT_EQ(call.o[0], 7.0f);
  EXPECT_FLOAT_EQ(call.o[1], -9.0f);
  EXPECT_NEAR(call.lse[0], 5.0f, 5.0f * 0x1p-22);  // 2 (3 / 2 + 4 / 4) = 5
}

TEST(Attention, LeavesGapsBetweenRowsAlone) {
  const AttentionCase c{{70, 3}, 4, 2, 10};
  AttentionCall<BFloat16> call(c, /*gap=*/6);
  const AttentionReference reference(call);
  const BFloat16 mark{0x1234};
  std::fill(call.d_qkv.begin(), call.d_qkv.end(), mark);
  call.forward();
  call.backward();
  EXPECT_LE(share_of_bound(call.o, reference.o), 1.0);
  for (int64_t t = 0; t < call.tokens; ++t) {
    for (int64_t i = 0; i < 6; ++i) {
      BFloat16& in_gap = call.d_qkv[static_cast<size_t>(t * call.layout.q_stride + call.row + i)];
      ASSERT_EQ(in_gap.bits, mark.bits);
      in_gap = BFloat16{0};
    }
  }
  EXPECT_LE(gradient_share(call, reference), 1.0);
}

TEST(Attention, NoTokensIsNoWork) {
  AttentionCall<float> call({{0, 0}, 2, 1, 16});
  call.forward();
  call.backward();
}

// By hand, w = 64: 6400 * 64 + 198656 = 608256; 8448 * 64 + 231424 + 8 * 512 * 64 = 1034240.
// w = 128, 2048 tokens: 819200 + 198656 = 1017856; 1081344 + 231424 + 8 * 2048 * 128 = 3409920; with 2049 tokens
// 8 * 256 * 128 = 262144 in place of 2097152: 1574912. Heads of 10 are padded to 16: 6400 * 16 + 198656 = 301056.
TEST(Attention, ScratchIsTheStatedFormula) {
  const auto shape = [](int64_t longest, int64_t d) {
    return AttentionShape{.max_segment_keys = longest, .head_dim = d};
  };
  EXPECT_EQ(attention_forward_scratch_bytes(shape(512, 64), 1), 608256);
  EXPECT_EQ(attention_forward_scratch_bytes(shape(2048, 128), 2), 2 * 1017856);
  EXPECT_EQ(attention_forward_scratch_bytes(shape(9, 10), 1), 301056);
  EXPECT_EQ(attention_backward_scratch_bytes(shape(512, 64), 1), 1034240);
  EXPECT_EQ(attention_backward_scratch_bytes(shape(2048, 128), 2), 2 * 3409920);
  EXPECT_EQ(attention_backward_scratch_bytes(shape(2049, 128), 1), 1574912);
}

}  // namespace
}  // namespace fivefold::ops
