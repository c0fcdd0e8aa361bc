#include "megatron/interchange/megatron_lm/megatron_torch.h"

#include <algorithm>

#include "megatron/interchange/megatron_lm/megatron_names.h"
#include "megatron/interchange/megatron_lm/pickle_writer.h"
#include "megatron/interchange/weights.h"
#include "tests/interchange/support.h"
#include "tests/testing/folders.h"

// The checkpoints of the unpacked interchange/ were written by Megatron-Core and torch.save; expected.safetensors holds
// the global tensors that its own sharded_state_dict was filled from.
namespace megatron::interchange {
namespace {

namespace fs = std::filesystem;

fs::path golden(const std::string& name) { return fs::path(unpacked_folder()) / "interchange" / name; }

/// A copy that can be changed.
struct Copy {
  explicit Copy(const std::string& name) { fs::copy(golden(name), folder.path(), fs::copy_options::recursive); }
  TemporaryFolder folder;
};

TEST(MegatronTorch, RanksAndPartsMakeUpTheGlobalTensors) {
  for (const char* name : {"gpt2", "llama"})
    expect_same(read_all(*open_weights(golden(name))),
                testing::read_safetensors(golden(name) / "expected.safetensors"));
}

TEST(MegatronTorch, SlicesAreThoseOfTheWhole) {
  const auto source = open_weights(golden("llama"));
  const std::string name = "decoder.layers.2.mlp.linear_fc1.weight";  // [gate; up], each of two ranks' halves
  const at::Tensor whole = read_whole(*source, name);
  at::Tensor got = at::empty({13, 5}, at::kDouble);
  source->read(name, {{4, 2}, {13, 5}}, got);
  EXPECT_TRUE(got.equal(whole.narrow(0, 4, 13).narrow(1, 2, 5).to(at::kDouble)));
}

TEST(MegatronTorch, TheNetworkIsThatOfTheArguments) {
  const auto llama = model_config_of(golden("llama"));
  EXPECT_EQ(llama.num_layers, 4);
  EXPECT_EQ(llama.num_query_groups, 2);
  EXPECT_EQ(llama.kv_channels, 4);
  EXPECT_TRUE(llama.gated_linear_unit);
  EXPECT_EQ(llama.activation, "silu");
  EXPECT_EQ(llama.normalization, "RMSNorm");
  EXPECT_EQ(llama.layernorm_epsilon, 1e-6);
  EXPECT_EQ(llama.position_embedding_type, "rope");
  EXPECT_EQ(llama.rotary_base, 50000);
  EXPECT_TRUE(llama.untie_embeddings_and_output_weights);
  EXPECT_FALSE(llama.add_bias_linear);
  const auto gpt2 = model_config_of(golden("gpt2"));
  EXPECT_EQ(gpt2.vocab_size, 20);  // of 24 rows
  EXPECT_EQ(gpt2.activation, "gelu_tanh");
  EXPECT_EQ(gpt2.num_query_groups, 0);
}

TEST(MegatronTorch, AnIterationsFolderCanBeNamed) {
  EXPECT_EQ(open_weights(golden("llama") / "iter_0000007")->tensors(), open_weights(golden("llama"))->tensors());
}

TEST(MegatronTorch, AMissingRankIsRefused) {
  Copy tensor("llama"), pipeline("llama"), file("llama"), iteration("llama");
  fs::remove_all(tensor.folder.path() / "iter_0000007/mp_rank_01_000");
  expect_refused([&] { open_weights(tensor.folder.path()); }, {"2 x 2 ranks"});
  for (const char* name : {"mp_rank_00_001", "mp_rank_01_001"})
    fs::remove_all(pipeline.folder.path() / "iter_0000007" / name);
  expect_refused([&] { open_weights(pipeline.folder.path()); }, {"must hold"});
  fs::remove(file.folder.path() / "iter_0000007/mp_rank_01_000/model_optim_rng.pt");
  expect_refused([&] { open_weights(file.folder.path()); }, {"mp_rank_01_000"});
  write_file(iteration.folder.path() / "latest_checkpointed_iteration.txt", "8");
  expect_refused([&] { open_weights(iteration.folder.path()); }, {"iter_0000008"});
  write_file(iteration.folder.path() / "latest_checkpointed_iteration.txt", "../../etc");
  expect_refused([&] { open_weights(iteration.folder.path()); }, {"an iteration, or release"});
}

TEST(MegatronTorch, RanksOfDifferentModelsAreRefused) {
  Copy copy("llama");
  const auto other = golden("gpt2") / "release/mp_rank_01_000/model_optim_rng.pt";
  fs::copy_file(other, copy.folder.path() / "iter_0000007/mp_rank_01_000/model_optim_rng.pt",
                fs::copy_options::overwrite_existing);
  EXPECT_NE(refusal([&] { open_weights(copy.folder.path()); }), "");
}

/// Of a rank's file of the copy, changes the byte `at` bytes behind the first `before`.
void change(const fs::path& file, const std::string& before, std::size_t at) {
  std::string bytes = read_file(file, 1 << 20);
  const std::size_t found = bytes.find(before);
  ASSERT_NE(found, std::string::npos) << file;
  bytes[found + at] = static_cast<char>(bytes[found + at] ^ 1);
  write_file(file, bytes);
}

/// The bytes of `rows` rows of a tensor of the model, from row `row` on.
std::string bytes_of(const std::string& model, const std::string& name, std::int64_t row, std::int64_t rows) {
  const at::Tensor part = read_whole(*open_weights(golden(model)), name).narrow(0, row, rows).contiguous();
  return {static_cast<const char*>(part.const_data_ptr()), part.nbytes()};
}

TEST(MegatronTorch, CopiesThatDifferBetweenRanksAreRefused) {
  Copy norm("gpt2"), head("gpt2"), drifted("gpt2");
  const auto file = [](const Copy& copy, const char* rank) {
    return copy.folder.path() / "release" / rank / "model_optim_rng.pt";
  };
  change(file(norm, "mp_rank_01_000"), bytes_of("gpt2", "decoder.layers.0.input_layernorm.weight", 0, 8), 3);
  expect_refused([&] { open_weights(norm.folder.path()); },
                 {"mp_rank_01_000/model/decoder.layers.0.input_layernorm.weight", "other numbers", "torch_dist"});
  // The second half of the embedding, on the last stage.
  change(file(head, "mp_rank_01_001"), bytes_of("gpt2", "embedding.word_embeddings.weight", 12, 2), 3);
  expect_refused([&] { open_weights(head.folder.path()); },
                 {"mp_rank_01_001", "word_embeddings_for_head", "mp_rank_01_000", "other numbers"});
  change(file(drifted, "mp_rank_01_000"), bytes_of("gpt2", "decoder.layers.0.input_layernorm.weight", 0, 8), 0);
  EXPECT_NO_THROW(open_weights(drifted.folder.path())) << "a rounding apart";
}

TEST(MegatronTorch, FilesOfDifferentRunsAreRefused) {
  Copy iteration("llama"), args("llama");
  const auto last = [](const Copy& copy) {
    return copy.folder.path() / "iter_0000007/mp_rank_01_001/model_optim_rng.pt";
  };
  const auto value_of = [&](const std::string& key, const std::string& value) {  // behind the key's number of a memo
    const std::string bytes = read_file(last(iteration), 1 << 20);
    const std::size_t at = bytes.find(std::string(1, static_cast<char>(key.size())) + std::string(3, '\0') + key);
    const std::size_t found = bytes.find(value, at);
    return bytes.substr(at, found + value.size() - at);
  };
  std::string text = value_of("iteration", "K\x07");
  ASSERT_LT(text.size(), 24U);
  change(last(iteration), text, text.size() - 1);
  expect_refused([&] { open_weights(iteration.folder.path()); }, {"mp_rank_01_001", "iteration must be", "6, and 7"});
  text = value_of("rotary_base", "M\x50\xc3");
  ASSERT_LT(text.size(), 24U);
  change(last(args), text, text.size() - 2);
  expect_refused([&] { open_weights(args.folder.path()); }, {"mp_rank_01_001", "model.rotary_base", "50001"});
}

TEST(MegatronTorch, NamesOfAllVersionsAreOurs) {
  const auto name = [](const std::string& theirs) { return our_name(theirs, true, "x.pt").name; };
  EXPECT_EQ(name("language_model.transformer.layers.3.attention.query_key_value.bias"),
            "decoder.layers.3.self_attention.linear_qkv.bias");
  EXPECT_EQ(name("module.language_model.encoder.final_norm.weight"), "decoder.final_layernorm.weight");
  EXPECT_EQ(name("decoder.layers.0.self_attention.linear_qkv.layer_norm_weight"),
            "decoder.layers.0.input_layernorm.weight");
  EXPECT_EQ(name("decoder.layers.0.mlp.linear_fc1.layer_norm_bias"), "decoder.layers.0.pre_mlp_layernorm.bias");
  EXPECT_EQ(name("decoder.layers.0.self_attention.core_attention._extra_state"), "");
  EXPECT_EQ(name("decoder.layers.0.mlp.experts.linear_fc1.weight3"),
            "decoder.layers.0.mlp.experts.local_experts.3.linear_fc1.weight");
  expect_refused([&] { name("decoder.layers.0.mlp.experts.weight1"); }, {"x.pt", "each expert's matrices"});
  EXPECT_EQ(name("output_layer.weight"), "");  // the tied embedding's copy on the last stage
  EXPECT_EQ(our_name("output_layer.weight", false, "x.pt").name, "output_layer.weight");
  expect_refused([&] { name("language_model.pooler.dense.weight"); }, {"x.pt", "pooler.dense"});
  expect_refused([&] { name("lm_head.bias"); }, {"lm_head.bias"});
}

PickleNode node_of(PickleNode::Kind kind, std::int64_t integer, const std::string& text = "") {
  PickleNode node;
  node.kind = kind;
  node.integer = integer;
  node.text = text;
  return node;
}

/// Arguments that are complete, with one more.
std::string refused_argument(const std::string& name, const PickleNode& value) {
  using Kind = PickleNode::Kind;
  Pickle values;
  PickleNode args = node_of(Kind::Dict, 0);
  const auto add = [&](const std::string& key, const PickleNode& node) {
    values.nodes.push_back(node_of(Kind::Text, 0, key));
    args.items.push_back(static_cast<std::uint32_t>(values.nodes.size() - 1));
    values.nodes.push_back(node);
    args.items.push_back(static_cast<std::uint32_t>(values.nodes.size() - 1));
  };
  for (const char* size :
       {"num_layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "padded_vocab_size"})
    add(size, node_of(Kind::Integer, 4));
  add(name, value);
  std::string message = refusal([&] { model_of_arguments(values, args, {}, "x.pt"); });
  std::ranges::replace(message, '-', '_');  // of flags
  return message;
}

TEST(MegatronTorch, ArgumentsThatChangeTheResultAreRefusedByName) {
  using Kind = PickleNode::Kind;
  for (const char* name : {"multi_latent_attention", "enable_mhc_connections"})
    EXPECT_NE(refused_argument(name, node_of(Kind::Bool, 1)).find(name), std::string::npos) << name;
  EXPECT_NE(refused_argument("num_experts", node_of(Kind::Integer, 1 << 20)).find("num_experts"), std::string::npos);
  EXPECT_EQ(refused_argument("num_experts", node_of(Kind::Integer, 8)), "");
  EXPECT_NE(refused_argument("mtp_num_layers", node_of(Kind::Integer, 1 << 20)).find("mtp_num_layers"),
            std::string::npos);
  EXPECT_EQ(refused_argument("mtp_num_layers", node_of(Kind::Integer, 2)), "") << "torch_dist holds them";
  EXPECT_NE(refused_argument("hidden_size", node_of(Kind::Integer, -1)).find("hidden_size"), std::string::npos);
  EXPECT_NE(refused_argument("normalization", node_of(Kind::Text, 0, "LayerNorm1p")), "");
  EXPECT_EQ(refused_argument("num_experts", node_of(Kind::None, 0)), "");
}

/// What is said of a rank's file of a model with experts, whose arguments have one more.
std::string refused_ranks(const std::string& name, int value) {
  PickleWriter pickle;
  pickle.begin_dict();
  pickle.text("args");
  pickle.begin_object("argparse", "Namespace");
  pickle.begin_dict();
  for (const char* size : {"num_layers", "hidden_size", "num_attention_heads", "max_position_embeddings",
                           "padded_vocab_size", "num_experts"})
    pickle.entry(size, 4);
  pickle.entry(name, value);
  pickle.end_dict();
  pickle.end_object();
  pickle.entry("checkpoint_version", 3.0);
  pickle.text("model");
  pickle.begin_dict();
  pickle.null_entry("decoder");
  pickle.end_dict();
  pickle.end_dict();
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "mp_rank_00");
  write_file(folder.path() / "mp_rank_00/model_optim_rng.pt", saved_value(pickle.take()));
  return refusal([&] { megatron_model(folder.path()); });
}

TEST(MegatronTorch, ExpertsThatRanksShareOtherwiseAreRefusedByName) {
  for (const std::string name : {"expert_model_parallel_size", "expert_tensor_parallel_size"}) {
    EXPECT_EQ(refused_ranks(name, 1), "") << name;
    EXPECT_NE(refused_ranks(name, 2).find("args." + name + " must be 1 in files of ranks"), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace megatron::interchange
