#include "megatron/interchange/megatron_lm/dist/torch_dist.h"

#include <ATen/ops/randn.h>

#include <functional>

#include "megatron/families/hf_config.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/import.h"
#include "megatron/interchange/megatron_lm/dist/torch_dist_write.h"
#include "megatron/interchange/training_state.h"
#include "megatron/interchange/weights.h"
#include "megatron/plan/parameters/parameters.h"
#include "tests/interchange/in_memory.h"
#include "tests/interchange/support.h"
#include "tests/testing/folders.h"

// That Megatron-Core reads and writes such folders is for tests/interop/test_megatron_core.py. The weights here are
// those of Megatron-Core in another format.
namespace megatron::interchange {
namespace {

namespace fs = std::filesystem;

/// A folder written of the unpacked interchange/NAME.
struct Written {
  explicit Written(const std::string& name) : source(fs::path(unpacked_folder()) / "interchange" / name) {
    write_torch_dist(*open_weights(source), export_config(source), folder.path() / "dist", {});
  }
  fs::path place() const { return folder.path() / "dist/release"; }
  /// Replaces a text in a file by one as long.
  void replace(const std::string& file, const std::string& from, const std::string& to) const {
    ASSERT_EQ(from.size(), to.size());
    std::string bytes = read_file(place() / file);
    const std::size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos);
    write_file(place() / file, bytes.replace(at, from.size(), to));
  }
  std::string refusal_of_reading() const {
    return refusal([&] { read_all(*open_weights(folder.path() / "dist")); });
  }

  TemporaryFolder folder;
  fs::path source;
};

TEST(TorchDist, WhatIsWrittenIsReadBack) {
  for (const char* name : {"gpt2", "llama"}) {
    const Written written(name);
    expect_same(read_all(*open_weights(written.folder.path() / "dist")), read_all(*open_weights(written.source)));
    EXPECT_EQ(differences(model_config_of(written.source), written.folder.path() / "dist"), std::vector<std::string>());
    EXPECT_FALSE(training_state_of(written.folder.path() / "dist"));
  }
}

/// What a run has after its first step, of numbers drawn at random.
struct Trained {
  explicit Trained(const config::RunConfig& run) {
    config.model = run.model;
    state.iteration = state.optimizer_steps = 1;
    state.consumed_samples = state.schedule_samples = run.train.global_batch_size;
    state.optimizer = run.optimizer.name;
    state.recipe = run;
    state.kinds = config::state_names(run.optimizer);
    for (const plan::ParameterSpec& spec : plan::model_parameters(families::shape_of(run.model), 1, 0)) {
      weights[spec.name] = tensors[spec.name] = at::randn(spec.shape);
      for (const std::string& kind :
           config::optimizer_info(run.optimizer.name).state(run.optimizer, spec.is_layer_matrix()))
        tensors[state_name(kind, spec.name)] = at::randn(spec.shape);
    }
    state.tensors = std::make_shared<InMemory>(tensors);
  }
  void write(const fs::path& folder) const {
    ExportOptions options;
    options.training = &state;
    write_torch_dist(InMemory(weights), config, folder, options);
  }

  families::FolderConfig config;
  TrainingState state;
  std::map<std::string, at::Tensor> weights, tensors;
};

// Matrices of layers have one kind of state, everything else two others.
TEST(TorchDist, ARunOfMuonIsReadBack) {
  config::RunConfig run = small_run();
  run.optimizer.name = "muon";
  run.optimizer.muon_momentum = 0.75;
  run.optimizer.muon_num_ns_steps = 4;
  run.optimizer.muon_split_qkv = run.optimizer.muon_nesterov = false;
  const Trained trained(run);
  const TemporaryFolder folder;
  trained.write(folder.path() / "dist");
  const auto back = training_state_of(folder.path() / "dist");
  ASSERT_TRUE(back);
  EXPECT_EQ(back->kinds, trained.state.kinds);
  for (const auto& [name, tensor] : trained.tensors) {
    ASSERT_NE(back->tensors->shape(name), nullptr) << name;
    EXPECT_TRUE(read_whole(*back->tensors, name).equal(tensor)) << name;  // 0.25 is a power of two
  }
  EXPECT_EQ(back->recipe.optimizer.muon_momentum, 0.75);
  EXPECT_EQ(back->recipe.optimizer.muon_num_ns_steps, 4);
  EXPECT_EQ(back->recipe.optimizer.muon_coefficient_type, "simple");
  EXPECT_FALSE(back->recipe.optimizer.muon_split_qkv || back->recipe.optimizer.muon_nesterov);
  // There its state is the mean of gradients: (1 - momentum) of what is kept here.
  config::RunConfig other = run;
  other.optimizer.muon_momentum = 0.5;
  EXPECT_EQ(written_share(other.optimizer, "momentum_buffer"), 0.5);
  EXPECT_EQ(written_share(other.optimizer, "exp_avg"), 1);
}

TEST(TorchDist, ARunOfMuonThatMegatronHasNotIsRefused) {
  for (const auto& change : std::vector<std::function<void(config::RunConfig&)>>{
           [](auto& run) { run.model.position_embedding_type = "learned_absolute"; },
           [](auto& run) { run.model.gated_linear_unit = true, run.model.activation = "silu"; }}) {
    config::RunConfig run = small_run();
    run.optimizer.name = "muon";
    change(run);
    const TemporaryFolder folder;
    const Trained trained(run);
    expect_refused([&] { trained.write(folder.path() / "dist"); }, {"Megatron-LM's Muon", "fix:  --weights-only"});
    write_torch_dist(InMemory(trained.weights), trained.config, folder.path() / "weights", {});
    run.optimizer.muon_split_gated = false;
    if (run.model.gated_linear_unit) Trained(run).write(folder.path() / "whole");
  }
}

TEST(TorchDist, CountersAheadOfTheIterationStaySo) {
  const TemporaryFolder folder;
  Trained trained(small_run());
  const auto written = [&](const char* name) {
    trained.write(folder.path() / name);
    return training_state_of(folder.path() / name);
  };
  const auto plain = written("plain");
  ASSERT_TRUE(plain);
  EXPECT_FALSE(plain->metadata().contains(kRenumbered));
  trained.state.schedule_samples = 5 * trained.state.consumed_samples;  // with checkpoint.override_ckpt_iteration
  trained.state.optimizer_steps = 5;
  const auto back = written("renumbered");
  ASSERT_TRUE(back);
  EXPECT_EQ(back->iteration, 1);
  EXPECT_EQ(back->consumed_samples, trained.state.consumed_samples);
  EXPECT_EQ(back->schedule_samples, trained.state.schedule_samples);
  EXPECT_EQ(back->optimizer_steps, 5);
  EXPECT_TRUE(back->metadata().contains(kRenumbered));
}

TEST(TorchDist, AShareOfWarmUpStaysOne) {
  config::RunConfig run = small_run();
  run.schedule.lr_warmup_fraction = 0.33;  // 18.48 samples
  const TemporaryFolder folder;
  Trained(run).write(folder.path() / "dist");
  const auto back = training_state_of(folder.path() / "dist");
  ASSERT_TRUE(back);
  EXPECT_EQ(back->recipe.schedule.lr_warmup_fraction, 0.33);
  EXPECT_EQ(back->recipe.schedule.lr_warmup_samples, 0);
  EXPECT_EQ(back->recipe.schedule.lr_decay_samples, 56);
}

TEST(TorchDist, WeightDecayThatGrowsAndFirstWeightsStayThatWay) {
  config::RunConfig run = small_run();
  run.schedule.weight_decay_incr_style = "cosine";
  run.schedule.start_weight_decay = 0.1;
  run.schedule.end_weight_decay = 0.3;
  run.schedule.weight_decay_incr_samples = 48;
  run.model.init_method_xavier_uniform = true;
  run.model.embedding_init_method_std = 0.5;
  run.data.dataloader_type = "cyclic";
  run.train.start_eval_at_iter = 3;
  const TemporaryFolder folder;
  Trained(run).write(folder.path() / "dist");
  const auto back = training_state_of(folder.path() / "dist");
  ASSERT_TRUE(back);
  const config::ScheduleConfig& schedule = back->recipe.schedule;
  EXPECT_EQ(schedule.weight_decay_incr_style, "cosine");
  EXPECT_EQ(schedule.start_weight_decay, 0.1);
  EXPECT_EQ(schedule.end_weight_decay, 0.3);
  EXPECT_EQ(schedule.weight_decay_incr_samples, 48);
  EXPECT_TRUE(back->recipe.model.init_method_xavier_uniform);
  EXPECT_EQ(back->recipe.model.embedding_init_method_std, 0.5);
  EXPECT_EQ(back->recipe.data.dataloader_type, "cyclic");
  EXPECT_EQ(back->recipe.data.cyclic_batch, 1);
  EXPECT_EQ(back->recipe.train.start_eval_at_iter, 3);
}

// Without biases there is no kernel that adds them, so gelu is the exact function there.
TEST(TorchDist, AnActivationThatMegatronHasNotIsRefused) {
  config::RunConfig run = small_run();
  run.model.add_bias_linear = false;
  run.model.activation = "gelu_tanh";
  const TemporaryFolder folder;
  expect_refused([&] { Trained(run).write(folder.path() / "dist"); }, {"gelu_tanh, model.add_bias_linear false"});
  run.model.activation = "gelu";
  Trained(run).write(folder.path() / "exact");
  EXPECT_EQ(differences(run.model, folder.path() / "exact"), std::vector<std::string>());
}

TEST(TorchDist, ASliceOfALayerIsThatOfTheTensorOfAllLayers) {
  const Written written("llama");
  const auto source = open_weights(written.folder.path() / "dist");
  const std::string name = "decoder.layers.2.mlp.linear_fc1.weight";
  const at::Tensor whole = read_whole(*open_weights(written.source), name);
  at::Tensor got = at::empty({13, 5}, at::kDouble);
  source->read(name, {{4, 2}, {13, 5}}, got);
  EXPECT_TRUE(got.equal(whole.narrow(0, 4, 13).narrow(1, 2, 5).to(at::kDouble)));
}

TEST(TorchDist, NamesOfFilesCannotLeaveTheFolder) {
  for (const char* name : {"/etc/passwd0", "../../secret", ".hidden_file", "a\0b_0.distcp"}) {
    const Written written("gpt2");
    written.replace(".metadata", "__0_0.distcp", std::string(name, 12));
    EXPECT_NE(written.refusal_of_reading().find("files of the folder itself"), std::string::npos) << name;
  }
}

TEST(TorchDist, AFileThatIsMissingOrCutIsRefused) {
  const Written cut("gpt2"), missing("gpt2"), index("gpt2");
  fs::resize_file(cut.place() / "__0_0.distcp", fs::file_size(cut.place() / "__0_0.distcp") / 2);
  EXPECT_NE(cut.refusal_of_reading().find("__0_0.distcp"), std::string::npos);
  fs::remove(missing.place() / "__0_0.distcp");
  EXPECT_NE(missing.refusal_of_reading().find("__0_0.distcp"), std::string::npos);
  fs::resize_file(index.place() / ".metadata", 100);
  EXPECT_NE(index.refusal_of_reading().find(".metadata"), std::string::npos);
}

TEST(TorchDist, AnIndexThatNamesAnythingElseIsRefused) {
  const Written written("gpt2");
  written.replace(".metadata", "torch.distributed.checkpoint.metadata\nMetadata\n",
                  "torch.distributed.checkpoint.metadatA\nMetadata\n");
  EXPECT_NE(written.refusal_of_reading().find("metadatA"), std::string::npos);
}

TEST(TorchDist, PartsThatDoNotMakeUpATensorAreRefused) {
  const Written written("gpt2");  // sizes of the first tensor's part: a tuple of one number, 8
  const std::string before("sizesctorch\nSize\n((J\x08\0\0\0", 24), after("sizesctorch\nSize\n((J\x07\0\0\0", 24);
  written.replace(".metadata", before, after);
  EXPECT_NE(written.refusal_of_reading().find("make up all of it once"), std::string::npos);
}

}  // namespace
}  // namespace megatron::interchange
