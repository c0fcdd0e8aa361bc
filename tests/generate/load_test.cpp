#include "megatron/generate/load.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include "megatron/base/error.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/config/options.h"
#include "tests/testing/dense_model.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::generate {
namespace {

namespace fs = std::filesystem;
using megatron::testing::make_store;
using megatron::testing::random_weights;
using megatron::testing::slice_of;

plan::ModelShape shape_of(std::int64_t padded_vocab) {
  return {.num_layers = 1,
          .hidden = 8,
          .num_heads = 4,
          .ffn_hidden = 12,
          .vocab = 10,
          .padded_vocab = padded_vocab,
          .max_positions = 6};
}

class Load : public ::testing::Test {
 protected:
  /// A checkpoint as a run of one rank leaves it: no rows of padding.
  void save(const megatron::testing::Tensors& weights, const checkpoint::Metadata& metadata) const {
    std::vector<checkpoint::ShardedTensor> tensors;
    for (const auto& [name, value] : weights) {
      const bool words = name == "embedding.word_embeddings.weight";
      const auto data = words ? value.detach().narrow(0, 0, 10) : value.detach();
      tensors.push_back(
          {name, data.sizes().vec(), std::vector<std::int64_t>(value.sizes().size(), 0), data.contiguous()});
    }
    checkpoint::save(folder_ / "checkpoints", 7, tensors, metadata, {});
  }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_F(Load, FillsEveryLayoutWhateverItsPadding) {
  const auto weights = random_weights(shape_of(12), 3);
  save(weights, {});
  for (const int t : {1, 2, 4}) {
    const auto shape = shape_of(t == 1 ? 10 : 16);  // of 4 ranks the last holds nothing but padding
    for (int k = 0; k < t; ++k) {
      const auto store = make_store(shape, t, k);
      load_weights(folder_, store, shape);
      for (const auto& p : store.all()) {
        const bool words = p->spec.name == "embedding.word_embeddings.weight";
        const std::int64_t rows = words ? std::clamp<std::int64_t>(10 - p->spec.begin(), 0, p->value.size(0)) : -1;
        if (words && rows == 0) continue;
        const auto got = words ? p->value.detach().narrow(0, 0, rows) : p->value.detach();
        const auto full = weights.at(p->spec.name).detach();
        const auto expected = words ? full.narrow(0, p->spec.begin(), rows) : slice_of(full, p->spec);
        EXPECT_TRUE(at::equal(got, expected)) << p->spec.name << " on rank " << k << " of " << t;
      }
    }
  }
}

TEST_F(Load, ReadsTheRecipeThatTheCheckpointKeeps) {
  config::RunConfig config;
  config.model.hidden_size = 48;
  config.model.activation = "gelu";
  save(random_weights(shape_of(12), 3), {{"recipe", nlohmann::json(config::save_toml(config)).dump()}});
  for (const fs::path& folder : {folder_, folder_ / "checkpoints", folder_ / "checkpoints/iter_0000007"}) {
    EXPECT_EQ(checkpoint::saved_recipe(folder).model.hidden_size, 48);
    EXPECT_EQ(checkpoint::saved_recipe(folder).model.activation, "gelu");
  }
}

TEST_F(Load, RefusesACheckpointWithoutARecipeAndAFolderWithoutACheckpoint) {
  EXPECT_THROW(checkpoint::saved_recipe(folder_), ConfigError);
  save(random_weights(shape_of(12), 3), {});
  try {
    checkpoint::saved_recipe(folder_);
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("must hold the recipe"));
  }
}

}  // namespace
}  // namespace megatron::generate
