#include "policy/cost/prefill_model.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

// About an 8-billion-parameter model on one fast GPU.
constexpr PrefillCoefficients kTrue = {
    .step_ms = 8, .ms_per_token = 0.06, .ms_per_token_pair = 5e-7};

PrefillSample SampleOf(const PrefillCoefficients& coefficients, uint32_t tokens, uint32_t context,
                       double noise = 1) {
  return {tokens, context, coefficients.Milliseconds(tokens, context) * noise};
}

PrefillSample RandomSample(const PrefillCoefficients& coefficients, SeededRandom* random,
                           double noise_part = 0) {
  const auto tokens = static_cast<uint32_t>(1 + random->Below(16'000));
  const auto context = static_cast<uint32_t>(random->Below(100'000));
  const double noise = 1 + noise_part * (static_cast<double>(random->Below(2001)) / 1000 - 1);
  return SampleOf(coefficients, tokens, context, noise);
}

TEST(PrefillModelTest, IsUnknownBeforeEnoughSamples) {
  PrefillModel model({.min_samples = 3});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(model.EstimateMs(100, 0), std::nullopt);
    EXPECT_EQ(model.coefficients(), std::nullopt);
    model.Add(SampleOf(kTrue, 1000, 0));
  }
  EXPECT_TRUE(model.EstimateMs(100, 0).has_value());
}

TEST(PrefillModelTest, NothingToPrefillTakesNoTime) { EXPECT_EQ(kTrue.Milliseconds(0, 1000), 0); }

TEST(PrefillModelTest, NonsenseIsIgnored) {
  PrefillModel model({});
  model.Add({.tokens = 0, .context = 5, .elapsed_ms = 10});
  model.Add({.tokens = 10, .context = 5, .elapsed_ms = 0});
  model.Add({.tokens = 10, .context = 5, .elapsed_ms = -4});
  model.Add({.tokens = 10, .context = 5, .elapsed_ms = 1e12});
  model.Add({.tokens = 10, .context = 5, .elapsed_ms = std::nan("")});
  EXPECT_EQ(model.samples(), 0u);
}

TEST(PrefillModelTest, FindsTheCoefficientsOfAnExactEngine) {
  PrefillModel model({});
  SeededRandom random(1);
  for (int i = 0; i < 200; ++i) model.Add(RandomSample(kTrue, &random));
  const auto fitted = model.coefficients();
  ASSERT_TRUE(fitted.has_value());
  EXPECT_NEAR(fitted->step_ms, kTrue.step_ms, 0.1 * kTrue.step_ms);
  EXPECT_NEAR(fitted->ms_per_token, kTrue.ms_per_token, 0.01 * kTrue.ms_per_token);
  EXPECT_NEAR(fitted->ms_per_token_pair, kTrue.ms_per_token_pair, 0.01 * kTrue.ms_per_token_pair);
}

TEST(PrefillModelTest, NoiseOfATenthGivesEstimatesWithinATenth) {
  PrefillModel model({});
  SeededRandom random(2);
  for (int i = 0; i < 500; ++i) model.Add(RandomSample(kTrue, &random, 0.1));
  for (int i = 0; i < 100; ++i) {
    const PrefillSample sample = RandomSample(kTrue, &random);
    if (sample.tokens < 256) continue;
    EXPECT_NEAR(*model.EstimateMs(sample.tokens, sample.context), sample.elapsed_ms,
                0.1 * sample.elapsed_ms);
  }
}

TEST(PrefillModelTest, CoefficientsAreNeverNegative) {
  PrefillModel model({});
  // Shorter for more tokens: the best straight line would fall.
  for (int i = 0; i < 50; ++i) {
    model.Add({.tokens = 1000, .context = 0, .elapsed_ms = 100});
    model.Add({.tokens = 2000, .context = 500, .elapsed_ms = 50});
    const auto fitted = model.coefficients();
    if (!fitted.has_value()) continue;
    EXPECT_GE(fitted->step_ms, 0);
    EXPECT_GE(fitted->ms_per_token, 0);
    EXPECT_GE(fitted->ms_per_token_pair, 0);
  }
  EXPECT_GT(*model.EstimateMs(1500, 0), 10);
}

TEST(PrefillModelTest, SamplesOfOneSizeAreTakenToScaleWithTokens) {
  PrefillModel model({});
  for (int i = 0; i < 20; ++i) model.Add({.tokens = 2048, .context = 0, .elapsed_ms = 200});
  EXPECT_NEAR(*model.EstimateMs(2048, 0), 200, 2);
  EXPECT_NEAR(*model.EstimateMs(4096, 0), 400, 40);
  EXPECT_NEAR(*model.EstimateMs(1024, 0), 100, 10);
}

TEST(PrefillModelTest, FollowsAnEngineThatChanged) {
  PrefillModel model({});
  SeededRandom random(3);
  for (int i = 0; i < 500; ++i) model.Add(RandomSample(kTrue, &random));
  PrefillCoefficients twice = kTrue;
  twice.step_ms *= 2;
  twice.ms_per_token *= 2;
  twice.ms_per_token_pair *= 2;
  for (int i = 0; i < 300; ++i) model.Add(RandomSample(twice, &random));
  EXPECT_NEAR(*model.EstimateMs(8192, 8192), twice.Milliseconds(8192, 8192),
              0.02 * twice.Milliseconds(8192, 8192));
}

TEST(PrefillModelTest, StaysFiniteAfterMillionsOfSamples) {
  PrefillModel model({});
  for (int i = 0; i < 1'000'000; ++i) model.Add({.tokens = 512, .context = 64, .elapsed_ms = 30});
  EXPECT_NEAR(*model.EstimateMs(512, 64), 30, 0.5);
}

TEST(PrefillModelsTest, EveryEngineAndLayoutHasItsOwn) {
  PrefillModels models({.model = {.min_samples = 1}});
  models.Add({.layout = 1, .engine = 1}, {.tokens = 1000, .context = 0, .elapsed_ms = 10});
  models.Add({.layout = 1, .engine = 2}, {.tokens = 1000, .context = 0, .elapsed_ms = 100});
  models.Add({.layout = 2, .engine = 1}, {.tokens = 1000, .context = 0, .elapsed_ms = 1000});
  const auto ms = [&](uint16_t layout, uint32_t engine) {
    return models.Find({.layout = layout, .engine = engine})->Milliseconds(1000, 0);
  };
  EXPECT_NEAR(ms(1, 1), 10, 0.1);
  EXPECT_NEAR(ms(1, 2), 100, 1);
  EXPECT_NEAR(ms(2, 1), 1000, 10);
  EXPECT_NEAR(ms(1, 9), 100, 1);  // The layout's latest.
  EXPECT_FALSE(models.Find({.layout = 3, .engine = 1}).has_value());
  models.Forget(1);
  EXPECT_EQ(models.size(), 1u);
  EXPECT_FALSE(models.Find({.layout = 2, .engine = 1}).has_value());
}

// It would tell how fast the other's engines are, and could be lied to by them.
TEST(PrefillModelsTest, NoTenantHearsOfAnothersEngines) {
  PrefillModels models({.model = {.min_samples = 1}});
  const PrefillSample sample{.tokens = 1000, .context = 0, .elapsed_ms = 10};
  models.Add({.tenant = 1, .layout = 1, .engine = 1}, sample);
  EXPECT_TRUE(models.Find({.tenant = 1, .layout = 1, .engine = 2}).has_value());
  EXPECT_FALSE(models.Find({.tenant = 2, .layout = 1, .engine = 2}).has_value());
}

TEST(PrefillModelsTest, WhatWasHeardLastOfALayoutOutlivesTheEngine) {
  PrefillModels models({.model = {.min_samples = 2}});
  const PrefillSample slow{.tokens = 1000, .context = 0, .elapsed_ms = 100};
  const PrefillSample fast{.tokens = 1000, .context = 0, .elapsed_ms = 10};
  models.Add({.tenant = 1, .layout = 1, .engine = 1}, slow);
  EXPECT_FALSE(models.Latest(1, 1).has_value());
  models.Add({.tenant = 1, .layout = 1, .engine = 1}, slow);
  for (int i = 0; i < 2; ++i) models.Add({.tenant = 1, .layout = 1, .engine = 2}, fast);
  EXPECT_NEAR(models.Latest(1, 1)->Milliseconds(1000, 0), 10, 0.1);
  models.Forget(2);
  EXPECT_NEAR(models.Latest(1, 1)->Milliseconds(1000, 0), 10, 0.1);
  EXPECT_FALSE(models.Latest(2, 1).has_value());
  EXPECT_FALSE(models.Latest(1, 2).has_value());
  models.ForgetLayout(1);
  EXPECT_FALSE(models.Latest(1, 1).has_value());
}

TEST(PrefillModelsTest, ATenantOfManyEnginesPushesOutItsOwn) {
  PrefillModels models({.model = {.min_samples = 1}, .max_models = 4});
  const PrefillSample sample{.tokens = 1000, .context = 0, .elapsed_ms = 10};
  models.Add({.tenant = 1, .layout = 1, .engine = 1}, sample);
  for (uint32_t engine = 2; engine < 100; ++engine) {
    models.Add({.tenant = 2, .layout = 1, .engine = engine}, sample);
  }
  EXPECT_EQ(models.size(), 4u);
  EXPECT_TRUE(models.Find({.tenant = 1, .layout = 1, .engine = 1}).has_value());
}

TEST(PrefillModelsTest, TheOneLongestWithoutASampleMakesRoom) {
  PrefillModels models({.model = {.min_samples = 1}, .max_models = 2});
  const PrefillSample sample{.tokens = 1000, .context = 0, .elapsed_ms = 10};
  const PrefillName first{.layout = 1, .engine = 1};
  const PrefillName second{.layout = 2, .engine = 2};
  const PrefillName third{.layout = 3, .engine = 3};
  for (const PrefillName& name : {first, second, first, third}) models.Add(name, sample);
  EXPECT_EQ(models.size(), 2u);
  EXPECT_TRUE(models.Find(first).has_value());
  EXPECT_FALSE(models.Find(second).has_value());
  EXPECT_TRUE(models.Find(third).has_value());
}

}  // namespace
}  // namespace aquifer
