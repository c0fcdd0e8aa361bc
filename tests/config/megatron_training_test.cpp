#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "megatron/config/options.h"
#include "tests/config/megatron_words.h"

// Megatron-LM's weight decay that grows, its cyclic order, first weights and first validation.
namespace megatron::config {
namespace {

using testing::HasSubstr;

constexpr const char* kSmall =
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 4 --train-iters 100 --lr 1e-4 ";

RunConfig recipe(const std::string& words) { return translation_of_words(words).config; }

TEST(MegatronTraining, LetWeightDecayGrowOverTheRun) {
  const std::string small = std::string(kSmall) + "--global-batch-size 32 ",
                    ends = "--start-weight-decay 0.01 --end-weight-decay 0.1 ",
                    both = ends + "--weight-decay-incr-style ";
  const ScheduleConfig grows = recipe(small + both + "cosine").schedule;
  EXPECT_EQ(grows.weight_decay_incr_style, "cosine");
  EXPECT_EQ(grows.start_weight_decay, 0.01);
  EXPECT_EQ(grows.end_weight_decay, 0.1);
  EXPECT_EQ(grows.weight_decay_incr_samples, 3200);
  const std::string samples = std::string(small).replace(small.find("--train-iters 100"), 17, "--train-samples 650");
  EXPECT_EQ(recipe(samples + both + "linear").schedule.weight_decay_incr_samples, 650);
  EXPECT_EQ(recipe(small).schedule.weight_decay_incr_samples, 0);
  EXPECT_THAT(refusal_of_words(small + ends),
              HasSubstr("fix:  --weight-decay-incr-style linear, or --weight-decay 0.01"));
  EXPECT_THAT(refusal_of_words(small + "--weight-decay-incr-style linear --end-weight-decay 1"),
              HasSubstr("--start-weight-decay must be given with --weight-decay-incr-style linear."));
}

TEST(MegatronTraining, TakeSamplesCyclically) {
  const std::string small = kSmall;
  const DataConfig cyclic = recipe(small + "--dataloader-type cyclic --no-data-sharding").data;
  EXPECT_EQ(cyclic.dataloader_type, "cyclic");
  EXPECT_EQ(cyclic.cyclic_batch, 4);
  EXPECT_EQ(save_toml(recipe(small + "--dataloader-type single")), save_toml(recipe(small)));
  EXPECT_THAT(refusal_of_words(small + "--dataloader-type external"), HasSubstr("(external data loader)"));
}

TEST(MegatronTraining, DrawFirstWeightsAndBeginToValidateAsTheySay) {
  const std::string small = kSmall;
  const ModelConfig model =
      recipe(small + "--init-method-xavier-uniform --embedding-init-method-std 0.5 --init-method-std 0.1").model;
  EXPECT_TRUE(model.init_method_xavier_uniform);
  EXPECT_EQ(model.embedding_init_method_std, 0.5);
  EXPECT_EQ(recipe(small).model.embedding_init_method_std, 0);
  EXPECT_EQ(recipe(small + "--eval-interval 5 --start-eval-at-iter 20").train.start_eval_at_iter, 20);
  EXPECT_THAT(translation_of_words(small + "--start-eval-at-iter 20").ignored.back().text,
              HasSubstr("without --eval-interval"));
}

}  // namespace
}  // namespace megatron::config
