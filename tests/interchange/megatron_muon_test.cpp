#include <ATen/ops/randn.h>

#include <list>
#include <map>
#include <string>
#include <vector>

#include "megatron/config/optimizers.h"
#include "megatron/families/hf_config.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/megatron_lm/dist/common_file.h"
#include "megatron/interchange/megatron_lm/pickle_writer.h"
#include "megatron/interchange/training_state.h"
#include "megatron/plan/parameters/parameters.h"
#include "tests/interchange/support.h"

// Megatron-LM's Muon is two optimizers, whose dictionaries lie in a list: its own of the layers' matrices, and Adam of
// everything else. These files are made here, as it makes them.
namespace megatron::interchange {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSteps = 3;

/// A file of torch.save whose tensors are added one by one.
struct SavedRank {
  PickleWriter pickle;
  std::list<std::string> storages;

  void tensor(const at::Tensor& values) {
    pickle.tensor("FloatStorage", storages.size(), values.sizes().vec());
    storages.emplace_back(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }

  /// `common`: the pickle of a dictionary, to which the entries here are added.
  void write(const fs::path& file, std::string common) {
    common.resize(common.size() - 2);  // without the opcodes that end the dictionary and the pickle
    const std::string entries = common + pickle.take().substr(2 + 2);  // without the protocol and a dictionary's start
    std::vector<ArchiveFile> files{{"archive/data.pkl", entries}, {"archive/byteorder", "little"}};
    std::size_t i = 0;
    for (const std::string& storage : storages) files.push_back({concat("archive/data/", i++), storage});
    files.push_back({"archive/version", "3\n"});
    write_file(file, make_archive(files));
  }
};

struct MuonRun {
  std::vector<plan::ParameterSpec> specs;
  std::map<std::string, at::Tensor> tensors;  ///< weights, and state as it is kept here
  TrainingState state;
  TemporaryFolder folder;

  MuonRun() {
    config::RunConfig& run = state.recipe;
    run = small_run();
    run.optimizer.name = "muon";
    run.optimizer.muon_momentum = 0.75;
    state.iteration = kSteps;
    state.consumed_samples = state.schedule_samples = kSteps * run.train.global_batch_size;
    specs = plan::model_parameters(families::shape_of(run.model), 1, 0);
    for (const plan::ParameterSpec& spec : specs) {
      tensors[spec.name] = at::randn(spec.shape);
      for (const std::string& kind : kinds_of(spec)) tensors[state_name(kind, spec.name)] = at::randn(spec.shape);
    }
  }
  config::StateNames kinds_of(const plan::ParameterSpec& spec) const {
    return config::optimizer_info("muon").state(state.recipe.optimizer, spec.is_layer_matrix());
  }

  /// One optimizer: the state of its parameters by number, and groups of them, with weight decay and without.
  void write_optimizer(SavedRank& file, bool of_matrices, const std::string& without) const {
    std::vector<std::vector<std::int64_t>> groups(2);
    std::int64_t number = 0;
    file.pickle.begin_dict();
    file.pickle.text("state");
    file.pickle.begin_dict();
    for (const bool decays : {true, false})
      for (const plan::ParameterSpec& spec : specs) {
        if (spec.is_layer_matrix() != of_matrices || (spec.shape.size() > 1) != decays) continue;
        groups[decays ? 0 : 1].push_back(number);
        file.pickle.integer(number++);
        file.pickle.begin_dict();
        for (const std::string& kind : kinds_of(spec)) {
          if (spec.name == without) continue;
          const at::Tensor& ours = tensors.at(state_name(kind, spec.name));
          file.pickle.text(kind);
          file.tensor(kind == "momentum_buffer" ? ours.mul(0.25) : ours);  // there the mean of gradients
        }
        file.pickle.end_dict();
      }
    file.pickle.end_dict();
    file.pickle.text("param_groups");
    file.pickle.begin_list();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].empty()) continue;
      file.pickle.begin_dict();
      file.pickle.entry("wd_mult", g == 0 ? 1.0 : 0.0);
      file.pickle.entry("is_expert_parallel", false);
      if (!of_matrices) file.pickle.entry("step", kSteps);
      file.pickle.text("params");
      file.pickle.begin_list();
      for (const std::int64_t of : groups[g]) file.pickle.integer(of);
      file.pickle.end_list();
      file.pickle.end_dict();
    }
    file.pickle.end_list();
    file.pickle.end_dict();
  }

  /// `first`: whether the first optimizer is of the matrices. `without`: a parameter whose state is left out.
  void write(bool first = true, const std::string& without = "") const {
    SavedRank file;
    file.pickle.begin_dict();
    file.pickle.text("model");
    file.pickle.begin_dict();
    for (const plan::ParameterSpec& spec : specs) {
      file.pickle.text(spec.name);
      file.tensor(tensors.at(spec.name));
    }
    file.pickle.end_dict();
    file.pickle.text("optimizer");
    file.pickle.begin_list();
    for (const bool of_matrices : {first, !first}) write_optimizer(file, of_matrices, without);
    file.pickle.end_list();
    file.pickle.end_dict();
    const fs::path place = folder.path() / "iter_0000003/mp_rank_00";
    fs::create_directories(place);
    const config::ModelConfig& model = state.recipe.model;
    file.write(place / "model_optim_rng.pt", common_pickle(model, families::shape_of(model).vocab, "float32", &state));
    write_file(folder.path() / "latest_checkpointed_iteration.txt", "3");
  }
};

TEST(MegatronTorchMuon, MatricesHaveTheMomentumAndEverythingElseAdamsState) {
  const MuonRun run;
  run.write();
  const auto read = training_state_of(run.folder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->optimizer, "muon");
  EXPECT_EQ(read->kinds, config::state_names(run.state.recipe.optimizer));
  EXPECT_EQ(read->optimizer_steps, kSteps);
  for (const auto& [name, tensor] : run.tensors) {
    ASSERT_NE(read->tensors->shape(name), nullptr) << name;
    EXPECT_TRUE(read_whole(*read->tensors, name).equal(tensor)) << name;
  }
  EXPECT_EQ(read->tensors->shape(state_name("exp_avg", "decoder.layers.0.mlp.linear_fc1.weight")), nullptr);
  EXPECT_EQ(read->tensors->shape(state_name("momentum_buffer", "embedding.word_embeddings.weight")), nullptr);
}

TEST(MegatronTorchMuon, StateThatIsNotOfAllIsRefused) {
  const MuonRun run;
  for (const char* name : {"decoder.layers.1.mlp.linear_fc2.weight", "decoder.final_layernorm.weight"}) {
    run.write(/*first=*/true, name);
    expect_refused([&] { training_state_of(run.folder.path()); }, {"of all its parameters"});
  }
  run.write(/*first=*/false);
  expect_refused([&] { training_state_of(run.folder.path()); }, {"the optimizer's state must have"});
  EXPECT_TRUE(training_state_of(run.folder.path(), /*with_optimizer=*/false)->kinds.empty());
}

}  // namespace
}  // namespace megatron::interchange
