#include "megatron/families/mapping.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <algorithm>

#include <memory>
#include <numeric>

#include "megatron/base/error.h"
#include "megatron/families/hf_family.h"
#include "megatron/interchange/mapped_source.h"
#include "tests/interchange/in_memory.h"
#include "tests/interchange/support.h"
#include "tests/model/random_layers.h"

namespace megatron::interchange {
namespace {

const plan::ModelShape kGpt2 = {.num_layers = 2,
                                .hidden = 8,
                                .num_heads = 4,
                                .ffn_hidden = 12,
                                .vocab = 11,
                                .padded_vocab = 11,
                                .max_positions = 6};

plan::ModelShape llama() {
  plan::ModelShape shape = kGpt2;
  shape.num_groups = 2;
  shape.head_size = 3;
  shape.rms_norm = shape.gated = shape.attention.add_qkv_bias = true;
  shape.linear_bias = shape.learned_positions = shape.tied_output = false;
  return shape;
}

plan::ModelShape t5(bool second) {
  plan::ModelShape shape = llama();
  shape.num_groups = 0;
  shape.num_layers = 5;
  shape.attention.add_qkv_bias = false;
  shape.gated = second;
  shape.tied_output = !second;
  shape.encoder_layers = 2;
  shape.position_buckets = 8;
  shape.position_max_distance = 10;
  return shape;
}

/// A BERT with the head of a task.
plan::ModelShape bert(plan::Head head) {
  plan::ModelShape shape = kGpt2;
  shape.causal = false;
  shape.masked_lm_head = shape.pooled_tasks = shape.residual_after_norm = true;
  shape.token_types = 2;
  shape.tied_output = false;
  shape.task_head = head;
  shape.num_classes = head == plan::Head::Classes ? 3 : 0;
  return shape;
}

plan::ModelShape pretrained_bert() {
  plan::ModelShape shape = bert(plan::Head::Tokens);
  shape.tied_output = shape.sentence_head = true;
  return shape;
}

/// A GPT that tells classes apart.
plan::ModelShape with_classes(plan::ModelShape shape) {
  shape.tied_output = false;
  shape.task_head = plan::Head::Classes;
  shape.num_classes = 3;
  return shape;
}

/// Of weights with all the parts that the family can have.
families::Mapping table_of(const char* family, const plan::ModelShape& shape) {
  return families::hf_family(family).written_table(shape, [](const std::string&) { return true; });
}

/// With the head of a task alone.
families::Mapping task_table(const plan::ModelShape& shape) {
  return families::hf_family("bert").written_table(shape, [&](const std::string& name) {
    return name == "pooler.dense.weight" && shape.task_head != plan::Head::Span;
  });
}

std::vector<families::Mapping> all_tables() {
  std::vector<families::Mapping> tables = {table_of("gpt2", kGpt2), table_of("llama", llama()),
                                           table_of("bert", pretrained_bert()), table_of("t5", t5(false)),
                                           table_of("t5", t5(true))};
  for (const plan::Head head : {plan::Head::Classes, plan::Head::Options, plan::Head::Span})
    tables.push_back(task_table(bert(head)));
  return tables;
}

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

/// How often each element of a target is written.
std::vector<int> coverage(const families::MappedTensor& tensor) {
  std::vector<int> counts(static_cast<std::size_t>(elements(tensor.shape)), 0);
  const std::int64_t columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
  for (const families::MappedSlice& piece : tensor.pieces)
    for (std::int64_t row = 0; row < piece.shape[0]; ++row)
      for (std::int64_t column = 0; column < (piece.shape.size() > 1 ? piece.shape[1] : 1); ++column)
        ++counts.at(
            static_cast<std::size_t>((piece.to[0] + row) * columns + (piece.to.size() > 1 ? piece.to[1] : 0) + column));
  return counts;
}

TEST(Mapping, HoldsEveryElementOnceInBothDirections) {
  for (const families::Mapping& table : all_tables())
    for (const families::Mapping& direction : {table, families::inverted(table)})
      for (const auto& [name, tensor] : direction)
        for (const int count : coverage(tensor)) ASSERT_EQ(count, 1) << name;
}

TEST(Mapping, TwiceInvertedIsItself) {
  for (const families::Mapping& table : all_tables()) {
    const families::Mapping again = families::inverted(families::inverted(table));
    ASSERT_EQ(again.size(), table.size());
    for (const auto& [name, tensor] : table) {
      EXPECT_EQ(again.at(name).shape, tensor.shape) << name;
      std::map<std::vector<std::int64_t>, families::MappedSlice> pieces;  // by place: the order may differ
      for (const families::MappedSlice& piece : again.at(name).pieces) pieces[piece.to] = piece;
      ASSERT_EQ(pieces.size(), tensor.pieces.size());
      for (const families::MappedSlice& piece : tensor.pieces) {
        EXPECT_EQ(pieces.at(piece.to).source, piece.source);
        EXPECT_EQ(pieces.at(piece.to).from, piece.from);
        EXPECT_EQ(pieces.at(piece.to).shape, piece.shape);
      }
    }
  }
}

TEST(Mapping, NamesAndShapesAreThoseOfThePlan) {
  for (const auto& [shape, table] : {std::pair{kGpt2, table_of("gpt2", kGpt2)},
                                     {llama(), table_of("llama", llama())},
                                     {with_classes(kGpt2), table_of("gpt2", with_classes(kGpt2))},
                                     {with_classes(llama()), table_of("llama", with_classes(llama()))},
                                     {t5(false), table_of("t5", t5(false))},
                                     {t5(true), table_of("t5", t5(true))},
                                     {bert(plan::Head::Classes), task_table(bert(plan::Head::Classes))},
                                     {bert(plan::Head::Options), task_table(bert(plan::Head::Options))},
                                     {bert(plan::Head::Span), task_table(bert(plan::Head::Span))}}) {
    const auto specs = plan::model_parameters(shape, 1, 0);
    EXPECT_EQ(specs.size(), table.size());
    for (const auto& spec : specs) {
      ASSERT_TRUE(table.contains(spec.name)) << spec.name;
      EXPECT_EQ(table.at(spec.name).shape, spec.shape) << spec.name;
    }
  }
}

/// A family, a model of it, and what all layers of such a model have.
struct Family {
  const char* name;
  plan::ModelShape shape;
  bool rms_norm, bias, grouped;
  bool gated_or_not;  ///< else `shape` says
};

TEST(Mapping, FollowsLayersThatDiffer) {
  const Family families[] = {{"llama", llama(), true, false, true, false},
                             {"gpt2", kGpt2, false, true, false, false},
                             {"bert", pretrained_bert(), false, true, false, false},
                             {"t5", t5(false), true, false, false, true}};
  for (const Family& family : families)
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      SCOPED_TRACE(concat(family.name, ", seed ", seed));
      plan::ModelShape shape = family.shape;
      shape.rms_norm = family.rms_norm;
      shape.layers = megatron::testing::random_layers(seed, shape);
      for (plan::LayerSpec& layer : shape.layers) {
        layer.rms_norm = family.rms_norm;
        layer.norms = shape.norms;
        layer.parallel = false;
        for (plan::Branch& branch : layer.branches) {
          branch.reads = plan::Branch::Reads::OwnNorm;
          if (auto* attention = std::get_if<plan::SelfAttention>(&branch.inner)) {
            if (!family.grouped) attention->groups = attention->heads;
            if (!family.grouped) attention->variant = {};
            if (!family.grouped || !shape.linear_bias) attention->bias = family.bias;
            attention->latents.reset();                   // whose names are DeepSeek's
            attention->variant.softmax_type = "vanilla";  // no family that is tried here has sinks
            attention->variant.attention_output_gate = false;
          }
          if (auto* across = std::get_if<plan::CrossAttention>(&branch.inner)) across->bias = family.bias;
          if (auto* experts = std::get_if<plan::Experts>(&branch.inner)) {  // Mixtral's, or Qwen3-MoE's
            experts->expert.gated = true;
            experts->shared_width = 0;
            experts->shared_gate = false;
            experts->router.bias = experts->router.linear_bias = experts->expert.bias = false;
            if (std::string(family.name) != "llama") branch.inner = plan::Mlp{.width = 24};
          }
          if (auto* mlp = std::get_if<plan::Mlp>(&branch.inner)) {
            mlp->bias = family.bias;
            if (!family.gated_or_not) mlp->gated = shape.gated;
          }
        }
      }
      const bool experts =
          std::ranges::any_of(shape.layers, [](const plan::LayerSpec& layer) { return layer.experts() != nullptr; });
      const families::Mapping table = table_of(experts ? "experts" : family.name, shape),
                              theirs = families::inverted(table);
      const auto specs = plan::model_parameters(shape, 1, 0);
      EXPECT_LE(specs.size(), table.size()) << "the table of a BERT has heads that the shape may lack";
      for (const auto& spec : specs) {
        ASSERT_TRUE(table.contains(spec.name)) << spec.name;
        EXPECT_EQ(table.at(spec.name).shape, spec.shape) << spec.name;
      }
      for (const families::Mapping& each : {table, theirs})
        for (const auto& [name, tensor] : each)
          for (const int count : coverage(tensor)) ASSERT_EQ(count, 1) << name;
    }
}

TEST(Mapping, RowsOfAGroupAreItsQueriesThenItsKeyThenItsValue) {
  const auto table = table_of("llama", llama());
  const auto& pieces = table.at("decoder.layers.1.self_attention.linear_qkv.weight").pieces;
  ASSERT_EQ(pieces.size(), 6u);
  EXPECT_EQ(pieces[3].source, "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(pieces[3].from, (std::vector<std::int64_t>{6, 0}));  // the second group's: heads 2 and 3, of 3 rows each
  EXPECT_EQ(pieces[3].to, (std::vector<std::int64_t>{12, 0}));
  EXPECT_EQ(pieces[4].source, "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(pieces[4].from, (std::vector<std::int64_t>{3, 0}));
  EXPECT_EQ(pieces[4].to, (std::vector<std::int64_t>{18, 0}));
}

TEST(MappedSource, RefusesPartsInTwoDtypesWithWhatMendsThem) {
  const auto raw = std::make_shared<const InMemory>(
      std::map<std::string, at::Tensor>{{"gate", at::zeros({2, 3})}, {"up", at::zeros({2, 3}, at::kHalf)}});
  const families::Mapping both = {{"fc1",
                                   {.shape = {4, 3},
                                    .pieces = {{.source = "gate", .to = {0, 0}, .from = {0, 0}, .shape = {2, 3}},
                                               {.source = "up", .to = {2, 0}, .from = {0, 0}, .shape = {2, 3}}}}}};
  expect_refused([&] { MappedSource(raw, both); }, {"must have one dtype", "up: F16", "save_pretrained"});
}

}  // namespace
}  // namespace megatron::interchange
